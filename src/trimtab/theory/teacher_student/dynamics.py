"""The differential equations of the order parameters (regularization paper, eqs. 9 to 11), and their derivative."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp

from trimtab.theory.checks import finite
from trimtab.theory.teacher_student.averages import kind

Array = NDArray[np.float64]

METHODS = ("bn", "wn", "sgd")

ESCAPED = 1e9
"""A student this long does not come back; integrating on would overflow."""

SMALLEST, LARGEST = 1e-30, 1e9
"""Lengths, decays and learning rates beyond these would leave the range of floating point in L⁵ and its like."""

MOST_EVALUATIONS = 200_000
"""Seconds; what takes more will not end."""


@dataclass(frozen=True)
class Trajectory:
    """The order parameters over time; for SGD gamma is the length itself."""

    t: Array
    gamma: Array
    overlap: Array
    length: Array


def rate(state: ArrayLike, eta: float, *, method: str = "bn", zeta: float = 0.0, activation: str = "relu") -> Array:
    """d(γ, R, L)/dt (regularization paper, eqs. 9 to 11; for WN ζ = 0; for SGD γ = L and I₁ moves the length).

    For SGD, dL/dt = ηI₁/L + η²I₂/(2L), and eq. 10 holds with γ = L.

    Raises:
        ValueError: If an argument is invalid.
    """
    check_setting(method, eta, zeta, activation)
    return unchecked_rate(check_state(state, method), eta, method, zeta, activation)


def unchecked_rate(state: Any, eta: float, method: str, zeta: float, activation: str) -> Array:
    """`rate` without checks of its arguments, for inner loops."""
    gamma, overlap, length = (float(v) for v in state)
    overlap = min(1.0, max(-1.0, overlap))  # the integrator may try a point a rounding error outside
    i1, i2, i3 = kind(activation).averages(gamma, overlap)
    spread = eta**2 * gamma**2 / (2 * length**3) * i2
    turn = eta / length**2 * (gamma * i3 - overlap * i1) - spread * overlap / length
    if method == "sgd":
        grow = eta * i1 / length + spread
        return np.array([grow, turn, grow])
    return np.array([eta * i1 / gamma - eta * zeta * gamma, turn, spread])


def jacobian(state: ArrayLike, eta: float, *, method: str = "bn", zeta: float = 0.0, activation: str = "relu") -> Array:
    """The derivative of `rate` by (γ, R, L), exact at any state.

    For SGD γ and L are one variable: the matrix is that of (R, L), with a first row and column of zeros.
    """
    check_setting(method, eta, zeta, activation)
    return unchecked_jacobian(check_state(state, method), eta, method, zeta, activation)


def unchecked_jacobian(
    state: tuple[float, float, float], eta: float, method: str, zeta: float, activation: str
) -> Array:
    """`jacobian` without checks of its arguments, for inner loops."""
    gamma, overlap, length = state
    formulas = kind(activation)
    i1, i2, i3 = formulas.averages(gamma, overlap)
    by_q, by_r = formulas.slopes(gamma, overlap)
    half = eta**2 * gamma**2 / 2
    turn = gamma * i3 - overlap * i1
    turn_q = eta / length**2 * (i3 + gamma * by_q.i3 - overlap * by_q.i1) - overlap / length**4 * (
        half * by_q.i2 + eta**2 * gamma * i2
    )
    turn_r = eta / length**2 * (gamma * by_r.i3 - i1 - overlap * by_r.i1) - half / length**4 * (i2 + overlap * by_r.i2)
    turn_l = -2 * eta / length**3 * turn + 4 * half * overlap / length**5 * i2
    spread_q = (half * by_q.i2 + eta**2 * gamma * i2) / length**3
    spread_r = half / length**3 * by_r.i2
    spread_l = -3 * half / length**4 * i2
    if method == "sgd":
        grow_r = eta / length * by_r.i1 + spread_r
        grow_l = eta / length * by_q.i1 - eta / length**2 * i1 + spread_q + spread_l
        return np.array([[0.0, 0.0, 0.0], [0.0, turn_r, turn_q + turn_l], [0.0, grow_r, grow_l]])
    pull_q = eta / gamma * by_q.i1 - eta / gamma**2 * i1 - eta * zeta
    return np.array([[pull_q, eta / gamma * by_r.i1, 0.0], [turn_q, turn_r, turn_l], [spread_q, spread_r, spread_l]])


def solve(
    times: ArrayLike,
    eta: float,
    *,
    method: str = "bn",
    zeta: float = 0.0,
    activation: str = "relu",
    gamma: float = 1.0,
    overlap: float = 0.0,
    length: float = 1.0,
) -> Trajectory:
    """Integrate eqs. 9 to 11 from t = 0.

    Args:
        times: Where to report, increasing, from 0 on.
        eta: The learning rate η.
        method: "bn", "wn" or "sgd".
        zeta: ζ; of BN only.
        activation: "relu" or "erf".
        gamma: γ at the start; for SGD the length stands in its place.
        overlap: R at the start.
        length: L at the start.

    Raises:
        ValueError: If an argument is invalid, the length diverges, or the integration would take too long.
    """
    check_setting(method, eta, zeta, activation)
    t = check_start(times, method, gamma, overlap, length)
    start = [length if method == "sgd" else gamma, overlap, length]

    def escape(_: float, state: Array) -> float:
        return float(state[2]) - ESCAPED

    escape.terminal = True  # type: ignore[attr-defined]
    count = 0

    def slope(_: float, state: Array) -> Array:
        nonlocal count
        count += 1
        if count > MOST_EVALUATIONS:
            raise ValueError(
                f"times and length are too far apart: from length = {length:g} the integration to t = {t[-1]:g} would "
                "not end."
            )
        return unchecked_rate(state, eta, method, zeta, activation)

    # A short weight is known to a share of its length, not only to what would be little for one of length 1.
    atol = [1e-10, 1e-10, 1e-10 * min(1.0, length)]
    found = solve_ivp(slope, (0.0, float(t[-1])), start, method="LSODA", t_eval=t, rtol=1e-8, atol=atol, events=escape)
    if found.status != 0:
        raise ValueError(f"the dynamics diverge before t = {t[-1]:g}: lower eta or end earlier.")
    return Trajectory(t, found.y[0], np.minimum(found.y[1], 1.0), found.y[2])


def check_setting(method: str, eta: float, zeta: float, activation: str) -> None:
    """Check method, learning rate, decay and activation."""
    kind(activation)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}.")
    check_size(eta, "eta")
    if not 0 <= finite(zeta, "zeta") <= LARGEST:
        raise ValueError(f"zeta must be 0 or larger and at most {LARGEST:g}, not {zeta}.")
    if zeta and method != "bn":
        raise ValueError(f"zeta is BatchNorm's decay: method {method!r} takes none.")


def check_state(state: ArrayLike, method: str) -> tuple[float, float, float]:
    """γ, R and L, or an error that names what is wrong."""
    try:
        values = np.asarray(state, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != (3,):
        raise ValueError(f"state must be the three numbers (γ, R, L), not {state!r}.")
    gamma, overlap, length = (float(v) for v in values)
    _check_parameters(gamma, overlap, length)
    if method == "sgd" and gamma != length:
        raise ValueError(f"state must have γ = L for sgd, not {gamma} and {length}.")
    return gamma, overlap, length


def check_start(times: ArrayLike, method: str, gamma: float, overlap: float, length: float) -> Array:
    """The times as an array, or an error that names what is wrong with them or with the start."""
    try:
        t = np.asarray(times, dtype=np.float64)
    except (TypeError, ValueError):
        t = np.empty(0)
    if t.ndim != 1 or t.size < 1 or not np.all(np.isfinite(t)) or t[0] < 0 or t[-1] <= 0 or np.any(np.diff(t) <= 0):
        raise ValueError("times must be finite, increasing and end after 0.")
    _check_parameters(gamma, overlap, length)
    if method == "sgd" and gamma not in (1.0, length):
        raise ValueError("gamma is the length itself for sgd: set length alone.")
    return t


def check_size(value: float, name: str) -> None:
    """Refuse a number that is not positive, or too large or small for the equations."""
    try:
        fits = SMALLEST <= finite(value, name) <= LARGEST
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must be positive, from {SMALLEST:g} to {LARGEST:g}, not {value!r}.")


def _check_parameters(gamma: float, overlap: float, length: float) -> None:
    if not -1 <= finite(overlap, "overlap") <= 1:
        raise ValueError(f"overlap must lie between -1 and 1, not {overlap}.")
    check_size(length, "length")
    check_size(gamma, "gamma")
