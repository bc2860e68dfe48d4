"""BatchNorm's step beside BNP's: bnp Prop. 7, Sec. 3.4."""

import numpy as np
from numpy.typing import ArrayLike

from trimtab.theory.bounds.inputs import matrices
from trimtab.theory.bounds.sides import Array, Sides, array, positive, shaped


def over_parametrized(
    inputs: ArrayLike, weight: ArrayLike, bias: ArrayLike, gamma: ArrayLike, beta: ArrayLike
) -> Sides:
    """W B_{β,γ}(h) + b = Ŵ B_{0,1}(h) + b̂ with Ŵ = W diag(γ), b̂ = Wβ + b (bnp Sec. 3.4).

    Condition: BatchNorm stands before the linear layer ("post-activation"), with nothing between them.

    Args:
        inputs: H, one row per sample.
        weight: W, (outputs, n).
        bias: b.
        gamma: γ.
        beta: β.
    """
    normalized = matrices(inputs).normalized[:, 1:]
    width = normalized.shape[1]
    kernel, offset = _layer(weight, bias, width)
    factors, shifts = shaped(gamma, "gamma", (width,)), shaped(beta, "beta", (width,))
    left = (normalized * factors + shifts) @ kernel.T + offset
    right = normalized @ (kernel * factors).T + (kernel @ shifts + offset)
    sizes = (np.abs(normalized * factors) + np.abs(shifts)) @ np.abs(kernel).T + np.abs(offset)
    return Sides(left, right, "==", float(sizes.max()))


def one_step(
    inputs: ArrayLike, weight: ArrayLike, bias: ArrayLike, output_gradient: ArrayLike, learning_rate: float
) -> Sides:
    """One step of BatchNorm B_{0,1} is one step of BNP on the vanilla network that it amounts to (bnp Prop. 7).

    Left: a step in (W, b) of a = W g + b, merged afterwards into Ŵ = W diag(1/σ), b̂ = b − W(μ/σ). Right: BNP's step,
    P Pᵀ/q² times the gradient, in (b̂, Ŵ) of the vanilla layer a = Ŵh + b̂. Rows of both are [b̂; Ŵᵀ].

    Conditions: no gradient through μ and σ; the batch's own biased statistics, ε₁ = ε₂ = 0; and q² = 1, that is N ≥ n.
    For N < n, BNP's step is shorter by q² = n/N. (As printed, b̂ = b − W diag(μ/σ), a vector minus a matrix.)

    Args:
        inputs: H, one row per sample.
        weight: W of the BN network, (outputs, n).
        bias: b of the BN network.
        output_gradient: ∂L/∂a, (N, outputs), the same in both networks.
        learning_rate: α.
    """
    parts = matrices(inputs)
    samples, width = len(parts.augmented), len(parts.mean)
    kernel, offset = _layer(weight, bias, width)
    slopes = shaped(output_gradient, "output_gradient", (samples, len(kernel)))
    rate = positive(learning_rate, "learning_rate")
    change = parts.preconditioner

    before = np.vstack([offset, kernel.T])
    left = change @ (before - rate * parts.normalized.T @ slopes)
    q2 = max(width / samples, 1.0)
    right = change @ before - rate / q2 * change @ change.T @ (parts.augmented.T @ slopes)
    size = np.abs(change) @ (np.abs(before) + rate * np.abs(change).T @ np.abs(parts.augmented).T @ np.abs(slopes))
    return Sides(left, right, "==", float(size.max()), broken=() if q2 == 1 else ("N at least n, so that q² = 1",))


def _layer(weight: ArrayLike, bias: ArrayLike, width: int) -> tuple[Array, Array]:
    kernel = array(weight, "weight", 2)
    return shaped(kernel, "weight", (len(kernel), width)), shaped(bias, "bias", (len(kernel),))
