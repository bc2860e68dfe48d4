"""The slips of the regularization paper: the printed form fails, the corrected form holds."""

import math

import numpy as np
import pytest
import torch

from trimtab.theory.generalization import ridge_curve, sgd_curve
from trimtab.theory.implicit_decay import batch_prior, linear_decay
from trimtab.theory.quadrature import averages_by_quadrature
from trimtab.theory.simulation import simulate_linear
from trimtab.theory.teacher_student import averages, fixed_point, jacobian, rate, resting_point, slopes, stability


def laplace_batches(sigma: float, m: int) -> np.ndarray:
    return np.random.default_rng(0).laplace(0.0, sigma / math.sqrt(2), (20_000, m))


def test_eq_2_the_variance_of_sigma_scales_with_sigma_squared() -> None:
    measured = laplace_batches(3.0, 512).std(axis=1).var()
    assert measured == pytest.approx(batch_prior(0.0, 3.0, 512, excess_kurtosis=3.0).sigma.variance, rel=0.05)
    assert measured > 5 * (3 + 2) / (4 * 512)


def test_eq_5_has_the_root_of_a() -> None:
    rng = np.random.default_rng(0)
    a, gamma, w = 4.0, 0.7, rng.standard_normal(5)
    x = 1.0 + math.sqrt(a) * rng.standard_normal((200_000, 5))
    h = x @ w
    normalized = gamma * (h - w.sum()) / h.std()
    length = np.linalg.norm(w)

    def by_weights(scale: float) -> np.ndarray:
        return gamma / scale * h / length - gamma * w.sum() / (scale * length)

    np.testing.assert_allclose(by_weights(math.sqrt(a)), normalized, rtol=0.01)
    assert not np.allclose(by_weights(a), normalized, rtol=0.3)


def test_section_3_eqs_6_and_7_belong_to_half_of_the_loss_and_eq_7_lacks_1_over_n() -> None:
    rng = np.random.default_rng(0)
    n, zeta, gamma_value = 30, 0.3, 0.8
    teacher, x = rng.standard_normal(n), rng.standard_normal(n) / math.sqrt(n)
    w, gamma = torch.tensor(rng.standard_normal(n), requires_grad=True), torch.tensor(gamma_value, requires_grad=True)
    sample, aim = torch.tensor(x), max(0.0, float(teacher @ x))
    if float(w.detach() @ sample) < 0:
        sample = -sample
        aim = max(0.0, float(-teacher @ x))
    out = torch.relu(math.sqrt(n) * gamma * (w @ sample) / w.norm())
    loss = (aim - out) ** 2 + zeta * gamma**2  # as printed
    by_w, by_gamma = torch.autograd.grad(loss, [w, gamma])
    point, xs = w.detach().numpy(), sample.numpy()
    length = np.linalg.norm(point)
    u = math.sqrt(n) * gamma_value * float(point @ xs) / length
    delta = aim - u
    eq6 = delta * (gamma_value * math.sqrt(n) / length * xs - u / length**2 * point)
    eq7 = delta * u / gamma_value - zeta * gamma_value
    np.testing.assert_allclose(-by_w.numpy() / 2, eq6, atol=1e-6)
    assert -float(by_gamma) / 2 == pytest.approx(eq7, rel=1e-5)
    assert not np.allclose(-by_w.numpy(), eq6)
    # Eq. 9 is the mean of eq. 7 over N samples only if each moves γ by η/N.
    v, aside = rng.standard_normal((2, 200_000))
    r, eta = 0.4, 0.5
    u_drawn = gamma_value * (r * v + math.sqrt(1 - r**2) * aside)
    step = eta * ((u_drawn > 0) * (np.maximum(v, 0) - u_drawn) * u_drawn / gamma_value - zeta * gamma_value)
    speed = rate([gamma_value, r, 1.0], eta, zeta=zeta)[0]
    assert n * np.mean(step / n) == pytest.approx(speed, rel=0.02)
    assert n * np.mean(step) != pytest.approx(speed, rel=0.5)


