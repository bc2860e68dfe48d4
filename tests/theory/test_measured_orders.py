"""Order parameters of drawn networks against the recursions, and measures of Gaussianity against scipy's."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from trimtab.theory.mean_field import Conv, Dense, measure_orders
from trimtab.theory.mean_field.measured import NAMES, _gaussianity

SIGMAS = {"sigma_w2": 2.0, "sigma_b2": 0.5}
MLP = [Dense(400, 500), Dense(500, 500), Dense(500, 500)]
CONV = [Conv(16, 150, 3, 2, size=11), Conv(150, 200, 3, 2), Dense(800, 300)]


@pytest.mark.parametrize("gamma", [None, 0.5, 2.0])
@pytest.mark.parametrize(("layers", "samples"), [(MLP, 100), (CONV, 100)], ids=["dense", "convolutions"])
def test_the_recursions_hold(layers: list, samples: int, gamma: float | None) -> None:
    """Meanfield, Claims 6.1–6.6 and eqs. 20–22, corrected where errata.md says so."""
    found = measure_orders(layers, gamma=gamma, samples=samples, draws=8, **SIGMAS)
    for order in found:
        for name, ratio in order.ratios().items():
            told = getattr(order.predicted, name)
            if told:
                error = 4 * order.errors[name] / told
                assert ratio == pytest.approx(1, abs=max(0.05, error)), (order.predicted.layer, name)
            else:
                assert abs(getattr(order, name)) < 0.01
    assert all(order.distance < 0.02 and abs(order.kurtosis) < 0.1 for order in found)
    assert abs(found[1].correlation) < 0.03


def test_the_printed_backward_recursion_does_not() -> None:
    """Claim 6.2 divides by q, and Claim 6.4 counts no positions; forward both are exact."""
    for layers, samples in ((MLP, 100), (CONV, 100)):
        found = measure_orders(layers, gamma=1.0, variant="paper", samples=samples, draws=3, **SIGMAS)
        assert all(order.ratios()["q_hat"] == pytest.approx(1, abs=0.03) for order in found)
        assert not 0.67 < found[0].ratios()["q_tilde"] < 1.5


def test_a_finite_number_of_draws_is_reproducible_and_leaves_no_trace() -> None:
    state = torch.get_rng_state()
    one, other = (measure_orders([Dense(5, 6), Dense(6, 2)], samples=9, draws=1, seed=4, **SIGMAS) for _ in range(2))
    assert [getattr(a, n) for a in one for n in NAMES] == [getattr(a, n) for a in other for n in NAMES]
    assert torch.equal(state, torch.get_rng_state())
    assert math.isnan(one[0].errors["q"]) and math.isnan(one[1].correlation)
    assert one[1].q_tilde == pytest.approx(1)


@pytest.mark.parametrize("draw", ["standard_normal", "uniform", "laplace"])
def test_gaussianity_is_scipy_s(draw: str) -> None:
    z = getattr(np.random.default_rng(0), draw)(size=(300, 40))
    distance, kurtosis, correlation, spread = _gaussianity(torch.tensor(z))
    unit = (z - z.mean(0)) / z.std(0)
    assert distance == pytest.approx(scipy.stats.kstest(unit.ravel(), "norm").statistic)
    assert kurtosis == pytest.approx(float(np.mean(scipy.stats.kurtosis(z, axis=0))))
    assert correlation == pytest.approx(-1 / 299, abs=2e-3) and spread < 0.02
    assert (distance < 0.02) == (draw == "standard_normal")
    common = np.random.default_rng(1).standard_normal((1, 40)) * np.sign(np.arange(300) % 2 - 0.5)[:, None]
    assert _gaussianity(torch.tensor(z + common))[3] > 0.15


def test_bad_input() -> None:
    for name in ("samples", "draws", "seed"):
        with pytest.raises(ValueError, match=f"{name} must be"):
            measure_orders([Dense(5, 6), Dense(6, 2)], **SIGMAS, **{name: -1})
