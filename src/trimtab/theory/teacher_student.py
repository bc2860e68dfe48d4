"""Online learning of a teacher by a student with BN, WN or neither (regularization paper, Sec. 3 and App. 2).

Inputs x ~ N(0, I/N), one sample a step, time t = samples/N, N → ∞. The student is g(w̃ᵀx) with w̃ = √N γ w/‖w‖ for BN and
WN, and g(wᵀx) for SGD. The state is (γ, R, L): the length of w̃, its overlap with the teacher, the length of w (both
over √N). The learning rate η belongs to the loss ½[g(w*ᵀx) − g(w̃ᵀx)]² + ½ζγ², and γ's own rate is η/N. BatchNorm enters
as WN with the decay ζ of Theorem 1. `trimtab.theory.simulation` does the same with vectors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

Array = NDArray[np.float64]

METHODS = ("bn", "wn", "sgd")

ESCAPED = 1e9
"""A student this long does not come back; integrating on would overflow."""


class Averages(NamedTuple):
    """I₁ = ⟨δ w̃ᵀx⟩, I₂ = ⟨δ²⟩, I₃ = ⟨δ w*ᵀx⟩ with δ = g′(w̃ᵀx)[g(w*ᵀx) − g(w̃ᵀx)], or their derivatives."""

    i1: Any
    i2: Any
    i3: Any


class FixedPoint(NamedTuple):
    """(γ₀, R₀, L₀)."""

    gamma: float
    overlap: float
    length: float


@dataclass(frozen=True)
class Trajectory:
    """The order parameters over time; for SGD gamma is the length itself."""

    t: Array
    gamma: Array
    overlap: Array
    length: Array


@dataclass(frozen=True)
class Stability:
    """How a fixed point attracts (regularization paper, Table 2 and eq. 12)."""

    fixed_point: FixedPoint
    eta_max: float
    eta_eff: float
    lambda_gamma: float
    lambda_overlap: float

    @property
    def stable(self) -> bool:
        """Whether the overlap returns to 1, which is η_eff < η_max."""
        return self.lambda_overlap < 0


def averages(q: Any, r: Any, activation: str = "relu") -> Averages:
    """I₁, I₂, I₃ for a student of length q and overlap r (regularization paper, App. 2, corrected).

    Args:
        q: Q = γ, a number or an array.
        r: R in [−1, 1].
        activation: "relu", or "erf" for erf(x/√2).
    """
    return _kind(activation)[0](q, r)


def slopes(q: float, r: float, activation: str = "relu") -> tuple[Averages, Averages]:
    """The derivatives of I₁, I₂, I₃ by Q and by R."""
    return _kind(activation)[1](q, r)


def rate(state: ArrayLike, eta: float, *, method: str = "bn", zeta: float = 0.0, activation: str = "relu") -> Array:
    """d(γ, R, L)/dt (regularization paper, eqs. 9 to 11; for WN ζ = 0; for SGD γ = L and I₁ moves the length).

    For SGD, dL/dt = ηI₁/L + η²I₂/(2L), and eq. 10 holds with γ = L.
    """
    gamma, overlap, length = (float(v) for v in np.asarray(state, dtype=np.float64))
    overlap = min(1.0, max(-1.0, overlap))  # the integrator may try a point a rounding error outside
    i1, i2, i3 = averages(gamma, overlap, activation)
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
    gamma, overlap, length = (float(v) for v in np.asarray(state, dtype=np.float64))
    i1, i2, i3 = averages(gamma, overlap, activation)
    by_q, by_r = slopes(gamma, overlap, activation)
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
    """
    check_setting(method, eta, zeta, activation)
    t = check_start(times, method, gamma, overlap, length)
    start = [length if method == "sgd" else gamma, overlap, length]

    def escape(_: float, state: Array) -> float:
        return float(state[2]) - ESCAPED

    escape.terminal = True  # type: ignore[attr-defined]
    found = solve_ivp(
        lambda _, y: rate(y, eta, method=method, zeta=zeta, activation=activation),
        (0.0, float(t[-1])),
        start,
        method="LSODA",
        t_eval=t,
        rtol=1e-8,
        atol=1e-10,
        events=escape,
    )
    if found.status != 0:
        raise ValueError(f"the dynamics diverge before t = {t[-1]:g}: lower eta or end earlier.")
    return Trajectory(t, found.y[0], np.minimum(found.y[1], 1.0), found.y[2])


def fixed_point(*, method: str = "bn", zeta: float = 0.0, activation: str = "relu", length: float = 1.0) -> FixedPoint:
    """Where the dynamics end for small η (regularization paper, Table 2).

    γ₀ solves I₁(γ₀, 1) = ζγ₀²: 1/(1+2ζ) for ReLU, by root finding for erf. L₀ is free for BN and WN and 1 for SGD. With
    ζ > 0, I₂ does not vanish there and L grows on: it is a fixed point for small η only.
    """
    check_setting(method, 1.0, zeta, activation)
    if not (math.isfinite(length) and length > 0):
        raise ValueError(f"length must be positive and finite, not {length}.")
    if method == "sgd":
        return FixedPoint(1.0, 1.0, 1.0)
    if activation == "relu":
        return FixedPoint(1 / (1 + 2 * zeta), 1.0, length)
    # I₁(Q, 1)/Q² falls from √2/(πQ) at small Q to 0 at Q = 1.
    gamma = brentq(lambda q: averages(q, 1.0, activation).i1 / q**2 - zeta, 0.1 / (1 + zeta), 1.0, xtol=1e-14)
    return FixedPoint(float(gamma), 1.0, length)


