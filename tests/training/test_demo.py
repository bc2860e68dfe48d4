"""The demonstration, on a small part of its grid."""

from collections.abc import Iterator

import pytest
import torch

from trimtab.data import digits
from trimtab.training import demo
from trimtab.training.loop import NORMS, Outcome, Settings, run


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Settings]]:
    grid = [Settings("mlp", method, size, 1, 0.0, 0) for size in (64, 1) for method in ("bn", "bnp")]
    monkeypatch.setattr(demo, "cells", lambda: grid)
    monkeypatch.setattr(demo, "LEARNING_RATES", (0.1, 0.3))
    return grid


def test_the_grid_is_what_is_promised() -> None:
    grid = demo.cells()
    assert {s.network for s in grid} == {"cnn", "mlp"}
    assert {s.batch_size for s in grid} == {64, 4, 2, 1}
    assert {s.method for s in grid} == {"vanilla", "bn", "ln", "bnp"}
    assert len(grid) == 2 * 4 * 4
    assert [s for s in grid if not s.trainable()] == [Settings("mlp", "bn", 1, 1, 0.0, 0)]


def test_batchnorm_of_one_row_really_cannot_train() -> None:
    data = digits()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        run(Settings("mlp", "bn", 1, 1, 0.1, 0), data["train"], data["validation"])


def test_compare(small_grid: list[Settings]) -> None:
    done: list[float] = []
    cells = demo.compare(seeds=2, jobs=2, advance=done.append)
    assert sum(done) == demo.amount_of_work(seeds=2)
    assert [(c.batch_size, c.method) for c in cells] == [(64, "bn"), (64, "bnp"), (1, "bn"), (1, "bnp")]
    assert [len(c.accuracies) for c in cells] == [2, 2, 0, 2]
    assert cells[2].lr is None
    data = digits()
    for cell in cells:
        for seed, accuracy in enumerate(cell.accuracies):
            assert cell.lr is not None
            settings = Settings(cell.network, cell.method, cell.batch_size, cell.epochs, cell.lr, seed + 1)
            assert run(settings, data["train"], data["test"]).accuracy == accuracy


def test_the_rate_is_chosen_by_accuracy_then_by_loss(small_grid: list[Settings]) -> None:
    cell = small_grid[0]
    low, high = (Settings("mlp", "bn", 64, 1, lr, 0) for lr in (0.1, 0.3))
    assert demo._best(cell, {low: Outcome(0.9, 1.0, False), high: Outcome(0.8, 0.1, False)}) == low
    assert demo._best(cell, {low: Outcome(0.9, 1.0, False), high: Outcome(0.9, 0.1, False)}) == high


@pytest.mark.parametrize("method", NORMS)
def test_the_same_seed_gives_the_same_run_and_it_learns(method: str) -> None:
    data = digits()
    settings = Settings("mlp", method, 10, 5, 0.1, 3)
    outcome = run(settings, data["train"], data["validation"])
    assert run(settings, data["train"], data["validation"]) == outcome
    assert outcome.accuracy > 0.8


def test_divergence_is_an_outcome() -> None:
    data = digits()
    outcome = run(Settings("cnn", "bn", 4, 1, 1e4, 0), data["train"], data["validation"])
    assert outcome.diverged
    assert outcome.accuracy == 0


def test_digits_parts_do_not_overlap() -> None:
    data = digits()
    assert [len(part) for part in data.values()] == [1000, 397, 400]
    images = torch.cat([part.images for part in data.values()])
    assert images.shape == (1797, 1, 8, 8)
    assert images.min() == 0
    assert images.max() == 1
    assert sum(part.labels.bincount(minlength=10) for part in data.values()).tolist() == [
        *(178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
    ]