def test_eq_14_is_positive_beyond_load_one() -> None:
    alpha, noise = 2.0, 0.25
    assert noise / (1 - alpha) < 0
    right = noise / (alpha - 1)
    assert float(sgd_curve(alpha).excess_risk) == pytest.approx(right)
    assert float(ridge_curve(alpha, 1e-9).excess_risk) == pytest.approx(right)


@pytest.mark.parametrize(("q", "r"), [(0.8, 0.3), (0.5, -0.6), (1.2, 0.9)])
def test_appendix_2_i2_of_relu(q: float, r: float) -> None:
    root, turn = math.sqrt(1 - r**2), math.asin(r)
    rest = q**2 / 2 - q * (math.pi * r + 2 * root + 2 * r * turn) / (2 * math.pi)
    printed = rest + (math.pi * r + 2 * r * root + 2 * turn) / (4 * math.pi)
    right = averages_by_quadrature(q, r, "relu").i2
    assert averages(q, r).i2 == pytest.approx(right, abs=1e-9)
    assert printed == pytest.approx(right - (1 - r) / 4, abs=1e-9)


@pytest.mark.parametrize(("q", "r"), [(0.8, 0.3), (0.5, -0.6), (1.2, 0.9)])
def test_appendix_2_i2_of_erf(q: float, r: float) -> None:
    s = 1 + 3 * q**2
    printed = (4 / (math.pi * math.sqrt(1 + 2 * q**2))) * (
        math.asin(1 / s) - math.asin(1 / (math.sqrt(s) * math.sqrt(2 * (1 + 2 * q**2) - 2 * q**2 * r**2)))
    )
    right = averages_by_quadrature(q, r, "erf").i2
    assert averages(q, r, "erf").i2 == pytest.approx(right, abs=1e-9)
    assert abs(printed - right) > 0.5 * right


def test_appendix_1_mean_of_the_inverse_variance() -> None:
    m = 16
    measured = np.mean(1 / np.random.default_rng(0).standard_normal((200_000, m)).var(axis=1))
    printed = m * math.gamma((m - 1) / 2 - 1) / math.gamma((m - 1) / 2)
    assert measured == pytest.approx(printed / 2, rel=0.01)
    mean_inverse = math.sqrt(m / 2) * math.gamma((m - 2) / 2) / math.gamma((m - 1) / 2)
    assert linear_decay(m) == pytest.approx(1 + printed / 2 - 2 * mean_inverse)


@pytest.mark.parametrize(("name", "rho"), [("gaussian", 0.0), ("laplace", 3.0)])
def test_appendix_1_leaves_out_that_sigma_b_is_too_small(name: str, rho: float) -> None:
    """E[σ_P/σ_B] − 1 is (3ρ+10)/(8M), not (ρ+2)/(4M); E[(μ_B−μ_P)²/σ_B²] is 1/(M−3), not (1/M)(1+3(ρ+2)/(4M))."""
    m = 128
    batches = laplace_batches(1.0, m) if name == "laplace" else np.random.default_rng(1).standard_normal((20_000, m))
    excess = 1 / batches.std(axis=1) - 1
    error = excess.std() / math.sqrt(len(excess))
    assert abs(excess.mean() - (3 * rho + 10) / (8 * m)) < 4 * error + 0.08 * (3 * rho + 10) / (8 * m)
    assert abs(excess.mean() - (rho + 2) / (4 * m)) > 6 * error
    if rho == 0:
        small = np.random.default_rng(2).standard_normal((400_000, 16))
        term = np.mean(small.mean(axis=1) ** 2 / small.var(axis=1))
        assert term == pytest.approx(1 / 13, rel=0.01)
        assert term != pytest.approx((1 + 3 * 2 / (4 * 16)) / 16, rel=0.05)


def test_appendix_1_half_lambda_over_m_is_not_near_at_32() -> None:
    assert linear_decay(32) / (1 / 64) == pytest.approx(1.317, abs=1e-3)