def stability(
    eta: float, *, method: str = "bn", zeta: float = 0.0, activation: str = "relu", length: float = 1.0
) -> Stability:
    """Maximum and effective learning rate and the eigenvalues at the fixed point (Table 2, eq. 12, Props. 1 to 3).

    η_max = (∂(γ₀I₃ − I₁)/∂R /γ₀ − ζγ₀)/(½ ∂I₂/∂R) bounds η_eff = ηγ₀/L₀², not η. λ_R = ∂I₂/∂R · ηγ₀/(2L₀²) · (η_max −
    η_eff) and λ_γ = (η/γ₀)∂I₁/∂γ − 2ηζ. As in the paper, I₂ itself (of order ζ²) is dropped, its slope is not. For SGD
    the eigenvalue of γ is that of the length, η ∂I₁/∂γ. λ_L is 0 for BN and WN.
    """
    check_setting(method, eta, zeta, activation)
    point = fixed_point(method=method, zeta=zeta, activation=activation, length=length)
    gamma = point.gamma
    by_q, by_r = slopes(gamma, 1.0, activation)
    eta_max = ((gamma * by_r.i3 - by_r.i1) / gamma - zeta * gamma) / (by_r.i2 / 2)
    eta_eff = eta * gamma / point.length**2
    return Stability(
        point,
        float(eta_max),
        float(eta_eff),
        float(eta / gamma * by_q.i1 - 2 * eta * zeta),
        float(by_r.i2 * eta * gamma / (2 * point.length**2) * (eta_max - eta_eff)),
    )


def check_setting(method: str, eta: float, zeta: float, activation: str) -> None:
    """Refuse what is not a method, a learning rate, a decay or an activation."""
    _kind(activation)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}.")
    if not (math.isfinite(eta) and eta > 0):
        raise ValueError(f"eta must be positive and finite, not {eta}.")
    if not (math.isfinite(zeta) and zeta >= 0):
        raise ValueError(f"zeta must be 0 or larger and finite, not {zeta}.")
    if zeta and method != "bn":
        raise ValueError(f"zeta is BatchNorm's decay: method {method!r} takes none.")


def check_start(times: ArrayLike, method: str, gamma: float, overlap: float, length: float) -> Array:
    """The times as an array, or an error that names what is wrong with them or with the start."""
    t = np.asarray(times, dtype=np.float64)
    if t.ndim != 1 or t.size < 1 or not np.all(np.isfinite(t)) or t[0] < 0 or t[-1] <= 0 or np.any(np.diff(t) <= 0):
        raise ValueError("times must be finite, increasing and end after 0.")
    if not -1 <= overlap <= 1:
        raise ValueError(f"overlap must lie between -1 and 1, not {overlap}.")
    for name, value in (("length", length), ("gamma", gamma)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, not {value}.")
    if method == "sgd" and gamma not in (1.0, length):
        raise ValueError("gamma is the length itself for sgd: set length alone.")
    return t


def _relu(q: Any, r: Any) -> Averages:
    root = np.sqrt(np.maximum(1 - np.square(r), 0))
    cross = (np.pi * r + 2 * root + 2 * r * np.arcsin(r)) / (4 * np.pi)
    both = (np.pi + 2 * r * root + 2 * np.arcsin(r)) / (4 * np.pi)
    return Averages(q * cross - q**2 / 2, q**2 / 2 + both - 2 * q * cross, both - q * r / 2)


def _relu_slopes(q: float, r: float) -> tuple[Averages, Averages]:
    root = math.sqrt(max(1 - r**2, 0.0))
    cross = (math.pi * r + 2 * root + 2 * r * math.asin(r)) / (4 * math.pi)
    cross_r, both_r = (math.pi + 2 * math.asin(r)) / (4 * math.pi), root / math.pi
    return Averages(cross - q, q - 2 * cross, -r / 2), Averages(q * cross_r, both_r - 2 * q * cross_r, both_r - q / 2)


def _erf(q: Any, r: Any) -> Averages:
    q2, p2 = q**2, q**2 * r**2
    d = 1 + 2 * q2 - p2
    front = 2 / (np.pi * (1 + q2))
    i1 = front * (q * r / np.sqrt(2 + 2 * q2 - p2) - q2 / np.sqrt(1 + 2 * q2))
    i2 = (4 / (np.pi**2 * np.sqrt(1 + 2 * q2))) * (
        np.arcsin((1 + 2 * q2 - 2 * p2) / (2 * d))
        + np.arcsin(q2 / (1 + 3 * q2))
        - 2 * np.arcsin(q * r / np.sqrt(2 * (1 + 3 * q2) * d))
    )
    i3 = front * ((1 + q2 - p2) / np.sqrt(2 + 2 * q2 - p2) - q * r / np.sqrt(1 + 2 * q2))
    return Averages(i1, i2, i3)


def _erf_slopes(q: float, r: float) -> tuple[Averages, Averages]:
    # Complex step: exact to rounding, for these formulas are analytic for all Q and |R| ≤ 1.
    step = 1e-30
    by_q, by_r = _erf(complex(q, step), r), _erf(q, complex(r, step))
    return Averages(*(float(v.imag) / step for v in by_q)), Averages(*(float(v.imag) / step for v in by_r))


_Kind = tuple[Callable[[Any, Any], Averages], Callable[[float, float], tuple[Averages, Averages]]]

_KINDS: dict[str, _Kind] = {
    "relu": (_relu, _relu_slopes),
    "erf": (_erf, _erf_slopes),
}


def _kind(activation: str) -> _Kind:
    if activation not in _KINDS:
        raise ValueError(f"activation must be one of {', '.join(_KINDS)}, not {activation!r}.")
    return _KINDS[activation]
