"""Runs that start from another run's weights."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import trimtab
from tests.bad_inputs.helpers import assert_refused
from trimtab import cli
from trimtab.records import Evaluated, History
from trimtab.training.recipes import resolve
from trimtab.training.run import Run
from trimtab.training.session import Session
from trimtab.training.settings import Settings

TRAIN = ["train", "--network", "small-mlp", "--batch-size", "100", "--quiet"]
STILL = ["--steps", "1", "--lr", "0"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with BatchNorm."""
    folder = tmp_path_factory.mktemp("source") / "bn"
    assert cli.main([*TRAIN, "--method", "bn", "--epochs", "3", "--norm-momentum", "0.1", "--out", str(folder)]) == 0
    return folder


def last(folder: Path) -> Evaluated:
    return History.read(folder).evaluated[-1]


@pytest.mark.parametrize("method", ["vanilla", "bnp"])
def test_a_folded_network_begins_where_the_other_ended(method: str, source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert cli.main([*TRAIN, *STILL, "--method", method, "--init-from", str(source), "--fold", "--out", str(run)]) == 0
    ours, theirs = last(run), last(source)
    assert ours.accuracy == theirs.accuracy and ours.train_accuracy == theirs.train_accuracy
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
    folded = trimtab.fold_batchnorm(trimtab.load_run(source).model)
    loaded = trimtab.load_run(run).model.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(folded.state_dict().values(), loaded.values(), strict=True))
    started = History.read(run).started
    assert started.settings["init_from"] == str(source) and started.settings["fold"] is True
    assert started.initial is not None and len(started.initial.pop("digest")) == 64
    assert started.initial == {"run": str(source), "step": 39, "folded": True}


def test_with_batchnorm_all_of_it_is_taken_over(source: Path, tmp_path: Path) -> None:
    """From the folder, or from a file that was exported; the digests are then the same."""
    exported = tmp_path / "model.pt"
    assert cli.main(["export", str(source), str(exported)]) == 0
    arguments = [*TRAIN, *STILL, "--method", "bn", "--norm-momentum", "0"]
    digests = set()
    for number, where in enumerate((source, exported)):
        run = tmp_path / str(number)
        assert cli.main([*arguments, "--init-from", str(where), "--out", str(run)]) == 0
        assert (last(run).loss, last(run).accuracy) == (last(source).loss, last(source).accuracy)
        started = History.read(run).started
        assert started.initial is not None
        digests.add(started.initial["digest"])
    assert len(digests) == 1