def test_proposition_1_eigenvalues() -> None:
    eta, zeta, length = 0.01, 0.25, 1.3
    gamma = fixed_point(zeta=zeta).gamma
    exact = jacobian([gamma, 1.0, length], eta, zeta=zeta)
    found = stability(eta, zeta=zeta, length=length).paper  # with these three corrected
    by_q, by_r = slopes(gamma, 1.0)
    printed_gamma = eta / gamma * by_q.i1 - eta * zeta * gamma
    assert exact[0, 0] == pytest.approx(found.lambda_gamma) == pytest.approx(eta / gamma * by_q.i1 - 2 * eta * zeta)
    assert exact[0, 0] != pytest.approx(printed_gamma, rel=0.1)
    assert exact[1, 1] == pytest.approx(found.lambda_overlap, rel=1e-3)
    assert exact[1, 1] != pytest.approx(found.lambda_overlap / 2, rel=0.1)  # the stray ½
    right = eta**2 * gamma**2 / (2 * length**3) * by_r.i2
    assert exact[2, 1] == pytest.approx(right)
    assert exact[2, 1] != pytest.approx(right * length, rel=0.1)  # L₀² as printed


def test_proposition_2_lambda_q_of_relu_has_eta_in_it() -> None:
    eta, zeta = 0.2, 0.25
    q0 = 1 / (1 + 2 * zeta)
    exact = jacobian([q0, 1.0, 1.0], eta, zeta=zeta)[0, 0]
    assert exact == pytest.approx(-eta * (zeta + 0.5))
    assert exact != pytest.approx(-zeta - 0.5, rel=0.1)
    assert exact != pytest.approx(eta / q0 * (-1 + 1 / (2 * q0) - 2 * zeta), rel=0.1)


def test_proposition_2_sigmoid_has_a_fixed_point_of_its_own() -> None:
    zeta = 0.25
    assert rate([1 / (1 + 2 * zeta), 1.0, 1.0], 1.0, zeta=zeta, activation="erf")[0] < -0.05
    gamma = fixed_point(zeta=zeta, activation="erf").gamma
    assert rate([gamma, 1.0, 1.0], 1.0, zeta=zeta, activation="erf")[0] == pytest.approx(0, abs=1e-12)


def by_differences(eta: float, zeta: float, activation: str, length: float) -> np.ndarray:
    """∂(dγ/dt, dR/dt)/∂(γ, R) at (γ₀, 1) from eqs. 9 and 10 alone; R is moved to one side."""
    gamma = fixed_point(zeta=zeta, activation=activation).gamma

    def speed(g: float, r: float) -> np.ndarray:
        return rate([g, r, length], eta, zeta=zeta, activation=activation)[:2]

    h, small = 1e-6, 1e-8
    by_gamma = (speed(gamma + h, 1.0) - speed(gamma - h, 1.0)) / (2 * h)
    return np.column_stack([by_gamma, (speed(gamma, 1.0) - speed(gamma, 1 - small)) / small])


@pytest.mark.parametrize(("activation", "zeta"), [("relu", 0.05), ("relu", 0.25), ("erf", 0.1)])
def test_proposition_1_leaves_out_how_gamma_turns_the_overlap(activation: str, zeta: float) -> None:
    """J₂₁ is printed as 0; it has η², as the part of J₂₂ has that is kept, and is of the order of ζ."""
    eta, length, h = 1.1, 1.2, 1e-6
    gamma = fixed_point(zeta=zeta, activation=activation).gamma
    numeric = by_differences(eta, zeta, activation, length)
    above, at, below = (averages_by_quadrature(q, 1.0, activation).i2 for q in (gamma + h, gamma, gamma - h))
    right = -(eta**2) * gamma / (2 * length**4) * (gamma * (above - below) / (2 * h) + 2 * at)
    assert numeric[1, 0] == pytest.approx(right, rel=1e-4)
    kept = -(eta**2) * gamma**2 / (2 * length**4) * slopes(gamma, 1.0, activation)[1].i2
    assert abs(right) > 0.01 * abs(kept)
    found = stability(eta, zeta=zeta, activation=activation, length=length)
    right_ones = np.sort(np.linalg.eigvals(numeric).real)
    np.testing.assert_allclose(np.sort(np.array(found.eigenvalues).real), right_ones, atol=1e-3)
    printed = np.sort([found.paper.lambda_gamma, found.paper.lambda_overlap])
    assert np.abs(printed - right_ones).max() > 5e-3


