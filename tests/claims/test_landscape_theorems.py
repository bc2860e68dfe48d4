"""The experiments on the theorems of the landscape paper: statements against oracles, and numbers for every part."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.claims.helpers import record
from tests.claims.inline import inline_context
from trimtab.claims import claims
from trimtab.claims.experiments import landscape_theorems as theorems
from trimtab.claims.experiments.landscape_gradients import enter_gradients
from trimtab.claims.experiments.landscape_noise import noise_of_steps, scale_distribution, shift_distribution
from trimtab.claims.findings import Findings
from trimtab.claims.judging import judge_part
from trimtab.claims.record import Check, Record
from trimtab.claims.store import RecordStore
from trimtab.theory import bounds


class FewDraws(Findings):
    """Checks with five draws."""

    def check(self, name: str, statement: Callable[[np.random.Generator], Any], **options: Any) -> Check:
        return super().check(name, statement, **{**options, "draws": 5})


def rng(draw: int = 0) -> np.random.Generator:
    return np.random.default_rng([7, draw])


def record_of(findings: Findings) -> Record:
    found = record()
    found.units, found.numbers = findings.units, findings.numbers
    return found


def test_every_part_is_decided_by_the_records() -> None:
    store = RecordStore()
    for claim in claims().values():
        if claim.block == "2.1":
            for part in (*claim.parts, *claim.corrected):
                found = store.find(part.experiment or str(claim.experiment), "small")
                assert found is not None, claim.id
                assert all(outcome.state != "not run" for outcome in judge_part(part, found)), (claim.id, part.text)


@pytest.mark.parametrize("draw", range(3))
def test_left_sides_are_by_autograd_and_right_ones_are_not(draw: int) -> None:
    """BatchNorm's gradient by finite differences of the loss that was drawn."""
    unit = theorems.drawn_unit(rng(draw))
    step, y = 1e-6, unit.y.clone()
    for i in range(2):
        up, down = y.clone(), y.clone()
        up[i] += step
        down[i] -= step
        by_hand = float(unit.through(up) - unit.through(down)) / (2 * step)
        assert theorems.slope(unit.through, y)[i] == pytest.approx(by_hand, rel=1e-5, abs=1e-6)
    assert theorems.fact_c1(rng(draw)).holds() and theorems.fact_c2(rng(draw)).holds()
    sides = theorems.theorem_41(rng(draw), 1.0)
    assert sides.left == pytest.approx(float((theorems.slope(unit.through, y) ** 2).sum()))
    g = theorems.slope(unit.loss, unit.z)
    assert sides.right == pytest.approx(float(bounds.lipschitzness(y.numpy(), unit.gamma, g).right))


def test_minimax_bounds_are_drawn_at_many_radii(monkeypatch: pytest.MonkeyPatch) -> None:
    """At λ = 1 alone a wrong power of λ would not be seen."""
    seen: list[float] = []

    def bound(*given: object, form: str) -> bounds.Sides:
        seen.append(float(given[-1]))  # type: ignore[arg-type]
        return bounds.Sides(0.0, 1.0)

    for name in ("weight_lipschitzness", "weight_smoothness"):
        monkeypatch.setattr(theorems.bounds, name, bound)
    monkeypatch.setattr(theorems, "enter_noise", lambda findings, seed: None)
    monkeypatch.setattr(theorems, "INPUTS", 2)
    theorems.theorems(FewDraws(), inline_context(Path()))
    assert len(seen) == 4 * 5 and min(seen) < 0.9 and max(seen) > 1.1


def test_a_natural_unit_has_gamma_sigma() -> None:
    unit = theorems.drawn_unit(rng(), natural=True)
    assert unit.gamma == pytest.approx(float(unit.y.numpy().std()))
    sides = theorems.additive(rng())
    assert float(sides.left) < float(sides.right) < float((theorems.slope(unit.loss, unit.z) ** 2).sum())


def test_a_hessian_below_a_norm_is_indefinite_and_one_without_is_not() -> None:
    assert theorems.semi_definite(rng(), with_norm=False).holds()
    assert not theorems.semi_definite(rng(), with_norm=True).holds()


def test_the_minimum_that_is_kept_is_one_of_the_plain_layer() -> None:
    assert theorems.kept_minimum(rng(), bias=True).holds()
    assert not theorems.kept_minimum(rng(), bias=False).holds()


def test_a_worse_input_than_the_identity_is_found_among_those_drawn_and_no_larger_one_than_by_the_search() -> None:
    y, gamma, g, hessian = theorems.drawn_slopes(rng())
    along, curved = bounds.bn_gradient(y, gamma, g), bounds.bn_hessian(y, gamma, g, hessian)
    sides = theorems.worst_input(rng())
    assert sides.right == pytest.approx(float(along @ curved @ along))
    assert sides.left == pytest.approx(bounds.largest_curvature(curved, along, 1.0))


@pytest.mark.parametrize(
    ("distribution", "draws"),
    [
        (scale_distribution, lambda g, n: g.uniform(1, 1.25, n) + 0.1 * g.normal(size=n)),
        (shift_distribution, lambda g, n: g.uniform(-0.5, 0.5, n) + g.uniform(-0.1, 0.1, n)),
    ],
)
def test_distributions_of_the_noise(distribution, draws) -> None:
    values = draws(rng(), 20_000)
    assert stats.kstest(values, distribution).pvalue > 0.01
    assert stats.kstest(1.03 * values + 0.02, distribution).pvalue < 1e-3
    assert distribution(np.array([-5.0, 5.0])) == pytest.approx([0, 1])


def test_noise_of_a_step_has_a_mean_and_a_scale_of_its_own() -> None:
    s, m = noise_of_steps(20, 30, 50, 3)
    assert s.shape == m.shape == (20, 50, 30)
    assert np.abs(m - m.mean(1, keepdims=True)).max() < 0.22
    assert m.mean(1).std() == pytest.approx(1 / math.sqrt(12), rel=0.1)
    assert s.mean(1).std() == pytest.approx(math.hypot(0.25 / math.sqrt(12), 0.1 / math.sqrt(50)), rel=0.15)


def layer(**numbers: float) -> dict[str, float]:
    return {"units": 10, "slope": 2.0, "mean_share": 0.1, "inner_share": 0.1, "correlated": 0.9, "kept": 0.8, **numbers}


def test_the_worst_step_of_a_run_is_judged() -> None:
    findings = Findings()
    quiet = [layer(), layer(), layer(units=30, correlated=0.5)]
    steep = [layer(slope=1.2), layer(slope=1.4), layer(slope=3.0)]
    for seed in (1, 2, 3):
        enter_gradients(findings, "bn", seed, [{"layers": quiet}, {"layers": steep}], (0, 20))
    numbers = findings.numbers
    assert numbers["slope"]["bn-worst-step"] == {"1": 1.4, "2": 1.4, "3": 1.4}
    assert numbers["correlated units"]["bn-step-0"]["1"] == pytest.approx((9 + 9 + 15) / 50)
    parts = {part.text: part for name in ("middle", "inner") for part in claims()[f"landscape-thm41-{name}"].parts}
    states = {text: judge_part(part, record_of(findings))[0].state for text, part in parts.items()}
    assert list(states.values()) == ["not met", "met", "not met"]
