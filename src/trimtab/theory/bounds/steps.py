"""BatchNorm's step beside BNP's, and what a step costs: bnp Props. 6 and 7, Sec. 3.4."""

import numpy as np
from numpy.typing import ArrayLike

from trimtab.theory.bounds.inputs import matrices
from trimtab.theory.bounds.sides import Array, Form, Sides, array, check_form, positive, shaped
from trimtab.theory.checks import whole


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


def bnp_operations(n_in: int, n_out: int, batch: int, *, form: Form = "corrected") -> Sides:
    """Floating point operations of one step of BNP on a dense layer: Algorithm 2, counted, and in sum (bnp Prop. 6).

    Printed: 4nN + 6nn′ + 2n′ + 8n. Counted as its first term is (a sum of N terms has N − 1 additions), step 5 has
    2n + 1 operations for each of the n′ outputs, so that 2n′ is n′; and four operations on single numbers (1 − ρ,
    ε₁ max σ², q², 1/q²) are left out. Comparisons are not counted.

    Args:
        n_in: n, the layer's inputs.
        n_out: n′, its outputs.
        batch: N.
        form: The sum as it comes out or as printed.
    """
    check_form(form)
    n_in, n_out, batch = whole(n_in, "n_in"), whole(n_out, "n_out"), whole(batch, "batch")
    mean, variance = batch, 3 * batch
    running = 2 * 3 * n_in + 1
    regularized = 2 * n_in + 1 + 2  # and q², 1/q²
    weight = 4 * n_in * n_out
    bias = (1 + n_in + (n_in - 1) + 1) * n_out
    left = (mean + variance) * n_in + running + regularized + weight + bias
    smaller = n_out + 4 if form == "corrected" else 2 * n_out
    return Sides(float(left), float(4 * n_in * batch + 6 * n_in * n_out + smaller + 8 * n_in), "==")


def bn_operations(n_in: int, batch: int, *, form: Form = "corrected") -> Sides:
    """Floating point operations of a BatchNorm layer, both ways, beside the paper's 32nN + 4n (bnp Sec. 3.3).

    The paper counts 24nN − 3n for the backward pass. The gradient in closed form (landscape Fact C.1) needs 7nN + n:
    the sums for β and γ, 3N − 2, and four operations per entry. Left is the count with the closed form, right the sum
    15nN + 8n or, as printed, 32nN + 4n. BNP is then cheaper than BN for 11N > 6n′, not already for 28N > 6n′.

    Args:
        n_in: n, the layer's features.
        batch: N.
        form: The sum with the closed form or as printed.
    """
    check_form(form)
    n_in, batch = whole(n_in, "n_in"), whole(batch, "batch")
    statistics, forward = 4 * batch + 7, 4 * batch
    backward = (batch - 1) + (2 * batch - 1) + 3 + 4 * batch
    left = (statistics + forward + backward) * n_in
    right = 15 * n_in * batch + 8 * n_in if form == "corrected" else 32 * n_in * batch + 4 * n_in
    return Sides(float(left), float(right), "==")


def _layer(weight: ArrayLike, bias: ArrayLike, width: int) -> tuple[Array, Array]:
    kernel = array(weight, "weight", 2)
    return shaped(kernel, "weight", (len(kernel), width)), shaped(bias, "bias", (len(kernel),))