def test_it_is_gone_on_with_when_the_other_run_is_gone(source: Path, tmp_path: Path) -> None:
    copied, run, whole = (tmp_path / name for name in ("copied", "run", "whole"))
    shutil.copytree(source, copied)
    arguments = [*TRAIN, "--method", "vanilla", "--init-from", str(copied), "--fold", "--lr", "0.01"]
    assert cli.main([*arguments, "--steps", "30", "--out", str(whole)]) == 0
    assert cli.main([*arguments, "--steps", "12", "--out", str(run)]) == 0
    shutil.rmtree(copied)
    assert cli.main(["train", "--resume", "--steps", "30", "--quiet", "--out", str(run)]) == 0
    ours, theirs = (trimtab.load_run(folder).model.state_dict() for folder in (run, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_nothing_else_of_the_run_depends_on_it(source: Path, tmp_path: Path) -> None:
    """The order of the data is that of a run with drawn weights."""

    def batch(**told: Any) -> torch.Tensor:
        settings = Settings(network="small-mlp", method="vanilla", batch_size=100, epochs=1, **told)
        return Session(resolve(settings), torch.device("cpu")).next_batch()[0]

    assert torch.equal(batch(), batch(init_from=str(source), fold=True))


def test_the_library_says_how() -> None:
    settings = resolve(Settings(network="small-mlp", batch_size=100, epochs=1, init_from="somewhere"))
    with pytest.raises(ValueError, match=r"call trimtab\.training\.initial\.take_over_weights"):
        Run(Session(settings, torch.device("cpu"))).train()


REFUSED = [
    ("--network small-cnn --method bn", r"has network small-mlp, not small-cnn; give --network small-mlp"),
    ("--method vanilla", r"is another one, since only there is .*; give the same settings as there, or --fold"),
    ("--method bn --fold", r"the folded network in .* has other weights and biases than this; give --method vanilla"),
    ("--method bn --normalize standard", r"has normalize unit, not standard; give --normalize unit"),
    ("--method bn --activation tanh", r"has activation relu, not tanh; give --activation relu"),
    ("--fold --method vanilla --activation tanh", r"has activation relu, not tanh; give --activation relu"),
    ("--method bn --before-activation", r"has before_activation False, not True; give --no-before-activation"),
    ("--method bn --norm-eps 0.1", r"has norm_eps .*, not 0.1; give --norm-eps "),
    ("--method ln", r"init_from: the network in .* is another one"),
    ("--method bn --norm-layers 0", r"init_from: the network in .* is another one"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_what_does_not_fit(
    arguments: str, sentence: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*TRAIN, "--epochs", "1", *arguments.split(), "--init-from", str(source), "--out", str(tmp_path / "run")]
    assert_refused(command, sentence, capsys, tmp_path)


def test_another_norm_with_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused if it is another function of them; relatives of BatchNorm are the same one in evaluation."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    for method, there in (("ln", first), ("bn", second)):
        assert cli.main([*TRAIN, "--method", method, "--steps", "5", "--out", there]) == 0
    command = [*TRAIN, *STILL, "--out", str(tmp_path / "run"), "--init-from"]
    for method in ("gn", "bnp+gn"):
        sentence = r"the run in .* has the norm ln, not gn; give --method ln"
        assert_refused([*command, first, "--method", method], sentence, capsys, tmp_path)
    for number, method in enumerate(("brn", "ghost", "noisy-bn", "bn-stopgrad", "bnp+bn")):
        run = tmp_path / str(number)
        command = [*TRAIN, *STILL, "--norm-momentum", "0", "--method", method, "--out", str(run)]
        assert cli.main([*command, "--init-from", second]) == 0
        assert last(run).loss == pytest.approx(last(Path(second)).loss, rel=1e-6)


def test_other_shapes(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Vectors of ten numbers in the place of images."""
    command = ["train", "--data", "gaussian", "--network", "small-mlp", "--method", "bn", "--steps", "1", "--quiet"]
    sentence = r"init_from: 1\.weight in .* has the shape \(50, 64\), not \(50, \d+\) as here"
    assert_refused([*command, "--init-from", str(source), "--out", str(tmp_path / "run")], sentence, capsys, tmp_path)


def test_what_cannot_be_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The small CNN pads after its BatchNorm."""
    first = [*TRAIN, "--network", "small-cnn", "--method", "bn", "--steps", "2", "--out", str(tmp_path / "bn")]
    assert cli.main(first) == 0
    command = [*TRAIN, "--network", "small-cnn", "--method", "vanilla", "--steps", "2", "--fold"]
    command += ["--init-from", str(tmp_path / "bn"), "--out", str(tmp_path / "run")]
    assert_refused(command, r"init_from: the network in .* cannot be folded: .* pads with zeros", capsys, tmp_path)


def test_the_run_itself(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*TRAIN, "--method", "bn", "--epochs", "1", "--init-from", str(source), "--force", "--out", str(source)]
    assert_refused(command, r"init_from: .* is the run itself; name another folder", capsys, source.parent)


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_it_is_for_single_runs(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("init_from: somewhere\n")
    axes = ["--axis", "lr=0.1,1", "--axis", "gamma=1,2"] if command == "sweep" else []
    arguments = [command, "--config", str(file), *axes, "--out", str(tmp_path / "out")]
    assert_refused(
        arguments, r"settings\.yaml: init_from is (not for a sweep|decided by the comparison)", capsys, tmp_path
    )
