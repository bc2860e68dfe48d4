"""Checkpoints and run folders that are damaged, foreign or hostile, and settings that were edited."""

import io
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bad_inputs.helpers import assert_refused
from trimtab import cli
from trimtab.training import checkpoint

CPU = torch.device("cpu")
State = dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that can be gone on with."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    told = ["--network", "small-mlp", "--method", "bnp+bn", "--optimizer", "adam", "--lr", "0.01", "--steps", "6"]
    assert cli.main(["train", "--quiet", "--out", str(folder), *told]) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def put(*path: Any) -> Callable[[State], None]:
    """Set the field at a path to the last of the arguments."""
    *names, last, value = path

    def change(state: State) -> None:
        for name in names:
            state = state[name]
        state[last] = value

    return change


def drop(*path: Any) -> Callable[[State], None]:
    *names, last = path

    def change(state: State) -> None:
        for name in names:
            state = state[name]
        del state[last]

    return change


S, OPT = "session", ("session", "optimizer")
WEIGHT = "1.weight"
FIELDS: list[tuple[str, Callable[[State], None], str]] = [
    ("step -5", put(S, "step", -5), r"its step is -5, not a step from 0 to 6"),
    ("step x", put(S, "step", "x"), r"its step is 'x', not a step from 0 to 6"),
    ("step 7", put(S, "step", 7), r"its step is 7, not a step from 0 to 6"),
    ("step 1.5", put(S, "step", 1.5), r"its step is 1\.5"),
    ("step true", put(S, "step", True), r"its step is True"),
    ("step None", put(S, "step", None), r"its step is None"),
    ("step a tensor", put(S, "step", torch.tensor(3)), r"its step is tensor\(3\)"),
    ("no step", drop(S, "step"), r"it has no step"),
    ("session a list", put(S, []), r"its session is \[\], not a dictionary"),
    ("session empty", put(S, {}), r"it has no \w+"),
    ("no session", drop(S), r"it has no session"),
    ("seconds x", put("seconds", "x"), r"its seconds is 'x', not a time"),
    ("seconds -1", put("seconds", -1.0), r"its seconds is -1\.0"),
    ("seconds nan", put("seconds", float("nan")), r"its seconds is nan"),
    ("no seconds", drop("seconds"), r"it has no seconds"),
    ("seconds a whole number", put("seconds", 2**70), r"its seconds is \d+, not a time"),
    ("first loss x", put("first_loss", "x"), r"its first_loss is 'x', not a loss"),
    ("first loss nan", put("first_loss", float("nan")), r"its first_loss is nan, not a loss"),
    ("first loss inf", put("first_loss", float("inf")), r"its first_loss is inf, not a loss"),
    ("first loss -5", put("first_loss", -5.0), r"its first_loss is -5\.0, not a loss"),
    ("first loss a whole number", put("first_loss", 2**70), r"its first_loss is \d+, not a loss"),
    ("first loss None", put("first_loss", None), r"its first_loss is None, not a loss"),
    ("no first loss", drop("first_loss"), r"it has no first_loss; begin the run anew with --force$"),
    ("log -1", put("log", -1), r"its log is -1, not a number of bytes"),
    ("log x", put("log", "x"), r"its log is 'x'"),
    ("log 5", put("log", 5), r"events\.jsonl was edited, or is another run's"),
    ("log too large", put("log", 10**9), r"events\.jsonl was cut off"),
    ("no log", drop("log"), r"it has no log"),
    ("evaluations x", put("evaluations", "x"), r"its evaluations is 'x', not a list"),
    ("evaluations of numbers", put("evaluations", [1, 2]), r"it is 1, not fields with their names"),
    ("evaluations of nothing", put("evaluations", [{}]), r"it has no \w+"),
    ("an evaluation at step x", put("evaluations", 0, "step", "x"), r"step is 'x', not a whole number"),
    ("an accuracy of 7", put("evaluations", 0, "accuracy", 7.0), r"accuracy is 7\.0, not a number from 0 to 1"),
    ("an evaluation of more", put("evaluations", 0, "foo", 1), r"it has 'foo', which is not known"),
    ("model x", put(S, "model", "x"), r"of the network has other names"),
    ("model empty", put(S, "model", {}), r"of the network has other names"),
    ("a weight missing", drop(S, "model", WEIGHT), r"of the network has other names"),
    ("a weight too many", put(S, "model", "foo", torch.zeros(1)), r"of the network has other names"),
    ("a weight x", put(S, "model", WEIGHT, "x"), r"1\.weight is 'x', not a tensor"),
    (
        "a weight of another shape",
        put(S, "model", WEIGHT, torch.zeros(2, 3)),
        r"1\.weight is torch.float32 of shape \(2, 3\)",
    ),
    (
        "a weight of whole numbers",
        put(S, "model", WEIGHT, torch.zeros(50, 64, dtype=torch.int8)),
        r"is torch.int8",
    ),
    ("a sparse weight", put(S, "model", WEIGHT, torch.zeros(50, 64).to_sparse()), r"1\.weight is torch.float32"),
    ("optimizer x", put(*OPT, "x"), r"of the optimizer is not a state"),
    ("optimizer empty", put(*OPT, {}), r"of the optimizer is not a state"),
    ("optimizer without groups", put(*OPT, "param_groups", []), r"the optimizer has other groups"),
    ("a group x", put(*OPT, "param_groups", ["x"]), r"a group of the optimizer has other options"),
    ("no betas", drop(*OPT, "param_groups", 0, "betas"), r"a group of the optimizer has other options"),
    (
        "betas x",
        put(*OPT, "param_groups", 0, "betas", "x"),
        r"betas of the optimizer is 'x', not \(0\.9, 0\.999\)",
    ),
    ("lr x", put(*OPT, "param_groups", 0, "lr", "x"), r"its lr is 'x', not a learning rate"),
    ("lr nan", put(*OPT, "param_groups", 0, "lr", float("nan")), r"its lr is nan"),
    ("params of others", put(*OPT, "param_groups", 0, "params", [7]), r"params of the optimizer is \[7\]"),
    (
        "a state of no parameter",
        put(*OPT, "state", 99, {}),
        r"has a state of 99, which is no parameter",
    ),
    ("a state of x", put(*OPT, "state", "x", {}), r"the optimizer has a state of 'x'"),
    ("a state that is none", put(*OPT, "state", 0, 3), r"the optimizer has a state of 0"),
    ("a state of more", put(*OPT, "state", 0, "foo", 3), r"the optimizer has 'foo', which is not known"),
    ("a count x", put(*OPT, "state", 0, "step", "x"), r"step of the optimizer is 'x', not a tensor"),
    (
        "an average None",
        put(*OPT, "state", 0, "exp_avg", None),
        r"exp_avg of the optimizer is None, not a tensor",
    ),
    (
        "an average of another shape",
        put(*OPT, "state", 0, "exp_avg", torch.zeros(2)),
        r"exp_avg of the optimizer is",
    ),
    ("no BNP", put(S, "bnp", None), r"its state of BNP is missing"),
    ("BNP x", put(S, "bnp", "x"), r"does not belong to this run"),
    ("BNP empty", put(S, "bnp", {}), r"This is not a state of BNP"),
    ("BNP without options", drop(S, "bnp", "options"), r"This is not a state of BNP"),
    ("BNP with options x", put(S, "bnp", "options", "x"), r"its bnp\.options is 'x', not a dictionary"),
    ("BNP with another option", put(S, "bnp", "options", "foo", 1), r"it has bnp\.options\.foo, which is not known"),
    ("BNP without an option", drop(S, "bnp", "options", "rho"), r"it has no bnp\.options\.rho"),
    ("rho of BNP", put(S, "bnp", "options", "rho", 0.5), r"its bnp\.options\.rho is 0\.5, not 0\.99"),
    ("eps1 of BNP", put(S, "bnp", "options", "eps1", float("nan")), r"its bnp\.options\.eps1 is nan, not 0\.01"),
    ("eps2 of BNP", put(S, "bnp", "options", "eps2", -5), r"its bnp\.options\.eps2 is -5, not 0\.0001"),
    ("statistics of BNP", put(S, "bnp", "options", "statistics", "x"), r"its bnp\.options\.statistics is 'x'"),
    ("tokens of BNP", put(S, "bnp", "options", "tokens", None), r"its bnp\.options\.tokens is None"),
    ("no_bias of BNP", put(S, "bnp", "options", "no_bias", "variance"), r"its bnp\.options\.no_bias is 'variance'"),
    ("fast of BNP", put(S, "bnp", "options", "fast", 1), r"its bnp\.options\.fast is 1, not True"),
    ("interface -5", put("interface", -5), r"its interface is -5, not a dictionary"),
    ("no interface", drop("interface"), r"it has no interface; begin the run anew with --force$"),
    ("interface without std", drop("interface", "std"), r"it has no interface\.std"),
    ("interface of more", put("interface", "foo", 1), r"it has interface\.foo, which is not known"),
    ("input_shape x", put("interface", "input_shape", "x"), r"its interface\.input_shape is 'x', not \(1, 8, 8\)"),
    ("input_shape a list", put("interface", "input_shape", [1, 8, 8]), r"its interface\.input_shape is \[1, 8, 8\]"),
    ("outputs 7", put("interface", "outputs", 7), r"its interface\.outputs is 7, not 10"),
    ("classes True", put("interface", "classes", True), r"its interface\.classes is True, not 10"),
    ("batch size", put("interface", "batch_size", 64.0), r"its interface\.batch_size is 64\.0, not 64"),
    ("scale", put("interface", "scale", 255.0), r"its interface\.scale is 255\.0, not 16\.0"),
    ("mean", put("interface", "mean", (0.1,)), r"its interface\.mean is \(0\.1,\), not \(0\.0,\)"),
    ("two means", put("interface", "mean", (0.0, 0.0)), r"its interface\.mean is \(0\.0, 0\.0\), not \(0\.0,\)"),
    ("std nan", put("interface", "std", (float("nan"),)), r"its interface\.std is \(nan,\), not \(1\.0,\)"),
    ("labels", put("interface", "labels", ("a",)), r"its interface\.labels is \('a',\), not \(\)"),
    ("a generator x", put(S, "order_generator", "x"), r"order_generator is 'x', not a tensor"),
    (
        "a generator too short",
        put(S, "order_generator", torch.zeros(5, dtype=torch.uint8)),
        r"order_generator is torch",
    ),
    (
        "a generator of zeros",
        put(S, "torch_generator", torch.zeros(5056, dtype=torch.uint8)),
        r"does not belong to this run",
    ),
    ("before an epoch None", put(S, "before_epoch", None), r"before_epoch is None, not a tensor"),
    ("a device's generator x", put(S, "device_generator", "x"), r"device_generator is 'x', not a generator's state"),
    ("sums x", put(S, "sums", "x"), r"sums are 'x'"),
    ("two sums", put(S, "sums", (1, 2)), r"sums are \(1, 2\)"),
    ("sums of words", put(S, "sums", ("a", "b", "c")), r"the sum of losses is 'a', not a tensor"),
    ("a count of sums of -1", put(S, "sums", (torch.tensor(0.0), torch.tensor(0.0), -1)), r"its count is -1"),
    ("settings x", put("settings", "x"), r"its settings is 'x', not a dictionary"),
    ("settings None", put("settings", None), r"its settings is None, not a dictionary"),
    ("no settings", drop("settings"), r"it has no settings; begin the run anew with --force$"),
    ("settings of another method", put("settings", "method", "bn"), r"was saved with method 'bn' \(now 'bnp\+bn'\)"),
    ("settings with a word for lr", put("settings", "lr", "x"), r"its settings: lr: must be a number, not 'x'"),
    ("settings that are not known", put("settings", "foo", "x"), r"there is no setting 'foo'"),
    ("schema 99", put("schema", 99), r"is not a checkpoint that this trimtab can read"),
    ("schema x", put("schema", "x"), r"is not a checkpoint that this trimtab can read"),
    ("schema a tensor", put("schema", torch.zeros(3)), r"is not a checkpoint that this trimtab can read"),
]


