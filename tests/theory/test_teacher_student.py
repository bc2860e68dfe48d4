"""The dynamics of the order parameters: averages by quadrature, slopes by differences, ends by integration."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from scipy.special import erf

from trimtab.theory.quadrature import averages_by_quadrature
from trimtab.theory.teacher_student import (
    averages,
    fixed_point,
    jacobian,
    rate,
    resting_point,
    slopes,
    solve,
    stability,
)

ACTIVATIONS = ("relu", "erf")
METHODS = (("bn", 0.25), ("bn", 0.0), ("wn", 0.0), ("sgd", 0.0))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@given(q=st.floats(0.05, 1.6), r=st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, 0.0, 1.0])))
def test_averages_against_quadrature(activation: str, q: float, r: float) -> None:
    assert averages(q, r, activation) == pytest.approx(averages_by_quadrature(q, r, activation), abs=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_averages_against_drawn_inputs(activation: str) -> None:
    q, r = 1.2, 0.6
    rng = np.random.default_rng(0)
    v, aside = rng.standard_normal((2, 400_000))
    u = q * (r * v + math.sqrt(1 - r**2) * aside)
    if activation == "relu":
        delta = (u > 0) * (np.maximum(v, 0) - u)
    else:
        delta = math.sqrt(2 / math.pi) * np.exp(-(u**2) / 2) * (erf(v / math.sqrt(2)) - erf(u / math.sqrt(2)))
    for found, drawn in zip(averages(q, r, activation), (delta * u, delta**2, delta * v), strict=True):
        assert abs(found - drawn.mean()) < 4 * drawn.std() / math.sqrt(drawn.size)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@given(q=st.floats(0.2, 2), r=st.floats(-0.95, 0.95))
def test_slopes_against_differences(activation: str, q: float, r: float) -> None:
    step = 1e-5
    by_q, by_r = slopes(q, r, activation)
    for slope, ahead, behind in (
        (by_q, averages(q + step, r, activation), averages(q - step, r, activation)),
        (by_r, averages(q, r + step, activation), averages(q, r - step, activation)),
    ):
        assert slope == pytest.approx((np.array(ahead) - np.array(behind)) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("method", "zeta"), METHODS)
@given(gamma=st.floats(0.4, 2), overlap=st.floats(-0.9, 0.9), length=st.floats(0.6, 2), eta=st.floats(0.1, 2))
def test_jacobian_against_differences(
    activation: str, method: str, zeta: float, gamma: float, overlap: float, length: float, eta: float
) -> None:
    kind = {"method": method, "zeta": zeta, "activation": activation}
    state = np.array([length if method == "sgd" else gamma, overlap, length])
    found = jacobian(state, eta, **kind)
    for column in range(3):
        move = np.zeros(3)
        move[column] = 1e-6
        if method == "sgd":  # γ and L are one
            move[0] = move[2]
        slope = (rate(state + move, eta, **kind) - rate(state - move, eta, **kind)) / 2e-6
        if method == "sgd":
            slope[0] = 0.0
            if column == 0:
                slope[:] = 0.0
        np.testing.assert_allclose(found[:, column], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@given(zeta=st.floats(0, 20))
def test_fixed_point_stands_still_to_first_order(activation: str, zeta: float) -> None:
    point = fixed_point(zeta=zeta, activation=activation, length=1.5)
    moved = rate(point, 1e-4, zeta=zeta, activation=activation) / 1e-4
    assert np.abs(moved).max() < 1e-3  # what is left is η·I₂
    assert moved[0] == pytest.approx(0, abs=1e-10)


def test_fixed_points_have_the_values_of_the_table() -> None:
    assert fixed_point(zeta=0.25) == (1 / 1.5, 1.0, 1.0)
    assert fixed_point(method="wn", length=2.0) == (1.0, 1.0, 2.0)
    assert fixed_point(method="sgd", activation="erf") == (1.0, 1.0, 1.0)
    assert fixed_point(zeta=0.1, activation="erf").gamma == pytest.approx(0.670, abs=5e-4)
    assert fixed_point(zeta=0.25, activation="erf").gamma == pytest.approx(0.509, abs=5e-4)


@given(zeta=st.floats(0, 3), eta=st.floats(0.05, 5), length=st.floats(0.5, 3))
def test_relu_learning_rates_of_the_paper_in_closed_form(zeta: float, eta: float, length: float) -> None:
    found = stability(eta, zeta=zeta, length=length)
    assert found.eta_eff == pytest.approx(eta / (1 + 2 * zeta) / length**2)
    assert found.paper.eta_max == pytest.approx(2 + 4 * zeta)
    assert found.paper.lambda_gamma == pytest.approx(-eta * (0.5 + zeta))
    assert (found.paper.lambda_overlap < 0) == (found.eta_eff < found.paper.eta_max)


def relu_maximum(zeta: float) -> float:
    """det of the Jacobian by (γ, R) at (γ₀, 1), set to 0 by hand: (½/γ₀)(γ₀x + ½γ₀²x²(½(1−γ₀)² − γ₀)) = ¼x²γ₀(…)."""
    return 2 / (1 - 2.5 * (1 - 1 / (1 + 2 * zeta)) ** 2)


@given(zeta=st.floats(0, 0.5), length=st.floats(0.1, 10))
def test_relu_maximum_of_the_jacobian_in_closed_form(zeta: float, length: float) -> None:
    assert stability(1.0, zeta=zeta, length=length).eta_max == pytest.approx(relu_maximum(zeta), rel=1e-9)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("method", "zeta"), [*METHODS, ("bn", 0.05), ("bn", 1.0)])
@pytest.mark.parametrize("eta", [0.3, 1.0, 2.8])
def test_eigenvalues_are_those_of_the_jacobian(activation: str, method: str, zeta: float, eta: float) -> None:
    length = 1.0 if method == "sgd" else 1.4
    found = stability(eta, method=method, zeta=zeta, activation=activation, length=length)
    exact = jacobian(found.fixed_point, eta, method=method, zeta=zeta, activation=activation)
    whole = exact[1:, 1:] if method == "sgd" else exact
    held = exact[1:, 1:] if method == "sgd" else exact[:2, :2]
    for values, matrix in ((found.eigenvalues, held), (found.with_length, whole)):
        # λ is an eigenvalue where J − λ is singular; all of them are there if their sum is the trace.
        for value in values:
            smallest = np.linalg.svd(matrix - value * np.eye(len(matrix)), compute_uv=False)[-1]
            assert smallest < 1e-9 * max(1.0, np.abs(matrix).max())
        assert sum(values) == pytest.approx(np.trace(matrix), abs=1e-9)
        assert values[0].real == max(value.real for value in values)
    paper = (found.paper.lambda_gamma, found.paper.lambda_overlap)
    if zeta == 0:
        np.testing.assert_allclose(sorted(v.real for v in found.eigenvalues), sorted(paper), atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("method", "zeta"), [*METHODS, ("bn", 0.1), ("bn", 0.75)])
def test_the_maximum_is_where_the_largest_real_part_changes_its_sign(activation: str, method: str, zeta: float) -> None:
    kind = {"method": method, "zeta": zeta, "activation": activation}
    length = 1.0 if method == "sgd" else 0.7
    eta = length**2 / fixed_point(**kind).gamma  # η_eff = 1
    maximum = stability(eta, length=length, **kind).eta_max
    for factor, stable in ((0.99, True), (1.01, False), (0.3, True)):
        found = stability(eta * maximum * factor, length=length, **kind)
        assert found.stable == stable == (found.eta_eff < found.eta_max)
        matrix = jacobian(found.fixed_point, eta * maximum * factor, **kind)
        held = matrix[1:, 1:] if method == "sgd" else matrix[:2, :2]
        assert (np.linalg.eigvals(held).real.max() < 0) == stable


def test_what_the_paper_calls_stable_need_not_be() -> None:
    found = stability(2.8, zeta=0.1)
    assert found.paper.lambda_overlap < 0 and found.eta_eff < found.paper.eta_max
    assert not found.stable
    assert found.eigenvalues[0].real == pytest.approx(0.172, abs=1e-3)
    assert found.eigenvalues[1].real == pytest.approx(-1.954, abs=1e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("zeta", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("eta", [0.4, 2.8])
def test_two_paths_part_as_the_linearization_says(activation: str, zeta: float, eta: float) -> None:
    """About a point that does not stand still the difference of two paths is still exp(Jt) times that at the start."""
    point = np.array(fixed_point(zeta=zeta, activation=activation))
    matrix = jacobian(point, eta, zeta=zeta, activation=activation)
    t, moved = 0.01, np.array([2e-4, -1e-4, 1e-4])
    near, other = (
        solve([t], eta, zeta=zeta, activation=activation, gamma=s[0], overlap=s[1], length=s[2])
        for s in (point - [0, 1e-4, 0], point - [0, 1e-4, 0] + moved)
    )
    apart = np.array([getattr(other, n)[0] - getattr(near, n)[0] for n in ("gamma", "overlap", "length")])
    np.testing.assert_allclose(apart, expm(matrix * t) @ moved, atol=4e-3 * np.abs(moved).max())


@pytest.mark.parametrize(("method", "eta"), [("wn", 0.5), ("sgd", 0.5), ("sgd", 1.9), ("sgd", 2.1), ("wn", 2.1)])
def test_the_way_to_the_fixed_point_is_the_eigenvalue(method: str, eta: float) -> None:
    t = np.array([0.5, 1.0])
    path = solve(t, eta, method=method, overlap=1 - 1e-6)
    away = 1 - path.overlap
    found = stability(eta, method=method)
    speed = math.log(away[1] / away[0]) / 0.5
    assert min(abs(speed - value) for value in found.eigenvalues) < 5e-3
    assert speed == pytest.approx(found.paper.lambda_overlap, abs=5e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("zeta", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("effective", [0.5, 1.6, 5.0])
def test_with_the_length_held_the_paths_end_at_the_resting_point(
    activation: str, zeta: float, effective: float
) -> None:
    eta, length = effective * 1.3**2 / fixed_point(zeta=zeta, activation=activation).gamma, 1.3
    found = resting_point(eta, zeta=zeta, activation=activation, length=length)

    def slope(_: float, state: np.ndarray) -> np.ndarray:
        return rate([state[0], min(state[1], 1.0), length], eta, zeta=zeta, activation=activation)[:2]

    end = solve_ivp(slope, (0.0, 400.0), [0.8, 0.5], method="LSODA", rtol=1e-10, atol=1e-12).y[:, -1]
    np.testing.assert_allclose(end, found[:2], atol=1e-6)
    assert (found.overlap < 1 - 1e-6) == (zeta > 0 or effective > stability(eta, activation=activation).eta_max)
    held = jacobian(found, eta, zeta=zeta, activation=activation)[:2, :2]
    assert np.linalg.eigvals(held).real.max() < 0


@given(zeta=st.floats(0.01, 3), effective=st.floats(0.01, 100), length=st.floats(0.3, 3))
def test_for_a_decay_no_learning_rate_is_the_largest(zeta: float, effective: float, length: float) -> None:
    """At every η the resting point attracts, and it only moves away from R = 1."""
    eta = effective * length**2 * (1 + 2 * zeta)
    found, further = (resting_point(e, zeta=zeta, length=length) for e in (eta, 1.1 * eta))
    assert np.linalg.eigvals(jacobian(found, eta, zeta=zeta)[:2, :2]).real.max() < 0
    assert further.overlap < found.overlap < 1


def test_a_short_weight_grows_until_its_rate_is_stable() -> None:
    """WN with η_eff = η/L² far above the maximum of 2: SGD diverges there, WN lengthens w instead."""
    path = solve(np.linspace(0, 400, 50), 3.0, method="wn", length=0.3)
    assert 3.0 / path.length[0] ** 2 > 30
    assert 3.0 / path.length[-1] ** 2 < 2
    assert path.overlap[-1] > 0.999
    sgd = solve([20.0], 3.0, method="sgd")
    assert sgd.length[-1] > 100


def test_batch_norm_ends_at_its_fixed_point_while_its_weight_grows() -> None:
    path = solve(np.linspace(0, 2000, 20), 0.2, zeta=0.25)
    assert path.gamma[-1] == pytest.approx(1 / 1.5, abs=2e-3)
    assert path.overlap[-1] == pytest.approx(1, abs=5e-3)
    assert path.length[-1] > path.length[-2] > 1


@pytest.mark.parametrize("length", [1e-9, 1e-12, 1e-20])
def test_a_very_short_weight_is_as_one_that_is_short(length: float) -> None:
    """The first sample alone gives it its length; a start that close to 0 once hung the integration."""
    short, shorter = (solve([0.0, 1.0], 1.0, length=value) for value in (1e-6, length))
    for name in ("gamma", "overlap", "length"):
        assert getattr(shorter, name)[1] == pytest.approx(getattr(short, name)[1], rel=1e-6)


def test_divergence_is_said() -> None:
    with pytest.raises(ValueError, match="the dynamics diverge"):
        solve([2000.0], 8.0, method="sgd")


def test_bad_input_is_named() -> None:
    for message, call in (
        ("method must be one of bn, wn, sgd", lambda: solve([1.0], 1.0, method="ln")),
        ("activation must be one of relu, erf", lambda: averages(1.0, 1.0, "gelu")),
        ("eta must be positive", lambda: solve([1.0], math.nan)),
        ("zeta must be 0 or larger", lambda: fixed_point(zeta=-0.1)),
        ("zeta is BatchNorm's decay", lambda: solve([1.0], 1.0, method="wn", zeta=0.1)),
        ("overlap must lie", lambda: solve([1.0], 1.0, overlap=1.5)),
        ("length must be positive", lambda: solve([1.0], 1.0, length=0.0)),
        ("length must be positive", lambda: fixed_point(length=-1.0)),
        ("gamma must be positive", lambda: solve([1.0], 1.0, gamma=0.0)),
        ("set length alone", lambda: solve([1.0], 1.0, method="sgd", gamma=0.5)),
        ("times must be", lambda: solve([], 1.0)),
        ("times must be", lambda: solve([2.0, 1.0], 1.0)),
        ("times must be", lambda: solve(["a"], 1.0)),
        ("eta must be positive", lambda: rate([1.0, 0.0, 1.0], "a")),
        ("eta must be positive", lambda: stability(1e200)),
        ("method must be one of bn, wn, sgd", lambda: rate([1.0, 0.0, 1.0], 1.0, method="xx")),
        ("zeta is BatchNorm's decay", lambda: rate([1.0, 0.0, 1.0], 1.0, method="wn", zeta=0.1)),
        ("length must be positive", lambda: rate([1.0, 0.0, 0.0], 1.0)),
        ("gamma must be positive", lambda: jacobian([0.0, 0.0, 1.0], 1.0)),
        ("overlap must", lambda: rate([1.0, math.nan, 1.0], 1.0)),
        ("state must be the three numbers", lambda: rate([1.0, 0.0], 1.0)),
        ("state must have γ = L", lambda: rate([1.0, 0.0, 2.0], 1.0, method="sgd")),
        ("r must lie", lambda: averages(1.0, 2.0)),
        ("r must lie", lambda: averages(1.0, [0.5, math.nan], "erf")),
        ("r must lie", lambda: slopes(1.0, 2.0)),
        ("q must be 0 or larger", lambda: averages(-1.0, 0.5)),
        ("q and r must be numbers", lambda: averages("a", 0.5)),
        ("length must be positive", lambda: resting_point(1.0, length=0.0)),
        ("eta = 1e\\+09 is so large", lambda: resting_point(1e9)),
        ("length must be positive", lambda: solve([1.0], 1.0, length=1e-60)),
        ("the integration to t = 1e\\+300 would not end", lambda: solve([1e300], 1.0)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
