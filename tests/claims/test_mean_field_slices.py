"""Slices of a sweep over learning rates, on networks whose end is made by hand."""

import math
from pathlib import Path

import pytest
import torch

from tests.claims.helpers import recorded
from tests.claims.invented_runs import history
from trimtab.claims.experiments import mean_field_slices
from trimtab.claims.experiments.mean_field_slices import Slice, explore, predictions
from trimtab.claims.experiments.mean_field_sweeps import Map, enter_map
from trimtab.claims.experiments.mean_field_training import changes, early_loss, falls
from trimtab.claims.experiments.registry import Context
from trimtab.claims.findings import Findings
from trimtab.claims.judging import judge_part
from trimtab.claims.part import Part
from trimtab.records import Restart
from trimtab.records.events import Probed


def ended(*losses: float | None) -> tuple[Restart, ...]:
    """Restarts with these test losses; None: exploded."""
    return tuple(
        Restart(101 + i, "exploded" if loss is None else "trained", loss, None, None) for i, loss in enumerate(losses)
    )


def test_boundary_best_rate_and_order():
    one = Slice(1.0, {0.1: ended(3.0, 4.0), 0.2: ended(2.0, 2.0), 0.4: ended(1.0, None), 0.8: ended(None, None)}, {})
    assert one.boundary == 0.4
    assert one.monotone
    assert one.best is not None and one.best[0] == 0.2
    assert one.lowest_loss(101) == 1.0
    assert one.lowest_loss(102) == 2.0
    gap = Slice(1.0, {0.1: ended(None, 1.0), 0.2: ended(1.0, 1.0)}, {})
    assert not gap.monotone
    never = Slice(1.0, {0.1: ended(1.0, 1.0)}, {})
    assert never.boundary is None and never.monotone


@pytest.mark.parametrize("explodes_from", [1e-4, 0.03, 0.1, 0.9])
def test_rates_are_added_until_the_boundary_is_among_them(explodes_from, monkeypatch, tmp_path):
    tried: list[float] = []

    def train(context, given, setting, value, numbers, step, restarts):
        rates = [10 ** (number * step) for number in numbers]
        tried.extend(rates)
        return [ended(None if rate >= explodes_from else rate) for rate in rates]

    monkeypatch.setattr(mean_field_slices, "_train", train)
    monkeypatch.setattr(mean_field_slices, "predictions", lambda *args: {"paper": 1.0, "exact": 0.05, "train": 0.1})
    context = Context("small", torch.device("cpu"), None, tmp_path)
    found = explore(context, {}, "gamma", 1.0, rates=9, restarts=1)
    if explodes_from == 1e-4:  # further below than is looked
        assert found.boundary == min(found.cells)
    else:
        assert found.boundary is not None
        assert explodes_from <= found.boundary < explodes_from * 10**0.125 * 1.001
    assert list(found.cells) == sorted(found.cells)
    assert len(tried) == len({round(math.log10(rate), 6) for rate in tried}) <= 9 + 4 * 4


def test_predictions_are_those_of_the_theory(monkeypatch):
    """A quarter of the widths does not matter here: with μ the rates are 1 + μ times as large, for γ they fall."""
    common = {"data": "digits", "network": "mf-mlp", "method": "bn"}
    context = Context("small", torch.device("cpu"), None, Path("nowhere"))
    with_momentum = predictions(context, {**common, "momentum": 0.9, "gamma": 1.0})
    without = predictions(context, {**common, "momentum": 0.0, "gamma": 1.0})
    larger = predictions(context, {**common, "momentum": 0.9, "gamma": 2.0})
    assert with_momentum.keys() == {"paper", "exact", "train"}
    for theory in with_momentum:
        assert with_momentum[theory] == pytest.approx(1.9 * without[theory], rel=0.02)
        assert larger[theory] < with_momentum[theory]
    assert predictions(context, {**common, "method": "vanilla"}).keys() == {"paper", "exact"}


def test_a_map_says_how_far_the_boundary_is_from_theory():
    slices = []
    for gamma, off in ((0.1, 1.0), (0.5, 1.0), (1.0, 1.0), (3.0, 4.0)):
        star = 1 / gamma**2
        cells = {off * star * f: ended(None) if f >= 1 else ended(gamma + abs(f - 0.5)) for f in (0.25, 0.5, 1.0, 2.0)}
        slices.append(Slice(gamma, cells, {"paper": star, "exact": off * star, "train": star / 3}))
    vanilla = Slice(2.0, {0.05: ended(4.0), 0.1: ended(None)}, {"paper": 0.1, "exact": 0.1})
    findings = Findings()
    enter_map(findings, Map(tuple(slices), vanilla), (101,))
    numbers = findings.numbers
    share = {name: seeds["all"] for name, seeds in numbers["share of γ within 0.3 decades of η*"].items()}
    assert share == {"paper": 0.75, "exact": 1.0, "train": 0.0}
    near = {name: seeds["all"] for name, seeds in numbers["share of γ whose best rate is near η*/2"].items()}
    assert near == {"paper": 0.75, "exact": 1.0, "train": 0.0}
    assert numbers["share of γ with monotone convergence"]["all"]["all"] == 1.0
    assert numbers["decades of η_c"]["all"]["all"] == pytest.approx(2 - math.log10(4 / 9))
    assert numbers["correlation of log η_c and log η*"]["exact"]["all"] == pytest.approx(1.0)
    assert numbers["rank correlation of γ and test loss"]["all"]["101"] == pytest.approx(1.0)
    assert numbers["η_c"]["bn"]["all"] == 1.0 and numbers["η_c"]["vanilla"]["all"] == 0.1
    assert numbers["lowest test loss"]["bn"]["101"] == 0.5 and numbers["lowest test loss"]["vanilla"]["101"] == 4.0


def test_a_network_that_never_explodes_has_no_largest_rate():
    """It is larger than all that were tried, and the claim on larger rates with BN is judged."""
    predicted = {"paper": 0.1, "exact": 0.1, "train": 0.1}
    slices = tuple(Slice(gamma, {0.1: ended(gamma), 0.2: ended(gamma)}, predicted) for gamma in (0.5, 1.0, 3.0))
    findings = Findings()
    enter_map(findings, Map(slices, Slice(2.0, {0.1: ended(4.0), 0.2: ended(None)}, predicted)), (101,))
    assert findings.numbers["η_c"] == {"bn": {"all": math.inf}, "vanilla": {"all": 0.2}}
    assert [one.state for one in judge_part(Part.parse("η_c: bn ≥ 2 × vanilla"), recorded(findings))] == ["met"]


def test_changes_along_a_training():
    def weights(*variances):
        return {"layers": [{"variance": value} for value in variances]}

    looks = [
        Probed(0, "weights", weights(1.0, 2.0), 0.0),
        Probed(0, "fisher", {"one_output": 4.0}, 0.0),
        Probed(9, "weights", weights(1.1, 1.4), 0.0),
        Probed(9, "fisher", {"one_output": 1.0}, 0.0),
    ]
    assert changes(history(probed=looks)) == (pytest.approx(0.3), pytest.approx(4.0))


def test_early_training_losses():
    run = history(trained=[float(20 - i) for i in range(20)])  # a loss every 10 of 200 steps
    assert early_loss(run) == 19.0  # that of step 20; step 10 is the 5 %, which is before
    assert early_loss(history(diverged=True)) == math.inf
    assert falls([1.0, 2.0, 1.5, 3.0]) == 2
    assert falls([1.0, math.inf, math.inf]) == 1