@pytest.mark.parametrize(("change", "sentence"), [row[1:] for row in FIELDS], ids=[row[0] for row in FIELDS])
def test_fields(change: Callable[[State], None], sentence: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "checkpoint.pt"
    state = checkpoint.load(path, CPU)
    change(state)
    torch.save(state, path)
    assert_refused(["train", "--quiet", "--resume", "--out", str(run)], sentence, capsys, run.parent)


class Hostile:
    """What a pickle can do."""

    def __reduce__(self) -> Any:
        return print, ("executed",)


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


FOREIGN: list[tuple[str, Callable[[], bytes]]] = [
    ("empty", lambda: b""),
    ("words", lambda: b"nonsense"),
    ("a picture", lambda: b"\x89PNG\r\n\x1a\n\0\0\0"),
    ("a hostile pickle", lambda: pickle.dumps(Hostile())),
    ("a hostile checkpoint", lambda: saved({"schema": 1, "session": Hostile()})),
    ("a whole network", lambda: saved(torch.nn.Linear(2, 2))),
    ("a tensor", lambda: saved(torch.zeros(3))),
    ("a state dict", lambda: saved(torch.nn.Linear(2, 2).state_dict())),
    ("a list", lambda: saved([1, 2, 3])),
    ("an archive", lambda: archive(readme=b"hello")),
    (
        "an archive with a pickle",
        lambda: archive(**{"a/data.pkl": pickle.dumps(Hostile()), "a/version": b"3"}),
    ),
    ("an empty archive", archive),
    ("a plain pickle", lambda: pickle.dumps({"schema": 1})),
]


@pytest.mark.parametrize("command", ["resume", "export"])
@pytest.mark.parametrize("content", [row[1] for row in FOREIGN], ids=[row[0] for row in FOREIGN])
def test_foreign(content: Callable[[], bytes], command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoint.pt").write_bytes(content())
    told = {
        "resume": ["train", "--quiet", "--resume", "--out", str(run)],
        "export": ["export", str(run), str(run.parent / "model.pt")],
    }
    advice = ".*; begin the run anew with --force$" if command == "resume" else ""
    assert_refused(told[command], rf"checkpoint\.pt is not a checkpoint{advice}", capsys, run.parent)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_cut_off(share: float, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    sentence = r"is not a checkpoint of a run, or is damaged"
    assert_refused(["train", "--quiet", "--resume", "--out", str(run)], sentence, capsys, run.parent)


EDITED = [
    ("method: bnp+bn", "method: bn", r"saved with method 'bnp\+bn' \(now 'bn'\)"),
    ("method: bnp+bn", "method: foo", r"there is no method 'foo'"),
    ("batch_size: 64", "batch_size: 32", r"saved with batch_size 64 \(now 32\)"),
    ("optimizer: adam", "optimizer: sgd", r"saved with optimizer 'adam' \(now 'sgd'\)"),
    ("optimizer: adam", "optimizer: adagrad", r"settings\.yaml, line \d+: optimizer: must be one of"),
    ("seed: 0", "seed: 1", r"saved with seed 0 \(now 1\)"),
    ("lr: 0.01", "lr: 0.02", r"saved with lr 0\.01 \(now 0\.02\)"),
    ("lr: 0.01", "lr: fast", r"settings\.yaml, line \d+: lr: must be a number, not 'fast'"),
    ("network: small-mlp", "network: small-cnn", r"saved with network 'small-mlp' \(now 'small-cnn'\)"),
    ("steps: 6", "steps: 5", r"has 6 steps: it can be made longer, not shorter"),
    ("steps: 6", "steps: -6", r"steps must be 1 or more, not -6"),
    ("steps: 6", "steps: [", r"settings\.yaml, line \d+: a setting is a word"),
    ("steps: 6\n", "steps: 6\nsteps: 7\n", r"settings\.yaml, line \d+: steps is set in line \d+ already"),
    ("steps: 6", "stops: 6", r"settings\.yaml, line \d+: there is no setting 'stops'"),
    ("rho: 0.99", "rho: 0.9", r"saved with rho 0\.99 \(now 0\.9\)"),
    ("data: digits", "data: gaussian", r"saved with data 'digits'|takes|has"),
    ("seed: 0", "seed: 0x10", r"saved with seed 0 \(now 16\)"),
    ("milestones: []", "milestones: 5", r"saved with milestones \(\) \(now \(5,\)\)"),
    (
        "batch_size: 64",
        "batch_size: null",
        r"/settings\.yaml does not say batch_size; write that there again, as the first",
    ),
    ("network: small-mlp\n", "", r"/settings\.yaml does not say network; write that there again, .* --force$"),
    ("steps: 6", "steps: null", r"/settings\.yaml does not say epochs; write"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), EDITED, ids=[new or f"no {old}" for old, new, _ in EDITED])
def test_edited_settings(old: str, new: str, sentence: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (run / "settings.yaml").read_text()
    assert content.count(old) == 1
    (run / "settings.yaml").write_text(content.replace(old, new))
    assert_refused(["train", "--quiet", "--resume", "--out", str(run)], sentence, capsys, run.parent)


@pytest.mark.parametrize("words", [["--steps", "9"], ["--dry-run"]], ids=" ".join)
@pytest.mark.parametrize("there", [True, False], ids=["a checkpoint", "no checkpoint"])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("method: bnp", r"data, network, batch_size, epochs and \d+ more"),
        ("lr: 1e-1", r"data, network, method, batch_size and \d+ more"),
        ("batch_size: null", r"data, network, method, batch_size and \d+ more"),
        ("seed: 0x10", r"data, network, method, batch_size and \d+ more"),
        ("milestones: 5", r"data, network, method, batch_size and \d+ more"),
    ],
)
def test_shortened_settings(
    content: str, named: str, there: bool, words: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "settings.yaml").write_text(f"{content}\n")
    if not there:
        (run / "checkpoint.pt").unlink()
    sentence = (
        rf"/settings\.yaml does not say {named}; write that there again, as the first line of events\.jsonl has it"
    )
    assert_refused(["train", "--quiet", "--resume", "--out", str(run), *words], sentence, capsys, run.parent)


FOLDERS: list[tuple[list[str], str]] = [
    ([], r"holds a run already; go on with it by --resume, or overwrite it by --force"),
    (["--resume", "--lr", "0.7"], r"has lr 0\.01, not 0\.7"),
    (["--resume", "--method", "bn"], r"has method 'bnp\+bn', not 'bn'"),
    (["--resume", "--steps", "3"], r"it can be made longer, not shorter"),
    (["--resume", "--steps", "9", "--epochs", "3"], r"steps and epochs are two ways"),
    (["--resume", "--force"], r"give one of them"),
    (["--resume", "--device", "abacus"], r"there is no device 'abacus'"),
]


@pytest.mark.parametrize(("words", "sentence"), FOLDERS, ids=[" ".join(words) for words, _ in FOLDERS])
def test_a_run_that_is_there(words: list[str], sentence: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["train", "--quiet", "--out", str(run), *words], sentence, capsys, run.parent)


RECORDS: list[tuple[str, Callable[[bytes], bytes | None], str]] = [
    ("gone", lambda _: None, r"events\.jsonl is missing"),
    ("cut off", lambda content: content[:20], r"events\.jsonl was cut off"),
    ("another's", lambda content: b"x" * 2 * len(content), r"events\.jsonl was edited, or is another run's"),
]


@pytest.mark.parametrize(("change", "sentence"), [row[1:] for row in RECORDS], ids=[row[0] for row in RECORDS])
def test_records_that_do_not_fit(
    change: Callable[[bytes], bytes | None], sentence: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = change((run / "events.jsonl").read_bytes())
    (run / "events.jsonl").unlink()
    if content is not None:
        (run / "events.jsonl").write_bytes(content)
    sentence += r".*; put back the file that belongs to checkpoint\.pt, or begin the run anew with --force$"
    assert_refused(["train", "--quiet", "--resume", "--out", str(run)], sentence, capsys, run.parent)


def test_records_that_are_a_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").mkdir()
    told = ["train", "--quiet", "--out", str(run)]
    sentence = r"cannot write to .*/run/events\.jsonl: Is a directory"
    assert_refused([*told, "--resume"], sentence, capsys, run.parent, status=1)
    (run / "checkpoint.pt").unlink()
    assert_refused([*told, "--force"], rf"{sentence}; name another folder with --out", capsys, run.parent)


@pytest.mark.parametrize("words", [[], ["--resume"], ["--resume", "--dry-run"]])
def test_settings_that_are_gone(words: list[str], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "settings.yaml").unlink()
    told = ["train", "--quiet", "--out", str(run)]
    sentence = r"its settings\.yaml is missing; begin the run anew with --force"
    assert_refused([*told, *words], sentence, capsys, run.parent)
    assert cli.main([*told, "--force", "--network", "small-mlp", "--steps", "1"]) == 0


@pytest.mark.parametrize("words", [[], ["--steps", "9"], ["--dry-run"]])
def test_a_finished_run_without_its_checkpoint(words: list[str], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoint.pt").unlink()
    sentence = r"has finished, and there is no checkpoint\.pt to go on from; begin the run anew with --force"
    assert_refused(["train", "--quiet", "--resume", "--out", str(run), *words], sentence, capsys, run.parent)


def test_a_folder_of_someone_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for command in (["train", "--quiet"], ["train", "--quiet", "--force"], ["compare", "--jobs", "1"]):
        told = [*command, "--out", str(tmp_path)]
        assert_refused(told, r"holds other files \(thesis\.tex\); name another folder with --out", capsys, tmp_path)
