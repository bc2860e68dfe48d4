"""Expectations over correlated Gaussians: closed form, quadrature, series and Monte Carlo."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from trimtab.theory.mean_field import activations
from trimtab.theory.mean_field.activations import ACTIVATIONS, LeakyReLU, Quadrature, activation, shifted

KINDS = ("value", "slope", "gain")
variances = st.floats(0.1, 4.0)
correlations = st.floats(-0.95, 0.95)


def by_panels(function, v1: float, v2: float, c: float) -> float:
    """E g(a)g(b) on a fine grid, which a kink does not disturb."""
    t = np.linspace(-7.0, 7.0, 400)
    w = np.exp(-(t**2) / 2)
    w /= w.sum()
    rho = c / np.sqrt(v1 * v2)
    a = np.sqrt(v1) * t[:, None]
    b = np.sqrt(v2) * (rho * t[:, None] + np.sqrt(1 - rho**2) * t[None, :])
    return float(w @ (function(a) * function(b)) @ w)


GAUSS = np.polynomial.legendre.leggauss(200)


def by_conditioning(kind: str, mean: float, v1: float, v2: float, c: float) -> float:
    """Of ReLU at x + mean: over b given a in closed form, over a > −mean by Gauss and Legendre, where nothing jumps."""
    nodes, weights = GAUSS
    width = 12 * np.sqrt(v1)
    a, weights = width * (nodes + 1) / 2 - mean, weights * width / 2
    density = np.exp(-(a**2) / (2 * v1)) / np.sqrt(2 * np.pi * v1)
    middle, sd = mean + c / v1 * a, np.sqrt(v2 - c**2 / v1)
    above = ndtr(middle / sd)
    if kind == "slope":
        return float(weights @ (density * above))
    inner = middle * above + sd * np.exp(-((middle / sd) ** 2) / 2) / np.sqrt(2 * np.pi)
    return float(weights @ (density * (a + mean) * inner))


# A step is known to the weight of the node that it falls on, a kink far better.
KINKED = {"value": 3e-4, "slope": 0.015, "gain": 3e-4}


@pytest.mark.parametrize("kind", ["value", "slope"])
def test_the_oracle_of_shifted_relu_is_its_closed_form_without_a_shift(kind: str) -> None:
    for c in (-0.7, 0.0, 0.3, 0.95):
        closed = float(getattr(ACTIVATIONS["relu"], kind)(1.2, 0.9, c))
        assert by_conditioning(kind, 0.0, 1.2, 0.9, c) == pytest.approx(closed, abs=1e-12)


def integrand(phi, kind: str):
    return {"value": phi.phi, "slope": phi.prime, "gain": lambda x: x * phi.prime(x)}[kind]


@settings(max_examples=25, deadline=None)
@given(v1=variances, v2=variances, rho=correlations)
@pytest.mark.parametrize("name", ["relu", "leaky_relu", "linear", "erf"])
def test_closed_forms_equal_a_fine_grid(name: str, v1: float, v2: float, rho: float) -> None:
    phi, c = ACTIVATIONS[name], rho * np.sqrt(v1 * v2)
    for kind in KINDS:
        expected = by_panels(integrand(phi, kind), v1, v2, c)
        assert float(getattr(phi, kind)(v1, v2, c)) == pytest.approx(expected, abs=0.006 * max(1, v1, v2))


@settings(max_examples=25, deadline=None)
@given(v1=variances, v2=variances, rho=correlations)
@pytest.mark.parametrize("name", ["linear", "erf"])
def test_quadrature_equals_smooth_closed_forms(name: str, v1: float, v2: float, rho: float) -> None:
    phi, c = ACTIVATIONS[name], rho * np.sqrt(v1 * v2)
    numeric = Quadrature(phi.phi, phi.prime, smooth=True)
    for kind in KINDS:
        assert float(getattr(numeric, kind)(v1, v2, c)) == pytest.approx(float(getattr(phi, kind)(v1, v2, c)), abs=2e-4)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softplus", "silu", "gelu"])
def test_smooth_activations_equal_a_fine_grid_and_their_derivative_is_right(name: str) -> None:
    phi = ACTIVATIONS[name]
    x = np.linspace(-4, 4, 41)
    assert phi.prime(x) == pytest.approx(Quadrature(phi.phi).prime(x), abs=1e-7)
    for kind in KINDS:
        expected = by_panels(integrand(phi, kind), 1.3, 0.7, 0.4)
        assert float(getattr(phi, kind)(1.3, 0.7, 0.4)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("variance", [2.0, 9.0, 100.0, 400.0])
@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softplus", "silu", "gelu"])
def test_wide_preactivations(name: str, variance: float) -> None:
    """Equal ones by adaptive quadrature, independent ones as the product of two."""
    phi = ACTIVATIONS[name]
    for kind in KINDS:
        function = integrand(phi, kind)

        def mean(power: int, function=function) -> float:
            density = partial(norm.pdf, scale=np.sqrt(variance))
            limits = {"a": -8 * np.sqrt(variance), "b": 8 * np.sqrt(variance), "points": [-3, 0, 3], "limit": 500}
            return quad(lambda x: function(np.array(x)) ** power * density(x), **limits)[0]

        value = getattr(phi, kind)
        assert float(value(variance, variance, variance)) == pytest.approx(mean(2), rel=1e-4)
        assert float(value(variance, variance, 0.0)) == pytest.approx(mean(1) ** 2, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_monte_carlo(name: str) -> None:
    phi = ACTIVATIONS[name]
    a, b = np.random.default_rng(0).multivariate_normal([0, 0], [[1.5, -0.6], [-0.6, 0.8]], 400_000).T
    for kind in KINDS:
        product = integrand(phi, kind)(a) * integrand(phi, kind)(b)
        error = product.std() / np.sqrt(len(product))
        assert float(getattr(phi, kind)(1.5, 0.8, -0.6)) == pytest.approx(product.mean(), abs=5 * error + 1e-9)


def test_relu_at_the_ends() -> None:
    relu = ACTIVATIONS["relu"]
    assert float(relu.value(2.0, 2.0, 2.0)) == pytest.approx(1.0)  # q/2, eq. 20
    assert float(relu.value(1.0, 1.0, 0.0)) == pytest.approx(1 / (2 * np.pi))  # eq. 24
    assert float(relu.slope(1.0, 1.0, 0.0)) == pytest.approx(0.25)
    assert float(relu.slope(1.0, 1.0, 1.0)) == pytest.approx(0.5)
    assert float(relu.value(0.0, 0.0, 0.0)) == 0.0


def test_many_pairs_go_by_the_series_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    v = np.random.default_rng(1).uniform(0.5, 2, 12)
    c = 0.8 * np.sqrt(v[:, None] * v[None]) * np.random.default_rng(2).uniform(-1, 1, (12, 12))
    phi = shifted(LeakyReLU(0.0), 0.3)
    plain = {kind: getattr(phi, kind)(v[:, None], v[None], c) for kind in KINDS}
    monkeypatch.setattr(activations, "WORK", 1)
    for kind in KINDS:
        exact = np.vectorize(lambda *at, kind=kind: by_conditioning(kind, 0.3, *at))(v[:, None], v[None], c)
        for found in (plain[kind], getattr(phi, kind)(v[:, None], v[None], c)):
            assert found == pytest.approx(exact, abs=KINKED[kind])


@pytest.mark.parametrize("mean", [-0.8, 0.2, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_shifted_relu_equals_the_integral_in_pieces(kind: str, mean: float) -> None:
    found = float(getattr(shifted(LeakyReLU(0.0), mean), kind)(1.2, 0.9, 0.3))
    assert found == pytest.approx(by_conditioning(kind, mean, 1.2, 0.9, 0.3), abs=KINKED[kind])


def test_any_function_is_an_activation() -> None:
    assert float(activation(lambda x: x**3).value(1.0, 1.0, 1.0)) == pytest.approx(15.0)
    assert activation("relu") is ACTIVATIONS["relu"]
    with pytest.raises(ValueError, match="activation has no 'nonsense'"):
        activation("nonsense")
    with pytest.raises(ValueError, match="activation must be"):
        activation(3)  # type: ignore[arg-type]
