"""Runs: learning, records, divergence, stopping and going on."""

import json
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import Command
from trimtab import cli
from trimtab.records import Evaluated, Resumed, RunEnded, RunStarted, Trained, last_step, read_events
from trimtab.training import checkpoint
from trimtab.training.recipes import resolve
from trimtab.training.run import Run
from trimtab.training.session import Session
from trimtab.training.settings import Settings

CPU = torch.device("cpu")


def session(**told: Any) -> Session:
    return Session(resolve(Settings(**{"network": "small-mlp", "batch_size": 20, "epochs": 2, **told})), CPU)


def weights(path: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = checkpoint.load(path / "checkpoint.pt", CPU)["session"]["model"]
    return model


def assert_same_weights(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "method",
    [
        *("vanilla", "bn", "bnp", "noisy-bn"),
        *[pytest.param(method, marks=pytest.mark.slow) for method in ("ln", "bnp-debias", "wn", "bnp+ln", "brn")],
    ],
)
def test_the_same_seed_gives_the_same_run_and_it_learns(method: str) -> None:
    endings = [Run(session(method=method, epochs=4, batch_size=16)).train() for _ in range(2)]
    accuracies = [[e.accuracy for e in ending.evaluations] for ending in endings]
    assert accuracies[0] == accuracies[1]
    assert len(accuracies[0]) == 4
    assert (accuracies[0][-1] or 0) > 0.6
    other = Run(session(method=method, epochs=4, batch_size=16, seed=1)).train()
    assert [e.loss for e in other.evaluations] != [e.loss for e in endings[0].evaluations]


@pytest.mark.parametrize(
    "told",
    [
        {"method": "bnp", "optimizer": "sgd", "momentum": 0.9, "schedule": "cosine", "warmup": 5},
        {"method": "bnp-debias", "optimizer": "adam", "lr": 0.01},
        {"method": "noisy-bn", "network": "small-cnn"},
        {"method": "bn", "network": "small-cnn", "augment": True, "normalize": "standard"},
        {"method": "vanilla", "optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "decay_on": "weights"},
    ],
    ids=lambda told: told["method"],
)
def test_going_on_from_any_step_is_bit_identical(told: dict[str, Any]) -> None:
    """In the middle of an epoch, at its end, and more than once."""
    whole = session(**told)
    for _ in range(whole.total):
        whole.advance()
    parts = session(**told)
    for stop in (7, parts.steps_per_epoch, parts.steps_per_epoch + 11, parts.total):
        while parts.step < stop:
            parts.advance()
        state = parts.state()
        parts = session(**told)
        torch.rand(3)  # what happens in between must not matter
        parts.restore(state)
    assert_same_weights(parts.model.state_dict(), whole.model.state_dict())


def start(folder: Path, *more: str) -> Command:
    told = ["--network", "small-mlp", "--method", "bnp", "--batch-size", "4", "--epochs", "1", "--momentum", "0.5"]
    return Command(["train", *told, "--quiet", "--out", "run", *more], folder)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert start(folder).end() == 0
    return folder / "run"


@pytest.mark.parametrize("seed", [2, *[pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1)]])
def test_killed_at_random_moments(seed: int, uninterrupted: Path, tmp_path: Path) -> None:
    """kill -9 again and again, with a checkpoint at every step; the records are those of a run that was left alone."""
    folder, random_ = tmp_path / "run", random.Random(seed)
    for kills in range(4):
        process = start(tmp_path, "--checkpoint-seconds", "0", *(["--resume"] if kills else []))
        if kills < 3:
            steps = 359 * random_.uniform(kills, kills + 1) / 4
            process.wait_until(lambda: (last_step(folder / "events.jsonl") or 0) >= steps)  # noqa: B023 - at once
            time.sleep(random_.uniform(0.0, 0.01))
            process.send(signal.SIGKILL)
        assert process.end() == (-signal.SIGKILL if kills < 3 else 0)
    assert_same_weights(weights(folder), weights(uninterrupted))
    kept = (Trained, Evaluated)
    ours, theirs = (
        [e for e in read_events(f / "events.jsonl") if isinstance(e, kept)] for f in (folder, uninterrupted)
    )
    assert [replace(e, seconds=0.0) for e in ours] == [replace(e, seconds=0.0) for e in theirs]


def test_an_interruption_leaves_a_run_to_go_on_with(uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(tmp_path)
    records = folder / "events.jsonl"
    process.wait_until(lambda: records.exists() and b'"trained"' in records.read_bytes())
    process.send(signal.SIGINT)
    assert process.end() == 130, process.streams()
    assert "go on with: trimtab train --resume" in process.streams()[0]
    assert start(tmp_path, "--resume").end() == 0
    assert_same_weights(weights(folder), weights(uninterrupted))
    events = list(read_events(folder / "events.jsonl"))
    assert isinstance(events[0], RunStarted)
    assert any(isinstance(event, Resumed) for event in events)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].verdict == "finished"


@pytest.mark.parametrize("lr", ["1000", "1e9", "1e30"])
@pytest.mark.parametrize("log_every", ["5", "50"])
def test_divergence_is_a_verdict(lr: str, log_every: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--out", str(tmp_path / "run"), "--quiet", "--lr", lr, "--log-every", log_every]
    assert cli.main([*arguments, "--method", "vanilla", "--optimizer", "sgd"]) == 3
    assert "Diverged at step" in capsys.readouterr().out
    last = list(read_events(tmp_path / "run" / "events.jsonl"))[-1]
    assert isinstance(last, RunEnded)
    assert last.verdict == "diverged"


def test_a_first_loss_that_is_not_finite_ends_the_run_at_once() -> None:
    """Rather than at the first record: no checkpoint is saved that could not be gone on with."""
    lost = session(method="vanilla", init_scale=1e30, steps=60, epochs=None, log_every=50)
    assert Run(lost).train().verdict == "diverged"
    assert lost.step == 1


def test_a_high_first_loss_is_no_divergence() -> None:
    ending = Run(session(method="vanilla", init_scale=8.0, lr=1e-4, epochs=1)).train()
    assert ending.verdict == "finished"


def test_a_folder_whose_files_do_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["train", "--out", str(tmp_path / "run"), "--quiet", "--epochs", "1"]
    assert cli.main(run) == 0
    events, saved = tmp_path / "run" / "events.jsonl", tmp_path / "run" / "checkpoint.pt"
    content = events.read_bytes()
    events.write_bytes(content[:10])
    assert cli.main([*run, "--resume"]) == 2
    assert "was cut off" in capsys.readouterr().err
    assert events.read_bytes() == content[:10]
    events.unlink()
    assert cli.main([*run, "--resume"]) == 2
    assert "is missing" in capsys.readouterr().err
    events.write_bytes(content)
    checkpoint.save(saved, {"session": {"step": 3}})
    assert cli.main([*run, "--resume"]) == 2
    assert "does not belong to this run" in capsys.readouterr().err
    saved.write_bytes(b"nonsense")
    assert cli.main([*run, "--resume"]) == 2
    assert "is not a checkpoint" in capsys.readouterr().err


def test_a_start_that_was_killed_does_not_block_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".settings.yaml.unfinished").write_text("dat")
    assert cli.main(["train", "--out", str(folder), "--quiet", "--epochs", "1"]) == 0


def test_overwriting_that_was_killed_can_be_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever file the kill came at, the folder is still known as a run's."""
    run = ["train", "--out", str(tmp_path / "run"), "--quiet", "--epochs", "1"]
    assert cli.main(run) == 0
    for survivors in (["events.jsonl", "settings.yaml"], ["settings.yaml"]):
        for path in (tmp_path / "run").iterdir():
            if path.name not in survivors:
                path.unlink()
        removed: list[str] = []
        unlink = Path.unlink

        def recorded(path: Path, missing_ok: bool = False, removed: list[str] = removed, unlink: Any = unlink) -> None:
            removed.append(path.name)
            unlink(path, missing_ok=missing_ok)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", recorded)
            assert cli.main([*run, "--force"]) == 0
        assert removed.index("settings.yaml") > max(removed.index("events.jsonl"), removed.index("checkpoint.pt"))


def test_files_that_only_look_like_ours_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_text("mine")
    assert cli.main(["train", "--out", str(tmp_path), "--quiet", "--epochs", "1"]) == 2
    assert (tmp_path / "checkpoint.pt").read_text() == "mine"


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(tmp_path: Path) -> None:
    arguments = ["train", "--out", str(tmp_path / "run"), "--quiet", "--epochs", "1"]
    assert cli.main(arguments) == 0
    before = weights(tmp_path / "run")
    assert cli.main([*arguments, "--resume"]) == 0
    assert_same_weights(weights(tmp_path / "run"), before)


def test_regression_sums_its_loss() -> None:
    ran = session(data="gaussian", network="dln25", method="vanilla", batch_size=0, steps=3, epochs=None, lr=1e-6)
    assert ran.steps_per_epoch == 1
    inputs, targets = ran.next_batch()
    with torch.no_grad():
        expected = (ran.model(inputs) - targets).square().sum()
    ran.advance()
    loss, accuracy = ran.take_means()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert accuracy is None


@pytest.mark.parametrize(
    ("told", "kind", "expected"),
    [
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        ({"optimizer": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9, "nesterov": False}),
        ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}),
        ({"optimizer": "adamw", "weight_decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_optimizers_are_what_is_told(told: dict[str, Any], kind: type, expected: dict[str, Any]) -> None:
    optimizer = session(lr=0.3, **told).optimizer
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert {name: group[name] for name in expected} == expected
    assert group["lr"] == 0.3


def decayed(**told: Any) -> set[str]:
    ran = session(weight_decay=0.1, **told)
    names = {id(p): name for name, p in ran.model.named_parameters()}
    assert sum(len(group["params"]) for group in ran.optimizer.param_groups) == len(names)
    return {names[id(p)] for group in ran.optimizer.param_groups if group["weight_decay"] for p in group["params"]}


def test_weight_decay_groups() -> None:
    """Layers 1, 4, 7 and 10 are dense, 3, 6 and 9 normalize."""
    dense = {f"{n}.weight" for n in (1, 4, 7, 10)}
    norms = {f"{n}.{name}" for n in (3, 6, 9) for name in ("weight", "bias")}
    assert decayed(method="bn", decay_on="weights") == dense
    assert decayed(method="bn", decay_on="norms") == norms
    assert decayed(method="bn4", decay_on="weights") == dense | norms
    assert len(decayed(method="bn", decay_on="all")) == len(dense | norms) + 4
    lengths = {name for name in decayed(method="wn", decay_on="weights") if name.endswith("original0")}
    assert lengths == set()


def test_bfloat16_keeps_the_weights_in_float32() -> None:
    ran, plain = session(precision="bf16", method="bnp"), session(method="bnp")
    for one in (ran, plain):
        one.advance()
    assert all(p.dtype == torch.float32 for p in ran.model.parameters())
    assert ran.take_means()[0] == pytest.approx(plain.take_means()[0], rel=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_trains_the_same() -> None:
    ran, plain = session(compile=True, method="bnp"), session(method="bnp")
    for _ in range(5):
        ran.advance()
        plain.advance()
    assert ran.take_means()[0] == pytest.approx(plain.take_means()[0], rel=1e-4)


def test_checkpoints_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"value": 1})

    def broken(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(path, {"value": 2})
    assert checkpoint.load(path, CPU)["value"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is not a checkpoint of a run"):
        checkpoint.load(path, CPU)


def test_the_records_are_lines_of_json(tmp_path: Path) -> None:
    assert cli.main(["train", "--out", str(tmp_path / "run"), "--quiet", "--epochs", "1", "--log-every", "2"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert lines[0]["kind"] == "run_started"
    assert lines[0]["settings"]["method"] == "bnp"
    assert {line["schema"] for line in lines} == {2}
    assert [line["step"] for line in lines if line["kind"] == "trained"][:3] == [2, 4, 6]


@pytest.mark.parametrize("probe", [[], ["--probe", "landscape"]])
def test_a_first_step_that_is_tried_leaves_the_training_as_it_is(probe: list[str], tmp_path: Path) -> None:
    """Where a run is overwritten, or probes measure; noise is drawn from torch's own generator."""
    told = ["train", "--network", "small-mlp", "--method", "noisy-bn", "--steps", "5", "--batch-size", "20", "--quiet"]
    expected = session(method="noisy-bn", steps=5, epochs=None)
    Run(expected).train()
    for force in ([], ["--force"]):
        assert cli.main([*told, "--out", str(tmp_path / "run"), *probe, *force]) == 0
        assert_same_weights(weights(tmp_path / "run"), expected.model.state_dict())