@pytest.mark.parametrize(("activation", "zeta"), [("relu", 0.1), ("relu", 0.25), ("erf", 0.1)])
def test_table_2_the_maximum_of_batch_norm_is_not_that_of_the_jacobian(activation: str, zeta: float) -> None:
    """Between the two maxima the paper's λ_R is below 0, and an eigenvalue of eqs. 9 and 10 is above."""
    found = stability(1.0, zeta=zeta, activation=activation)
    assert found.eta_max < found.paper.eta_max
    middle = (found.eta_max + found.paper.eta_max) / 2 / found.fixed_point.gamma
    between = stability(middle, zeta=zeta, activation=activation)
    assert between.paper.lambda_overlap < 0
    assert np.linalg.eigvals(by_differences(middle, zeta, activation, 1.0)).real.max() > 0.01
    if activation == "relu":
        assert found.paper.eta_max == pytest.approx(2 + 4 * zeta)
        assert found.eta_max == pytest.approx(2 / (1 - 2.5 * (1 - found.fixed_point.gamma) ** 2))


def test_proposition_3_has_no_margin_of_the_order_of_zeta() -> None:
    """η_max − 2 is 20ζ² to first order: less than the 2ζ of Prop. 3 for the ζ of any batch of 8 or more."""
    small = 1e-3
    assert stability(0.1, zeta=small).eta_max - 2 == pytest.approx(20 * small**2, rel=0.02)
    for zeta in (0.014, 0.05, 0.1):
        found = stability(0.1, zeta=zeta)
        assert 2 < found.eta_max < 2 + 2 * zeta < found.paper.eta_max == pytest.approx(2 + 4 * zeta)
    assert stability(0.1, zeta=0.25).eta_max > 2 + 2 * 0.25


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_table_2_the_overlap_does_not_come_to_1_under_a_decay(activation: str) -> None:
    """(γ₀, 1) stands still to the first order in η only; R rests below 1, at no rate with a jump."""
    zeta = 0.1
    gamma = fixed_point(zeta=zeta, activation=activation).gamma
    assert rate([gamma, 1.0, 1.0], 1.0 / gamma, zeta=zeta, activation=activation)[1] < -1e-3
    found = [resting_point(effective / gamma, zeta=zeta, activation=activation) for effective in (1.0, 2.0, 4.0)]
    assert 0.995 > found[0].overlap > found[1].overlap > found[2].overlap
    for point, effective in zip(found, (1.0, 2.0, 4.0), strict=True):
        speed = rate(point, effective / gamma, zeta=zeta, activation=activation)
        np.testing.assert_allclose(speed[:2], 0, atol=1e-9)
        assert speed[2] > 0  # the length alone moves, and the effective rate falls


def test_section_4_losses_need_the_noise() -> None:
    """Fitted to w*ᵀx the student has nothing to resist; fitted to ȳ it has the excess risk of eq. 14."""
    rng = np.random.default_rng(0)
    n, p = 200, 400
    x, teacher = rng.standard_normal((p, n)) / math.sqrt(n), rng.standard_normal(n)
    noise = 0.5 * rng.standard_normal(p)

    def excess(labels: np.ndarray) -> float:
        return float(np.mean((np.linalg.lstsq(x, labels, rcond=None)[0] - teacher) ** 2))

    assert excess(x @ teacher) < 1e-12
    assert excess(x @ teacher + noise) == pytest.approx(float(sgd_curve(2.0).excess_risk), rel=0.2)


@pytest.mark.parametrize(
    ("inputs", "steps", "seeds"), [(128, (500, 8000), 3), pytest.param(256, (1000, 16_000), 4, marks=pytest.mark.slow)]
)
def test_section_4_batch_norm_does_not_stop_at_the_curve_of_0_014(inputs: int, steps: tuple, seeds: int) -> None:
    """Its noise decays the outputs on the training set, not ‖w‖²: near load 1 it overfits on, if trained on."""
    ridge = float(ridge_curve(1.0, 0.014).excess_risk)
    trained = [
        float(np.mean([simulate_linear([1.0], inputs=inputs, steps=n, seed=s).excess_risk[0] for s in range(seeds)]))
        for n in steps
    ]
    assert trained[0] < ridge < trained[1] / 1.5
