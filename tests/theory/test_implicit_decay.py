"""ζ against the expected loss itself: by quadrature, by Monte Carlo, and eq. 13 in fifty digits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.theory.implicit_decay import (
    LINKS,
    batch_prior,
    implicit_decay,
    linear_decay,
    measured_kurtosis,
    optimal_scale,
    own_batch_linear_decay,
)
from trimtab.theory.quadrature import NODES, WEIGHTS, expected_decay, gaussian_decay
from trimtab.theory.simulation import gaussian, measure_decay


def eq13(m: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        m = mpmath.mpf(m)
        ratio = mpmath.exp(mpmath.loggamma((m - 2) / 2) - mpmath.loggamma((m - 1) / 2))
        return 1 + m / (m - 3) - mpmath.sqrt(2 * m) * ratio


@given(st.one_of(st.integers(4, 200), st.integers(4, 10**6), st.floats(3.001, 100)))
def test_eq13_has_all_its_digits(m: float) -> None:
    assert linear_decay(m) == pytest.approx(float(eq13(m)), rel=1e-12)


@given(st.integers(2, 10**6))
def test_own_batch_form_has_all_its_digits(m: int) -> None:
    with mpmath.workdps(60):
        ratio = mpmath.exp(mpmath.loggamma(mpmath.mpf(m) / 2) - mpmath.loggamma(mpmath.mpf(m - 1) / 2))
        right = 2 - 2 * mpmath.sqrt(mpmath.mpf(2) / m) * ratio
    assert own_batch_linear_decay(m) == pytest.approx(float(right), rel=1e-12)


def test_eq13_for_large_batches_is_half_of_lambda_over_m() -> None:
    assert 1 - 1 / 64 / linear_decay(32) == pytest.approx(0.24, abs=0.005)
    for m in (10**4, 10**6):
        assert (2 * m * linear_decay(m, lam=3.0) / 3 - 1) * m == pytest.approx(71 / 8, rel=1e-3)


@pytest.mark.parametrize("m", [8, 16, 32, 128, 512])
def test_eq13_and_the_mean_term_against_the_expected_loss(m: int) -> None:
    both = 2 * expected_decay(m, "linear", 1.3, 0.4)  # the link's loss has the ½ that eq. 13's has not
    assert linear_decay(m, mean_noise=True) == pytest.approx(both, rel=1e-9)
    assert linear_decay(m) == pytest.approx(2 * expected_decay(m, "linear", 1.3, 0.4, mu_noise=False), rel=1e-9)


def test_theorem_1_is_as_good_as_it_says() -> None:
    """The ratios to ζ of the expected loss for ReLU, and that what is missing falls as 1/M."""
    ratios = {m: expected_decay(m, "relu", 1.0, 0.0) / gaussian_decay(m) for m in (16, 32, 128, 512, 2048)}
    assert [ratios[m] for m in (16, 32, 128, 512)] == pytest.approx([1.399, 1.175, 1.040, 1.010], abs=6e-4)
    # With β = 0 and a symmetric wᵀx, A″(h) + A″(−h) = 1: ReLU is exactly half of the linear unit.
    for m, ratio in ratios.items():
        assert ratio == pytest.approx(linear_decay(m, mean_noise=True) / (1.5 / m), rel=1e-6)
    assert (ratios[512] - 1) / (ratios[2048] - 1) == pytest.approx(4, rel=0.05)


@given(st.sampled_from(sorted(LINKS)), st.floats(0.3, 2), st.floats(-1.5, 1.5))
def test_theorem_1_and_each_of_its_parts_for_every_link(activation: str, gamma: float, beta: float) -> None:
    z, m = NODES, 4096
    link = LINKS[activation]
    bend = link.curvature(gamma * z + beta)
    sigma_part, mu_part = np.sum(WEIGHTS * bend * z**2) / (4 * m), np.sum(WEIGHTS * bend) / (2 * m)
    assert sigma_part == pytest.approx(expected_decay(m, activation, gamma, beta, mu_noise=False), rel=0.02)
    assert mu_part == pytest.approx(expected_decay(m, activation, gamma, beta, sigma_noise=False), rel=0.02)


def test_implicit_decay_is_the_mean_over_its_samples() -> None:
    z = np.random.default_rng(0).standard_normal(400_000)
    found = implicit_decay(z, 64, gamma=1.5, beta=0.2, curvature="sigmoid")
    assert found.zeta == pytest.approx(gaussian_decay(64, "sigmoid", 1.5, 0.2), rel=0.01)
    assert found.zeta == found.from_sigma + found.from_mu
    own = implicit_decay(z, 64, gamma=1.5, beta=0.2, curvature=LINKS["sigmoid"].curvature)
    assert own == found


@given(st.sampled_from(sorted(LINKS)), st.integers(4, 1000), st.floats(-3, 3), st.floats(-2, 2))
def test_zeta_is_positive_and_falls_with_the_batch(activation: str, m: int, gamma: float, beta: float) -> None:
    z = np.linspace(-2, 2, 21)
    one, two = (implicit_decay(z, size, gamma=gamma, beta=beta, curvature=activation) for size in (m, 2 * m))
    assert one.from_sigma > 0 and one.from_mu > 0
    assert one.zeta == pytest.approx(2 * two.zeta)


@pytest.mark.parametrize("m", [8, 16, 32, 128, 512])
def test_zeta_against_batches_drawn(m: int) -> None:
    right = expected_decay(m, "relu", 1.0, 0.0)
    found = measure_decay(m, batches=20_000, seed=m)
    assert abs(found.value - right) < 4 * found.error
    assert found.error / right < 0.03
    if m >= 32:
        assert found.value / gaussian_decay(m) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("m", [8, 32, 128])
def test_in_real_batch_norm_a_sample_is_in_its_batch(m: int) -> None:
    linear = measure_decay(m, activation="linear", own_batch=True, seed=m)
    assert abs(2 * linear.value - own_batch_linear_decay(m)) < 4 * linear.error
    relu = measure_decay(m, own_batch=True, seed=m)
    assert abs(4 * relu.value - own_batch_linear_decay(m)) < 4 * 4 * relu.error  # half of the linear unit's: β = 0
    assert relu.value / gaussian_decay(m) == pytest.approx(1, abs=0.03 + 0.3 / m)


@pytest.mark.parametrize(("name", "rho"), [("laplace", 3.0), ("uniform", -1.2)])
def test_kurtosis_sets_the_part_of_sigma(name: str, rho: float) -> None:
    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if name == "laplace":
            return rng.laplace(scale=math.sqrt(0.5), size=shape)
        return rng.uniform(-math.sqrt(3), math.sqrt(3), shape)

    sample = draw(np.random.default_rng(1), (400_000,))
    assert measured_kurtosis(sample) == pytest.approx(rho, abs=0.2)
    zeta = implicit_decay(sample, 256, excess_kurtosis=rho).zeta
    wrong = implicit_decay(sample, 256, excess_kurtosis=0.0).zeta
    found = measure_decay(256, draw=draw, batches=20_000)
    assert abs(found.value - zeta) < 4 * found.error + 0.03 * zeta
    assert abs(found.value - wrong) > 4 * found.error + 0.03 * zeta


@pytest.mark.parametrize(("sigma", "m"), [(3.0, 512), (0.2, 256)])
def test_prior_against_batches(sigma: float, m: int) -> None:
    batches = np.random.default_rng(0).laplace(1.0, sigma / math.sqrt(2), (20_000, m))
    prior = batch_prior(1.0, sigma, m, excess_kurtosis=3.0)
    assert batches.mean(axis=1).var() == pytest.approx(prior.mu.variance, rel=0.05)
    assert batches.std(axis=1).var() == pytest.approx(prior.sigma.variance, rel=0.05)
    assert batches.std(axis=1).mean() == pytest.approx(prior.sigma.mean, rel=0.01)


def test_scale_that_minimizes_the_expected_error() -> None:
    """The minimizer of E(γĥ − γ*h̄)² is γ*·E[ĥh̄]/E[ĥ²]."""
    m = 16
    rng = np.random.default_rng(0)
    batch, other = gaussian(rng, (200_000, m)), gaussian(rng, (200_000, m))
    mu, sigma = batch.mean(axis=1, keepdims=True), batch.std(axis=1, keepdims=True)
    theorem, independent, own = optimal_scale(m)
    assert theorem == pytest.approx(1 / (1 + 2 * gaussian_decay(m, "linear")))
    for h, right in ((other, independent), (batch, own)):
        unit = (h - mu) / sigma
        assert np.mean(unit * h) / np.mean(unit**2) == pytest.approx(right, abs=2e-3)
    assert own > theorem > independent


@pytest.mark.parametrize("m", [3, 0, -1, math.nan, math.inf])
def test_small_batches_are_refused(m: float) -> None:
    for call in (linear_decay, optimal_scale, lambda n: implicit_decay([0.0, 1.0], n)):
        with pytest.raises(ValueError, match="batch_size must be finite and larger than 3"):
            call(m)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        own_batch_linear_decay(1)
    with pytest.raises(ValueError, match="sigma must be positive"):
        batch_prior(0.0, -1.0, 8)
    with pytest.raises(ValueError, match="excess_kurtosis"):
        batch_prior(0.0, 1.0, 8, excess_kurtosis=-2.5)
    with pytest.raises(ValueError, match="lam"):
        linear_decay(8, lam=-1.0)
    with pytest.raises(ValueError, match="normalized"):
        implicit_decay([math.nan], 8)
    with pytest.raises(ValueError, match="normalized"):
        implicit_decay([], 8)
    with pytest.raises(ValueError, match="kurtosis"):
        implicit_decay([1.0, 1.0], 8)
    with pytest.raises(ValueError, match="gamma"):
        implicit_decay([1.0, -1.0], 8, gamma=math.inf)
    with pytest.raises(ValueError, match="relu, linear, sigmoid"):
        implicit_decay([1.0, -1.0], 8, curvature="gelu")
    with pytest.raises(ValueError, match="gamma"):
        measure_decay(8, gamma=0.0)
    with pytest.raises(ValueError, match="batches must be a whole number, 2 or larger"):
        measure_decay(8, batches=1)
