"""The fixed point of the dynamics, its stability, and the largest learning rate (regularization paper, Table 2)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from trimtab.theory.teacher_student.averages import kind
from trimtab.theory.teacher_student.dynamics import Array, check_setting, check_size, unchecked_jacobian, unchecked_rate

Eigenvalues = tuple[complex, ...]


class FixedPoint(NamedTuple):
    """(γ₀, R₀, L₀)."""

    gamma: float
    overlap: float
    length: float


@dataclass(frozen=True)
class PaperStability:
    """The same by the paper's formulas (Table 2, eq. 12, Props. 1 to 3), which the Jacobian has for ζ = 0 only.

    For ζ > 0 they leave out J₂₁ = −(η²γ₀/2L₀⁴)(γ₀ ∂I₂/∂γ + 2I₂), of the order of ζ, and I₂, of the order of ζ², in
    J₂₂; both are of the order η², as the term with ∂I₂/∂R is which they keep.

    Attributes:
        eta_max: (∂(γ₀I₃ − I₁)/∂R /γ₀ − ζγ₀)/(½ ∂I₂/∂R), which is to bound η_eff: 2 + 4ζ for ReLU.
        lambda_gamma: (η/γ₀)∂I₁/∂γ − 2ηζ; for SGD that of the length, η ∂I₁/∂γ.
        lambda_overlap: ∂I₂/∂R · ηγ₀/(2L₀²) · (η_max − η_eff).
    """

    eta_max: float
    lambda_gamma: float
    lambda_overlap: float


@dataclass(frozen=True)
class Stability:
    """The stability of the point (γ₀, 1, L₀) with L held fixed: the Jacobian of eqs. 9 and 10.

    Attributes:
        fixed_point: The point.
        eta_eff: ηγ₀/L₀².
        eta_max: The η_eff at which the largest real part of the eigenvalues comes to 0; infinite if it never does. For
            ReLU 2/(1 − (5/2)(1−γ₀)²) up to ζ = ½.
        eigenvalues: Of the Jacobian by (γ, R), for SGD by (R, L), that of the largest real part first.
        with_length: Of the Jacobian by (γ, R, L).
        paper: The values by the paper's formulas.
    """

    fixed_point: FixedPoint
    eta_eff: float
    eta_max: float
    eigenvalues: Eigenvalues
    with_length: Eigenvalues
    paper: PaperStability

    @property
    def stable(self) -> bool:
        """Whether all eigenvalues with L held fixed have a negative real part, that is, η_eff < η_max."""
        return self.eigenvalues[0].real < 0


def fixed_point(*, method: str = "bn", zeta: float = 0.0, activation: str = "relu", length: float = 1.0) -> FixedPoint:
    """Where the dynamics end for small η (regularization paper, Table 2).

    γ₀ solves I₁(γ₀, 1) = ζγ₀²: 1/(1+2ζ) for ReLU, by root finding for erf. L₀ is free for BN and WN and 1 for SGD. With
    ζ > 0, I₂ does not vanish there: L grows on, and R stays below 1 (see `resting_point`). It is a fixed point for
    small η only.
    """
    check_setting(method, 1.0, zeta, activation)
    check_size(length, "length")
    if method == "sgd":
        return FixedPoint(1.0, 1.0, 1.0)
    gamma = 1 / (1 + 2 * zeta) if activation == "relu" else _gamma(1.0, zeta, activation)
    return FixedPoint(gamma, 1.0, length)


def resting_point(eta: float, *, zeta: float = 0.0, activation: str = "relu", length: float = 1.0) -> FixedPoint:
    """Where γ and R of BN (for ζ = 0: of WN) come to rest at this η, were L held: the root of eqs. 9 and 10.

    For ζ = 0 that is R = 1 up to η_max, and below 1 beyond. For ζ > 0 it is below 1 at every η, and moves on without a
    jump: there is no largest learning rate then, only a worse overlap. Not in the paper, which takes R = 1.

    Raises:
        ValueError: If an argument is invalid, or η is so large that nothing is learned.
    """
    check_setting("bn", eta, zeta, activation)
    check_size(length, "length")

    def turn(overlap: float) -> float:
        gamma = _gamma(overlap, zeta, activation)
        return float(unchecked_rate((gamma, overlap, length), eta, "bn", zeta, activation)[1])

    low, high = 1e-6, 1 - 1e-9
    if turn(low) <= 0:
        raise ValueError(f"eta = {eta:g} is so large for length = {length:g} that the overlap rests at 0.")
    overlap = 1.0 if turn(high) > 0 else float(brentq(turn, low, high, xtol=1e-14))
    return FixedPoint(_gamma(overlap, zeta, activation), overlap, length)


def stability(
    eta: float, *, method: str = "bn", zeta: float = 0.0, activation: str = "relu", length: float = 1.0
) -> Stability:
    """The eigenvalues at the fixed point, and the maximum and effective learning rate (Table 2, eq. 12).

    They are those of the Jacobian of eqs. 9 and 10 at (γ₀, 1), L₀ held. The paper's formulas stand beside them; for
    ζ = 0 they are the same. η_max bounds η_eff = ηγ₀/L₀², not η.
    """
    check_setting(method, eta, zeta, activation)
    point = fixed_point(method=method, zeta=zeta, activation=activation, length=length)
    per_eta = point.gamma / point.length**2

    def matrix(effective: float) -> Array:
        return unchecked_jacobian(point, effective / per_eta, method, zeta, activation)

    def largest(effective: float) -> float:
        return _of_two(_held(matrix(effective), method))[0].real

    eta_eff = eta * per_eta
    whole = matrix(eta_eff)
    block = whole[1:, 1:] if method == "sgd" else whole
    with_length = sorted((complex(v) for v in np.linalg.eigvals(block)), key=lambda v: -v.real)
    return Stability(
        point,
        eta_eff,
        _first_root(largest),
        _of_two(_held(whole, method)),
        tuple(with_length),
        _paper(point, eta, eta_eff, zeta, activation),
    )


def _paper(point: FixedPoint, eta: float, eta_eff: float, zeta: float, activation: str) -> PaperStability:
    gamma = point.gamma
    by_q, by_r = kind(activation).slopes(gamma, 1.0)
    eta_max = ((gamma * by_r.i3 - by_r.i1) / gamma - zeta * gamma) / (by_r.i2 / 2)
    return PaperStability(
        float(eta_max),
        float(eta / gamma * by_q.i1 - 2 * eta * zeta),
        float(by_r.i2 * eta_eff / 2 * (eta_max - eta_eff)),
    )


def _gamma(overlap: float, zeta: float, activation: str) -> float:
    """The root of I₁(γ, R) = ζγ² for R > 0: I₁/γ² falls from infinity, where γ is small beside R, to below 0."""
    formulas = kind(activation)
    low = 0.1 * overlap / (1 + zeta)
    return float(brentq(lambda q: formulas.averages(q, overlap).i1 / q**2 - zeta, low, 1.1, xtol=1e-14 * low))


def _held(whole: Array, method: str) -> Array:
    """The rows and columns of (γ, R) in the Jacobian; for SGD, which has no γ, those of (R, L)."""
    return whole[1:, 1:] if method == "sgd" else whole[:2, :2]


def _of_two(matrix: Array) -> Eigenvalues:
    """The eigenvalues of a 2×2 matrix, the larger real part first; the small one is as accurate as the large one."""
    (a, b), (c, d) = matrix.tolist()
    middle, inside = (a + d) / 2, ((a - d) / 2) ** 2 + b * c
    if inside < 0:
        return complex(middle, math.sqrt(-inside)), complex(middle, -math.sqrt(-inside))
    far = middle + math.copysign(math.sqrt(inside), middle)
    near = (a * d - b * c) / far if far else 0.0
    return complex(max(far, near)), complex(min(far, near))


def _first_root(largest: Callable[[float], float]) -> float:
    """The smallest η_eff at which the largest real part is no longer negative."""
    steps = np.geomspace(1e-3, 1e6, 120).tolist()
    for low, high in pairwise(steps):
        if largest(high) >= 0:
            return float(brentq(largest, low, high, xtol=1e-14 * low))
    return math.inf
