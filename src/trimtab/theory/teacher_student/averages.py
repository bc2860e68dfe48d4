"""The Gaussian averages that drive the order parameters (regularization paper, App. 2, corrected)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Averages(NamedTuple):
    """I₁ = ⟨δ w̃ᵀx⟩, I₂ = ⟨δ²⟩, I₃ = ⟨δ w*ᵀx⟩ with δ = g′(w̃ᵀx)[g(w*ᵀx) − g(w̃ᵀx)], or their derivatives."""

    i1: Any
    i2: Any
    i3: Any


class Kind(NamedTuple):
    """I₁, I₂, I₃ of one activation at (Q, R), and their derivatives by Q and by R. Arguments are not checked."""

    averages: Callable[[Any, Any], Averages]
    slopes: Callable[[float, float], tuple[Averages, Averages]]


def averages(q: Any, r: Any, activation: str = "relu") -> Averages:
    """I₁, I₂, I₃ for a student of length q and overlap r (regularization paper, App. 2, corrected).

    Args:
        q: Q = γ, a number or an array, not negative.
        r: R in [−1, 1].
        activation: "relu", or "erf" for erf(x/√2).

    Raises:
        ValueError: If an argument is invalid.
    """
    formulas = kind(activation)
    _check(q, r)
    return formulas.averages(q, r)


def slopes(q: float, r: float, activation: str = "relu") -> tuple[Averages, Averages]:
    """The derivatives of I₁, I₂, I₃ by Q and by R; the arguments are those of `averages`, one number each."""
    formulas = kind(activation)
    _check(q, r)
    return formulas.slopes(q, r)


def kind(activation: str) -> Kind:
    """The formulas of that activation; an unknown name is an error that lists all names."""
    if activation not in KINDS:
        raise ValueError(f"activation must be one of {', '.join(KINDS)}, not {activation!r}.")
    return KINDS[activation]


def _check(q: Any, r: Any) -> None:
    try:
        sizes, overlaps = np.asarray(q, dtype=np.float64), np.asarray(r, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"q and r must be numbers or arrays of them, not {q!r} and {r!r}.") from None
    if not (np.isfinite(sizes).all() and (sizes >= 0).all()):
        raise ValueError(f"q must be 0 or larger and finite, not {q!r}.")
    if not (np.abs(overlaps) <= 1).all():
        raise ValueError(f"r must lie between -1 and 1, not {r!r}.")


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


KINDS: dict[str, Kind] = {"relu": Kind(_relu, _relu_slopes), "erf": Kind(_erf, _erf_slopes)}
