"""Descent split into length and direction, as weight normalization does it (Kohler et al. 2018; landscape, Sec. 5)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trimtab.theory.bounds.sides import Array, array, shaped, symmetric
from trimtab.theory.checks import finite, whole


@dataclass(frozen=True)
class Descents:
    """The suboptimality L(w) − L* after each step of two ways to descend, the start first.

    Attributes:
        plain: Of gradient descent at its best rate, 2/(λ_min + λ_max).
        split: Of the descent with length and direction apart.
    """

    plain: Array
    split: Array

    def steps_to(self, accuracy: float) -> tuple[float, float]:
        """After how many steps each is below `accuracy` times what the start has; infinite if never."""
        found = []
        for gaps in (self.plain, self.split):
            below = np.flatnonzero(gaps <= accuracy * self.plain[0])
            found.append(float(below[0]) if len(below) else np.inf)
        return found[0], found[1]


def least_squares_descents(hessian: ArrayLike, target: ArrayLike, start: ArrayLike, steps: int = 1000) -> Descents:
    """Descend L(w) = ½wᵀSw − uᵀw from one start, plainly and with w = g·v/‖v‖_S split into length g and direction v.

    Split as in Kohler et al.: for a given direction the best length is g = uᵀv/‖v‖_S, where the loss is −½(uᵀv)²/vᵀSv.
    Each step sets g so, and moves v against the gradient of that quotient, which leaves ‖v‖ to be whatever it is, with
    the rate ‖v‖²_S/(2L_S·|loss|), L_S being λ_max. Each is one product with S, as in plain descent.

    Args:
        hessian: S, symmetric positive definite.
        target: u; the minimizer is S⁻¹u.
        start: w at the start, with uᵀw ≠ 0.
        steps: How many.

    Raises:
        ValueError: If S is not positive definite, or the start has no part of u.
    """
    matrix = symmetric(hessian, "hessian")
    u = shaped(array(target, "target", 1), "target", (len(matrix),))
    w = shaped(array(start, "start", 1), "start", (len(matrix),))
    steps = whole(steps, "steps")
    spectrum = np.linalg.eigvalsh(matrix)
    if not spectrum[0] > 0:
        raise ValueError("hessian must be positive definite.")
    if finite(float(u @ w), "target @ start") == 0:
        raise ValueError("start must not be orthogonal to target: its direction has no slope.")
    best = -0.5 * float(u @ np.linalg.solve(matrix, u))
    rate = 2 / (spectrum[0] + spectrum[-1])
    plain, split, v = [], [], w.copy()
    for _ in range(steps + 1):
        plain.append(0.5 * w @ matrix @ w - u @ w - best)
        w = w - rate * (matrix @ w - u)
        sv = matrix @ v
        square, along = float(v @ sv), float(u @ v)
        value = -0.5 * along**2 / square
        split.append(value - best)
        slope = -(along * u - along**2 / square * sv) / square
        v = v - square / (2 * spectrum[-1] * abs(value)) * slope
        v = v / np.linalg.norm(v)
    return Descents(np.maximum(plain, 0.0), np.maximum(split, 0.0))
