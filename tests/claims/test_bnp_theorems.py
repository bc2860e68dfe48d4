"""The theorem experiments of bnp and of what the papers cite: every part has its number, and what is false fails."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.claims.helpers import recorded
from trimtab.claims import Record, claims
from trimtab.claims.experiments import (
    bnp_convolutions,
    bnp_costs,
    bnp_descent,
    bnp_draws,
    bnp_hessians,
    bnp_invariances,
    bnp_norms,
    bnp_steps,
    cited_theorems,
)
from trimtab.claims.experiments.registry import Context, experiment_named
from trimtab.claims.findings import Findings
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.record import Check
from trimtab.claims.verdict import judge
from trimtab.theory import bounds
from trimtab.theory.bounds.inputs import matrices

THEOREMS = (
    *("bnp-descent", "bnp-hessians", "bnp-norms", "bnp-costs", "bnp-steps", "bnp-invariances", "bnp-convolutions"),
    "cited-theorems",
)
# Claims whose printed form is known to be wrong, and holds as corrected.
SLIPS = {
    *("bnp-thm1-rate", "bnp-sec33-gain", "bnp-prop5", "bnp-prop6", "bnp-bn-cost", "bnp-prop7-network", "bnp-lem8"),
    *("bnp-prop10", "bnp-alg3"),
}
NOT_SO = {"bnp-typical-cost", "reg-cite-wager"}
"""Those that do not hold, or only in part, without a corrected form."""


class Few(Findings):
    """Checks with some draws only, enough for what is wrong to fail."""

    def check(self, name: str, statement: Callable[[np.random.Generator], Any], **options: Any) -> Check:
        return super().check(name, statement, **{**options, "draws": 30 if "any" in name or "logistic" in name else 8})


@cache
def record_of(name: str) -> Record:
    found = Few()
    experiment_named(name).run(found, Context("small", torch.device("cpu"), None, Path("unused")))
    return recorded(found, name)


class Computed:
    """Records as they are made here."""

    def find(self, experiment: str, size: str) -> Record | None:
        return record_of(experiment) if experiment in THEOREMS else None


DECIDED = [claim for claim in claims().values() if claim.experiments and set(claim.experiments) <= set(THEOREMS)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cited_theorems, "COPIES", 5000)
    monkeypatch.setattr(bnp_convolutions, "MAPS", 3)
    monkeypatch.setattr(bnp_norms, "MATRICES", 8)


@pytest.mark.parametrize("claim", DECIDED, ids=lambda claim: claim.id)
def test_every_part_is_decided_as_it_should_be(claim: Any) -> None:
    verdict = judge(claim, "small", Computed(), claims(), FUNCTIONS)
    states = {outcome.state for outcome in (*verdict.outcomes, *verdict.corrected)}
    assert states <= {"met", "not met"}
    if claim.id in SLIPS:
        assert "erratum" in verdict.flags
    else:
        assert verdict.state == "holds" or claim.id in NOT_SO
        assert (claim.id in NOT_SO) == (verdict.state != "holds")


def test_all_theorems_of_the_block_are_among_them() -> None:
    theorems = {claim.id for claim in claims().values() if claim.block == "1.1" and claim.kind == "T"}
    assert theorems <= {claim.id for claim in DECIDED}
    assert len(theorems) == 40


def draws(statement: Callable[[np.random.Generator], Any], number: int = 20) -> list[Any]:
    return [statement(np.random.default_rng([7, draw])) for draw in range(number)]


def test_no_draw_of_flat_scalings_is_flat_everywhere() -> None:
    """A network whose units are all dead has a Hessian of 0, and nothing can fail there."""
    assert all(sides.scale > 0 for sides in draws(bnp_descent.flat_along_scalings, 60))


def test_statements_fail_where_they_are_wrong() -> None:
    """Each with one thing changed that it depends on."""
    wrong: dict[str, Callable[[np.random.Generator], Any]] = {
        "a smaller rate of contraction": lambda rng: (
            lambda sides: replace(sides, right=sides.right - 0.2)
        )(bnp_descent.contracts(rng, 0.3)),
        "growth at a small rate": lambda rng: bounds.Sides(
            *bnp_descent._Fit(rng).distances(rng, 1e-3, 1)
        ),
        "centring helps centred data": lambda rng: bounds.centring_is_strict(
            (lambda h: h - h.mean(0))(bnp_draws.layer_inputs(rng))
        ),
        "the chain is reached by all": lambda rng: replace(
            bounds.unscaled_columns(bnp_draws.layer_inputs(rng)), relation="=="
        ),
        "σ in place of σ̃": lambda rng: bnp_steps.algorithm_3(rng, regularized=False),
        "one sample at a time with BN": lambda rng: bnp_invariances.one_sample_at_a_time(rng, ("bn",)),
        "two steps on one batch differ": lambda rng: bounds.Sides(1e-3, bnp_steps.second_step(rng, same_batch=True)),
        "centred norms without centring": lambda rng: bounds.orthogonal_norm(1 + rng.random(size=(6, 3))),
    }  # fmt: skip
    for what, statement in wrong.items():
        for outcome in draws(statement):
            assert not (outcome if isinstance(outcome, bool) else outcome.holds(1e-6)), what


def test_scaled_networks() -> None:
    for effect in draws(bnp_invariances.scale_effect, 3):
        assert max(map(effect, ("ln", "bn"))) < 1e-5 < 1e-2 < effect("none")


def test_the_distance_to_the_scaled_minimizers() -> None:
    optimum = np.array([1.0, 0.5, 2.0])
    scaled = optimum * np.array([3.0, 3.0, 1 / 3])
    assert bnp_descent._to_nearest(scaled, optimum) == pytest.approx(0, abs=1e-7)
    across = np.array([0.5, -1.0, 0.0])  # orthogonal to w, and v as it is
    assert bnp_descent._to_nearest(optimum + 0.01 * across, optimum) == pytest.approx(0.01 * 1.25**0.5, rel=1e-9)


def test_norms_of_gaussian_matrices() -> None:
    """√N + √n over √N and q, for large sizes."""
    for width, samples in ((60, 60), (1000, 60)):
        expected = (1 + (width / samples) ** 0.5) / max(width / samples, 1) ** 0.5
        assert bnp_norms.normalized(bnp_norms.gaussian, width, samples) == pytest.approx(expected, rel=0.05)
    assert bnp_norms.constant_needed(lambda rng, shape: np.ones(shape), (30, 30)) == pytest.approx(15**0.5)
    for entries in (bnp_norms.gaussian, bnp_norms.laplace, bnp_norms.sparse, bnp_norms.rare_large):
        drawn = entries(np.random.default_rng(0), (1000, 1000))
        assert (drawn.mean(), drawn.var()) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.15))


def test_layers_and_thresholds() -> None:
    assert bnp_costs.outputs_of("mlp3x100", 10, (3, 32, 32)) == [100, 100, 100, 10]
    fits = {(name, batch, good) for name, batch, good in bnp_costs.layers_in_section_5("printed")}
    assert {("mlp3x100", 6, False), ("mlp3x100", 6, True), ("mlp3x100", 60, True)} <= fits  # 28·6 < 600; the last layer
    assert ("mlp3x100", 60, False) not in fits
    assert ("resnet18", 256, False) in set(bnp_costs.layers_in_section_5("corrected"))


def test_property_a_of_the_draws_made_to_have_it() -> None:
    assert not any(bounds.property_a(bnp_draws.two_groups(np.random.default_rng(seed))).broken for seed in range(20))
    for seed in range(20):
        normal = matrices(bnp_draws.orthogonal_features(np.random.default_rng(seed))).normalized
        np.testing.assert_allclose(normal.T @ normal / len(normal), np.eye(normal.shape[1]), atol=1e-9)


def test_second_derivatives_of_a_unit() -> None:
    rng = np.random.default_rng(0)
    one = bnp_draws.unit(rng, rng.normal(size=(7, 3)))
    activations, h = one.rows @ one.weights, 1e-4
    expected = (one.losses(activations + h) - 2 * one.losses(activations) + one.losses(activations - h)) / h**2
    np.testing.assert_allclose(one.curvature(), expected.numpy(), atol=1e-6)


def test_conditioning_by_scales_has_the_range_it_says() -> None:
    found = Findings()
    assert 0.8 < bnp_hessians.scales_and_conditioning(found) < 1
    scales = [x for x, _ in found.curves["conditioning by scales"]["draws"]]
    assert 1 <= min(scales) < 1.5 and 5e3 < max(scales) <= 1.0001e4
