"""Evaluations on the training data, and the training loss of the last epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from trimtab import cli
from trimtab.data import load
from trimtab.records import Event, History, RunEnded, Trained
from trimtab.training.recipes import resolve
from trimtab.training.run import Run
from trimtab.training.session import Session
from trimtab.training.settings import Settings

CPU = torch.device("cpu")
SAMPLES = 1397


def trained(**told: Any) -> tuple[Session, list[Event]]:
    """A run to its end, and its events."""
    events: list[Event] = []
    settings = resolve(Settings(**{"network": "small-mlp", "batch_size": 100, "epochs": 2, "method": "bn", **told}))
    session = Session(settings, CPU)
    Run(session, observe=lambda event, _: events.append(event)).train()
    return session, events


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for each in values for tensor in tensors(each)]


@pytest.mark.parametrize(
    "told",
    [
        {"method": "bn", "augment": True, "network": "small-cnn", "steps": 9, "epochs": None},
        {"method": "bnp", "optimizer": "adam"},
        {"method": "noisy-bn"},
        {"method": "brn"},
        {"method": "bnp+ln"},
    ],
    ids=lambda told: told["method"],
)
def test_training_is_the_same_to_the_bit_without_it(told: dict[str, Any]) -> None:
    (with_it, records), (without, others) = (trained(train_subset=size, **told) for size in (300, 0))
    ours, theirs = with_it.state(), without.state()  # weights, averages, optimizer, BNP, all random generators
    assert len(tensors(ours)) == len(tensors(theirs)) > 10
    assert all(torch.equal(a, b) for a, b in zip(tensors(ours), tensors(theirs), strict=True))
    losses = [[event.loss for event in events if isinstance(event, Trained)] for events in (records, others)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("subset", [300, 5000])
def test_it_is_the_loss_in_evaluation_mode_on_a_fixed_subset(subset: int) -> None:
    session, _ = trained(train_subset=subset, augment=True, network="small-cnn", steps=12, epochs=None, seed=3)
    assert session.evaluate_train is not None
    loss, accuracy = session.evaluate_train()
    # The subset as it is drawn for seed 3, by hand; 1397 are all there are.
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(3))[: min(subset, SAMPLES)]
    train = load("digits").train
    inputs, targets = train.inputs[order].float() / 16, train.targets[order]
    with torch.no_grad():
        outputs = session.model.eval()(inputs)
    assert loss == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-5)
    assert accuracy == pytest.approx((outputs.argmax(1) == targets).double().mean().item(), abs=1e-6)


def test_the_samples_are_among_those_that_are_trained_on() -> None:
    session, _ = trained(train_subset=5000, validation=397, steps=1, epochs=None)
    assert session.evaluate_train is not None
    assert sum(len(targets) for _, targets in session.evaluate_train.batches) == 1000


def test_it_can_be_left_out() -> None:
    session, _ = trained(train_subset=0, steps=1, epochs=None)
    assert session.evaluate_train is None


def last_epoch(events: list[Event]) -> tuple[float | None, float | None]:
    (ended,) = (event for event in events if isinstance(event, RunEnded))
    return ended.last_epoch_loss, ended.last_epoch_accuracy


def by_hand(told: dict[str, Any], steps: int) -> tuple[float, float]:
    """Means over the records of a run in which every step is recorded."""
    _, events = trained(**told, log_every=1)
    last = [event for event in events if isinstance(event, Trained)][-steps:]
    assert len(last) == steps
    return sum(e.loss for e in last) / steps, sum(e.accuracy or 0 for e in last) / steps


@pytest.mark.parametrize(
    ("told", "steps"),
    [({"epochs": 3}, 13), ({"steps": 20, "epochs": None}, 13), ({"steps": 7, "epochs": None}, 7), ({"epochs": 1}, 13)],
)
def test_the_last_epoch_is_averaged_wherever_the_records_fall(told: dict[str, Any], steps: int) -> None:
    expected = by_hand(told, steps)
    for log_every in (1, 5, 13, 1000):
        _, events = trained(**told, log_every=log_every)
        assert last_epoch(events) == pytest.approx(expected, rel=1e-5)


def ended(folder: Path) -> tuple[float | None, float | None]:
    event = History.read(folder).ended
    assert event is not None
    return event.last_epoch_loss, event.last_epoch_accuracy


@pytest.mark.parametrize("stop", [20, 26, 30])  # before the last epoch, where it begins, within it
def test_a_run_that_was_stopped_has_the_same_last_epoch(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["train", "--network", "small-mlp", "--batch-size", "100", "--epochs", "3", "--log-every", "7"]
    arguments += ["--quiet", "--checkpoint-seconds", "0"]
    assert cli.main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    advance = Session.advance

    def advance_or_fail(self: Session, *args: Any) -> None:
        if self.step == stop:
            raise KeyboardInterrupt
        advance(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "advance", advance_or_fail)
        assert cli.main([*arguments, "--out", str(tmp_path / "run")]) == 130
    assert cli.main(["train", "--resume", "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert ended(tmp_path / "run") == pytest.approx(ended(tmp_path / "whole"), rel=1e-9)


def test_a_run_that_was_made_longer(tmp_path: Path) -> None:
    arguments = ["train", "--network", "small-mlp", "--batch-size", "100", "--log-every", "1000", "--quiet"]
    run = ["--out", str(tmp_path / "run")]
    assert cli.main([*arguments, "--epochs", "3", "--out", str(tmp_path / "whole")]) == 0
    assert cli.main([*arguments, "--epochs", "2", *run]) == 0
    assert cli.main(["train", "--resume", "--epochs", "3", "--quiet", *run]) == 0
    assert ended(tmp_path / "run") == pytest.approx(ended(tmp_path / "whole"), rel=1e-5)
    assert cli.main(["train", "--resume", "--steps", "40", "--quiet", *run]) == 0
    assert ended(tmp_path / "run") == (None, None)  # its last 13 steps begin within an epoch that is over


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["bn", "bnp"])
def test_a_captured_step_is_the_same_to_the_bit_without_it(method: str) -> None:
    states = []
    for size in (300, 0):
        told = resolve(
            Settings(
                network="small-mlp", method=method, batch_size=100, epochs=5, step_mode="captured", train_subset=size
            )
        )
        session = Session(told, torch.device("cuda"))
        Run(session).train()
        assert "captured" in session.execution
        states.append(tensors(session.state()))
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
