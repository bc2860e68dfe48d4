"""Predicted boundaries and the sentences about them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.data import load
from trimtab.records import RESULTS, GridCell, PredictedBoundary, Restart, Sweep, SweptAxis
from trimtab.report.heat_maps import heat_maps
from trimtab.report.sweep_sections import boundaries
from trimtab.training.recipes import resolve
from trimtab.training.settings import Settings
from trimtab.training.sweep.axes import Axis
from trimtab.training.sweep.boundaries import _largest_product
from trimtab.training.sweep.conclusion import conclusion
from trimtab.training.sweep.plan import Grid
from trimtab.training.sweep.runner import SweepRunner

CPU = torch.device("cpu")


def run(out: Path, given: dict[str, Any], *axes: str, engine: str = "auto") -> Sweep:
    grid = Grid({"network": "small-mlp", **given}, tuple(Axis.parse(axis) for axis in axes), 1)
    return SweepRunner(grid, out, command="c", device=CPU, engine=engine, jobs=1, threads=1).run()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_a_rate_above_the_largest_explodes_on_a_parabola_and_one_below_does_not(
    momentum: float, nesterov: bool
) -> None:
    settings = resolve(Settings(network="small-mlp", momentum=momentum, nesterov=nesterov, lr=1.0, steps=1))
    largest = _largest_product(settings, load("digits", None), 100)
    ends = []
    for share in (0.97, 1.03):
        x = torch.ones((), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=share * largest, momentum=momentum, nesterov=nesterov)
        for _ in range(2000):
            optimizer.zero_grad()
            (x.square() / 2).backward()
            optimizer.step()
        ends.append(abs(float(x.detach())))
    assert ends[0] < 1e-3
    assert not ends[1] < 1e3


def test_in_regression_the_rates_belong_to_the_sum_over_samples(tmp_path: Path) -> None:
    sweep = run(tmp_path / "s", {"data": "gaussian", "method": "bn", "steps": 25}, "lr=1e-5..0.1:9", "gamma=0.5,1")
    own = next(one for one in sweep.predictions if one.name == "this loss and data")
    for measured, predicted in zip(sweep.boundary("exploded"), own.rates, strict=True):
        assert measured is not None
        assert predicted is not None
        assert 0.2 < measured / predicted < 10


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("engine", ["stacked", pytest.param("separate", marks=pytest.mark.slow)])
def test_points_that_cannot_be_trained_are_told_and_the_others_trained(engine: str, tmp_path: Path) -> None:
    given = {"data": "digits", "method": "bn", "steps": 2}
    sweep = run(tmp_path / "s", given, "lr=0.01,0.1", "batch_size=16,5000", engine=engine)
    assert [bool(cell.restarts) for cell in sweep.cells] == [True, False, True, False]
    assert "At 2 points of the grid there is nothing to train: batch_size is 5000" in sweep.conclusion
    assert [one.rates[1] for one in sweep.predictions] == [None] * len(sweep.predictions)


def swept(*states: str, predicted: float | None = None) -> Sweep:
    axes = (SweptAxis("lr", tuple(10.0**i for i in range(len(states)))), SweptAxis("gamma", (1.0,)))
    cells = [
        GridCell((10.0**i, 1.0), (Restart(0, state, None, None, None),))  # type: ignore[arg-type]
        for i, state in enumerate(states)
    ]
    predictions = () if predicted is None else (PredictedBoundary("p", "d", (predicted,)),)
    return Sweep(
        *("c", {}, axes, (0,), 5, "test", 0.1, "stacked", "because", "m", {}, True, tuple(cells)),
        predictions=predictions,
    )


SENTENCES = [
    (swept("trained"), "Of 1 network: 1 trained, 0 exploded, 0 dead. No rate within the grid was found"),
    (swept("exploded", "exploded"), "0 dead. At the smallest rate of the grid networks explode already."),
    (swept("trained", "exploded", predicted=0.033), "networks explode is, at the median, 300 times η* (p)."),
    (swept("trained", "exploded", predicted=5.0), "networks explode is, at the median, 2 times η* (p)."),
    (swept("trained", "dead", "exploded"), "fail to train (explode or die) is, at the median, 10."),
    (swept("trained", "exploded", predicted=1e-40), "is, at the median, 1e+41 times η* (p)."),
    (swept("dead", "dead", "exploded"), "At no rate of the grid all networks are trained."),
    (swept("dead", "trained"), "No rate within the grid was found from which networks explode."),
]


@pytest.mark.parametrize(("sweep", "words"), SENTENCES)
def test_what_is_said_of_the_boundary(sweep: Sweep, words: str) -> None:
    assert words in conclusion(sweep)


def test_nothing_that_trains_is_not_taken_for_nothing_that_fails() -> None:
    assert "from which networks fail to train" not in conclusion(swept("dead", "dead", "exploded"))


def test_what_theories_leave_out_is_told(tmp_path: Path) -> None:
    given = {"data": "digits", "method": "bn", "steps": 2, "loss": "squared"}
    sweep = run(tmp_path / "s", given, "lr=0.01,1e6", "gamma=0,1,3")
    by_name = {one.name: one for one in sweep.predictions}
    # Where BatchNorm stands behind ReLU, the output layer's inputs have no mean in common.
    assert by_name["the paper"].rates == (None, None, None)
    assert by_name["the paper"].notes[0].startswith("Its formulas give no largest rate")
    own = by_name["this loss and data"]
    assert own.rates[1] is not None
    assert "next to nothing in common between samples" in own.notes[0]
    assert "Theory has reservations about these networks" in sweep.conclusion
    assert Sweep.read(tmp_path / "s") == sweep
    page = boundaries(sweep)
    assert "To be kept in mind (exact, train mode, this loss and data): What 10 reads" in str(page[-1])
    state = heat_maps(sweep)[0].draw()
    assert "η*: the paper" not in [text.get_text() for text in state.legends[0].get_texts()]


def test_records_of_before_have_no_notes(tmp_path: Path) -> None:
    made = replace(swept("trained", "exploded", predicted=1.0), settings={"network": "n"})
    made.write(tmp_path)
    content = json.loads((tmp_path / RESULTS).read_bytes())
    del content["predictions"][0]["notes"]
    (tmp_path / RESULTS).write_text(json.dumps(content))
    assert Sweep.read(tmp_path) == made
    content["predictions"][0]["notes"] = [1]
    (tmp_path / RESULTS).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="notes has 1, which is no text"):
        Sweep.read(tmp_path)


@pytest.mark.parametrize("method", ["ln", "gn", "vanilla"])
def test_only_norms_of_batches_have_a_train_mode_and_all_rates_are_positive(method: str, tmp_path: Path) -> None:
    given = {"data": "digits", "method": method, "steps": 2}
    sweep = run(tmp_path / "s", given, "lr=0.01,0.1", "weight_decay=0,0.1")
    names = [one.name for one in sweep.predictions]
    assert names == ["the paper", "exact", "this loss and data"][method != "vanilla" :]
    assert all(rate is not None and rate > 0 for one in sweep.predictions for rate in one.rates)
