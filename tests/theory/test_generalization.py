"""The curves of Sec. 4 against ridge regressions solved exactly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.theory.generalization import ridge_curve, sgd_curve


def solved(
    alpha: float, zeta: float, noise_variance: float, *, inputs: int = 300, draws: int = 12
) -> tuple[float, float]:
    """Excess risk and training loss of the minimizer of ‖y − Xw‖² + ζ‖w‖² (at ζ = 0 of least norm), mean of draws."""
    rng = np.random.default_rng(0)
    excess, training = [], []
    for _ in range(draws):
        samples = round(alpha * inputs)
        x = rng.standard_normal((samples, inputs)) / math.sqrt(inputs)
        teacher = rng.standard_normal(inputs)
        teacher *= math.sqrt(inputs) / np.linalg.norm(teacher)
        y = x @ teacher + math.sqrt(noise_variance) * rng.standard_normal(samples)
        ridge = math.sqrt(zeta) * np.eye(inputs)
        w = np.linalg.lstsq(np.vstack([x, ridge]), np.append(y, np.zeros(inputs)), rcond=None)[0]
        excess.append(np.mean((w - teacher) ** 2))
        training.append(np.mean((y - x @ w) ** 2))
    return float(np.mean(excess)), float(np.mean(training))


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0, 1.6, 3.0])
@pytest.mark.parametrize("zeta", [0.0, 0.1, 0.25, 1.0])
def test_curves_against_solved_regressions(alpha: float, zeta: float) -> None:
    if alpha == 1 and zeta == 0:
        return  # infinite
    curve = ridge_curve(alpha, zeta)
    excess, training = solved(alpha, zeta, 0.25)
    assert float(curve.excess_risk) == pytest.approx(excess, rel=0.06)
    assert float(curve.training_loss) == pytest.approx(training, rel=0.06, abs=1e-6)
    assert float(curve.gap) == pytest.approx(0.25 + excess - training, rel=0.06)


@given(st.floats(0.05, 5), st.floats(1e-3, 5), st.floats(0, 2))
def test_both_curves_follow_from_g(alpha: float, zeta: float, noise: float) -> None:
    """Eq. 15 with G of eq. 16 differentiated by hand: central differences."""

    def g(z: float) -> float:
        return (1 - alpha - z + math.sqrt((z + (1 + math.sqrt(alpha)) ** 2) * (z + (1 - math.sqrt(alpha)) ** 2))) / (
            2 * z
        )

    step = 1e-5 * zeta
    slope = (g(zeta + step) - g(zeta - step)) / (2 * step)
    whole = ((zeta + step) * g(zeta + step) - (zeta - step) * g(zeta - step)) / (2 * step)
    found = float(ridge_curve(alpha, zeta, noise_variance=noise).excess_risk)
    assert found == pytest.approx(noise * whole - zeta**2 * slope, rel=1e-4, abs=1e-6)


@given(st.floats(0.05, 5).filter(lambda a: abs(a - 1) > 0.01), st.floats(0, 2))
def test_without_decay_the_curve_is_eq_14(alpha: float, noise: float) -> None:
    right = 1 - alpha + alpha * noise / (1 - alpha) if alpha < 1 else noise / (alpha - 1)
    for curve in (sgd_curve(alpha, noise_variance=noise), ridge_curve(alpha, 1e-12, noise_variance=noise)):
        assert float(curve.excess_risk) == pytest.approx(right, rel=1e-6, abs=1e-9)
        assert float(curve.training_loss) == pytest.approx(max(0.0, noise * (1 - 1 / alpha)), abs=1e-9)


def test_at_load_one_without_decay_the_noise_is_amplified_without_bound() -> None:
    curve = sgd_curve([1.0])
    assert np.isinf(curve.excess_risk[0]) and curve.training_loss[0] == 0
    assert sgd_curve([1.0], noise_variance=0.0).excess_risk[0] == 0


@given(st.floats(0.05, 5), st.floats(0.01, 2), st.floats(0.2, 5))
def test_no_decay_beats_the_noise_variance(alpha: float, noise: float, factor: float) -> None:
    best = ridge_curve(alpha, noise, noise_variance=noise).excess_risk
    assert best <= ridge_curve(alpha, noise * factor, noise_variance=noise).excess_risk + 1e-12


@given(st.floats(0.05, 5), st.floats(0, 5), st.floats(0, 2))
def test_losses_lie_where_they_can(alpha: float, zeta: float, noise: float) -> None:
    curve = ridge_curve(alpha, zeta, noise_variance=noise)
    assert curve.excess_risk >= -1e-12
    assert -1e-12 <= curve.training_loss <= 1 + noise + 1e-12  # w = 0 would have 1 + δ²
    assert curve.gap >= -1e-9


def test_decay_of_the_mean_loss_counts_alpha_times() -> None:
    """(1/P)Σ(y − ŷ)² + ζγ² with γ² = ‖w̃‖²/N is ridge with αζ."""
    rng = np.random.default_rng(0)
    inputs, samples, zeta = 40, 80, 0.3
    x = rng.standard_normal((samples, inputs)) / math.sqrt(inputs)
    y = rng.standard_normal(samples)
    w = np.linalg.solve(x.T @ x + samples / inputs * zeta * np.eye(inputs), x.T @ y)
    slope = 2 / samples * x.T @ (x @ w - y) + 2 * zeta * w / inputs
    np.testing.assert_allclose(slope, 0, atol=1e-12)


def test_bad_input_is_named() -> None:
    for message, call in (
        ("alpha must be positive", lambda: ridge_curve([0.5, 0.0], 0.1)),
        ("alpha must be positive", lambda: sgd_curve(math.nan)),
        ("zeta must be 0 or larger", lambda: ridge_curve(1.0, -0.1)),
        ("noise_variance must be", lambda: sgd_curve(0.5, noise_variance=math.inf)),
        ("noise_variance must be", lambda: sgd_curve(0.5, noise_variance=-1.0)),
        ("zeta must be 0 or larger and at most 1e\\+100", lambda: ridge_curve(0.5, 1e300)),
        ("alpha must be positive and at most 1e\\+100", lambda: ridge_curve(1e300, 0.5)),
        ("zeta must be one number or one for each", lambda: ridge_curve([0.5, 1.0], [0.1, 0.2, 0.3])),
        ("alpha must be a number", lambda: ridge_curve("a", 0.1)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("zeta", [1e8, 1e50, 1e100])
def test_an_endless_decay_leaves_nothing_learned(zeta: float) -> None:
    curve = ridge_curve([0.5, 2.0], zeta)
    np.testing.assert_allclose(curve.excess_risk, 1.0, rtol=1e-6)
    np.testing.assert_allclose(curve.training_loss, 1.25, rtol=1e-6)
