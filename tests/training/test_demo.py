"""The demonstration, on a small part of its grid."""

from dataclasses import replace

import pytest
import torch

from trimtab.records import Evaluated
from trimtab.training import demo
from trimtab.training.demo import run_one
from trimtab.training.recipes import recipe
from trimtab.training.session import Session
from trimtab.training.settings import Settings


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    grid = [
        replace(cell, epochs=1, evaluate_every=1)
        for cell in demo.cells()
        if cell.network == "small-mlp" and cell.batch_size in (64, 1) and cell.method in ("bn", "bnp")
    ]
    monkeypatch.setattr(demo, "cells", lambda: grid)
    monkeypatch.setattr(demo, "LEARNING_RATES", (0.1, 0.3))
    return grid


def test_the_grid_is_what_is_promised() -> None:
    grid = demo.cells()
    assert {s.network for s in grid} == {"small-cnn", "small-mlp"}
    assert {s.batch_size for s in grid} == {64, 4, 2, 1}
    assert {s.method for s in grid} == {"vanilla", "bn", "ln", "bnp"}
    assert len(grid) == 2 * 4 * 4
    (impossible,) = (s for s in grid if not demo.trainable(s))
    assert (impossible.network, impossible.method, impossible.batch_size) == ("small-mlp", "bn", 1)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        run_one(replace(impossible, lr=0.1))


def test_the_parts_are_those_that_are_told() -> None:
    cell = demo.cells()[0]
    settings = replace(cell, lr=0.1).resolved(recipe(cell.network, cell.data, cell.parsed_method, cell.batch_size))
    for part, size in (("validation", demo.VALIDATION), ("test", 400)):
        session = Session(replace(settings, evaluate_on=part), torch.device("cpu"))
        assert session.part == part
        assert sum(len(targets) for _, targets in session._held_out) == size
        assert session.steps_per_epoch == demo.TRAINING // 64


def test_compare(small_grid: list[Settings]) -> None:
    done: list[float] = []
    cells = demo.compare(seeds=2, jobs=2, advance=done.append)
    assert sum(done) == demo.amount_of_work(seeds=2)
    assert [(c.batch_size, c.method) for c in cells] == [(64, "bn"), (64, "bnp"), (1, "bn"), (1, "bnp")]
    assert [len(c.accuracies) for c in cells] == [2, 2, 0, 2]
    assert cells[2].lr is None
    for cell, settings in zip(cells, small_grid, strict=True):
        for seed, accuracy in enumerate(cell.accuracies):
            outcome = run_one(replace(settings, lr=cell.lr, seed=seed + 1, evaluate_on="test"))
            assert outcome is not None
            assert outcome.accuracy == accuracy


def test_the_rate_is_chosen_by_accuracy_then_by_loss(small_grid: list[Settings]) -> None:
    cell = small_grid[0]
    low, high = (replace(cell, lr=lr) for lr in (0.1, 0.3))

    def outcome(accuracy: float, loss: float) -> Evaluated:
        return Evaluated(1, 1.0, "validation", loss, accuracy, 0.0)

    assert demo._best(cell, {low: outcome(0.9, 1.0), high: outcome(0.8, 0.1)}) == low
    assert demo._best(cell, {low: outcome(0.9, 1.0), high: outcome(0.9, 0.1)}) == high
    assert demo._best(cell, {low: None, high: outcome(0.1, 9.0)}) == high
