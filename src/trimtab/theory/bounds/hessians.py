"""The Hessian of one output unit, from the layer's inputs: bnp Props. 2, 9 and 10, Theorem 3, Lemma 8."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from trimtab.theory.bounds.inputs import augment, matrices
from trimtab.theory.bounds.sides import Array, Form, Sides, array, check_form, number, shaped, symmetric
from trimtab.theory.checks import whole


def dense_hessian(hessian: ArrayLike, inputs: ArrayLike, curvature: ArrayLike) -> Sides:
    """∇²L = ĤᵀSĤ with S = diag(L″)/N for ŵ = [b; w] of one unit of a dense layer (bnp Prop. 2).

    Conditions: the loss is the mean over the batch, twice differentiable in the unit's activation, and a sample's loss
    depends on its own activation only. BatchNorm further on breaks the last one: S is then no longer diagonal.

    Args:
        hessian: ∇²L with respect to ŵ, as measured.
        inputs: H, one row per sample.
        curvature: L″, the second derivative of each sample's own loss.
    """
    augmented = augment(inputs)
    weights = shaped(curvature, "curvature", (len(augmented),)) / len(augmented)
    return Sides(symmetric(hessian, "hessian", augmented.shape[1]), (augmented.T * weights) @ augmented, "==")


def preconditioned_hessian(hessian: ArrayLike, inputs: ArrayLike, curvature: ArrayLike) -> Sides:
    """Pᵀ∇²L P = ĜᵀSĜ: in z the Hessian is that of normalized inputs (bnp Theorem 3).

    Conditions: those of Prop. 2; every feature varies (σ > 0), and P has the batch's own μ and biased σ, nothing added.

    Args:
        hessian: ∇²L with respect to ŵ = P z.
        inputs: H, one row per sample.
        curvature: L″ of each sample.
    """
    parts = matrices(inputs)
    weights = shaped(curvature, "curvature", (len(parts.augmented),)) / len(parts.augmented)
    change = parts.preconditioner
    left = change.T @ symmetric(hessian, "hessian", len(change)) @ change
    terms = parts.augmented @ np.abs(change)  # what cancels where a mean is large beside its σ
    scale = float(((terms.T**2) @ np.abs(weights)).max())
    return Sides(left, (parts.normalized.T * weights) @ parts.normalized, "==", scale)


def normalized_input(inputs: ArrayLike, by: Literal["channel", "pixel"]) -> Array:
    """The input of a convolution less its means, divided by its deviations; what does not vary becomes 0.

    By channel, over samples and positions, is what the Hessian of a convolution asks for and BatchNorm does; by pixel,
    over samples alone, is what BatchNorm does to a dense layer (bnp, end of Sec. 4).

    Args:
        inputs: (N, c, r, s).
        by: Over what means and deviations are taken.
    """
    values = array(inputs, "inputs", 4)
    if by not in ("channel", "pixel"):
        raise ValueError(f"by must be 'channel' or 'pixel', not {by!r}.")
    over = (0, 2, 3) if by == "channel" else (0,)
    deviation = values.std(over, keepdims=True)
    return np.asarray((values - values.mean(over, keepdims=True)) / np.where(deviation > 0, deviation, 1.0))


def unfold(inputs: ArrayLike, kernel: int) -> Array:
    """𝓗, whose product with a kernel is the convolution with zero padding to the same size (bnp eqs. 16 and 18).

    Rows: samples, then positions; columns: channels, then kernel sites. Positions and sites run down their columns
    first, as the paper's vec does: the column (j−1)k + v belongs to the kernel's entry (v, j).

    Args:
        inputs: (N, c, r, s).
        kernel: k, odd.
    """
    values = array(inputs, "inputs", 4)
    kernel = _odd(kernel)
    border = (kernel // 2,) * 2
    padded = np.pad(values, ((0, 0), (0, 0), border, border))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))
    samples, channels, height, width = values.shape
    return windows.transpose(0, 3, 2, 1, 5, 4).reshape(samples * height * width, channels * kernel**2)


def convolution_as_product(
    outputs: ArrayLike, inputs: ArrayLike, weight: ArrayLike, bias: float, *, form: Form = "corrected"
) -> Sides:
    """â = [e, 𝓗] ŵ: one output channel of a convolution is a matrix times its weights (bnp Lemma 8).

    Conditions: zero padding to the same size, stride 1, odd kernel. As printed, the column (j−1)k + v of 𝓗 belongs to
    w(j, v), which holds for kernels that equal their transpose only; it is w(v, j), as in the paper's own example.

    Args:
        outputs: One output channel, (N, r, s).
        inputs: (N, c, r, s).
        weight: The kernels of that channel, (c, k, k).
        bias: b.
        form: With w(v, j) or, as printed, w(j, v).
    """
    check_form(form)
    kernels = array(weight, "weight", 3)
    number(bias, "bias")
    rows = augment(unfold(inputs, kernels.shape[1]))
    channels = kernels.transpose(0, 2, 1) if form == "corrected" else kernels
    left = array(outputs, "outputs", 3).transpose(0, 2, 1).ravel()
    right = rows @ shaped(np.concatenate([[bias], channels.ravel()]), "weight", (rows.shape[1],))
    return Sides(shaped(left, "outputs", right.shape), right, "==")


def convolution_hessian(hessian: ArrayLike, inputs: ArrayLike, kernel: int, blocks: ArrayLike) -> Sides:
    """∇²L = [e, 𝓗]ᵀS[e, 𝓗], S block-diagonal with a block of r·s rows per sample (bnp Prop. 9).

    Conditions: those of Lemma 8 and of Prop. 2. Within a sample all positions act on its loss, so that S is diagonal
    by blocks and no more.

    Args:
        hessian: ∇²L with respect to ŵ, in the order of `unfold`'s columns with the bias before them.
        inputs: (N, c, r, s).
        kernel: k.
        blocks: ∂²L/∂v_a² of each sample, (N, r·s, r·s), positions in the order of `unfold`'s rows.
    """
    rows = augment(unfold(inputs, kernel))
    samples = len(np.asarray(inputs))
    per_sample = rows.reshape(samples, -1, rows.shape[1])
    curvature = shaped(blocks, "blocks", (samples, per_sample.shape[1], per_sample.shape[1]))
    right = np.einsum("jpa,jpq,jqb->ab", per_sample, curvature, per_sample) / samples
    return Sides(symmetric(hessian, "hessian", rows.shape[1]), right, "==")


def site_means(inputs: ArrayLike, kernel: int) -> Sides:
    """|μ_H(t, a, p) − μ(p)| ≤ (k−1)(1/2r + 1/2s − (k−1)/4rs) max|h|: one mean per channel will do (bnp Prop. 10).

    Both sides have one entry per column of 𝓗. Conditions: zero padding to the same size, stride 1 (other padding
    brings in entries of its own, and up to twice the error), and (k−1)/2 ≤ r, s, which the paper does not state:
    beyond it the count of lost entries goes down again.

    Args:
        inputs: (N, c, r, s).
        kernel: k, odd.
    """
    values = array(inputs, "inputs", 4)
    kernel = _odd(kernel)
    height, width = values.shape[2:]
    means = np.repeat(values.mean((0, 2, 3)), kernel**2)
    share = (kernel - 1) * (1 / (2 * height) + 1 / (2 * width) - (kernel - 1) / (4 * height * width))
    largest = np.repeat(np.abs(values).max((0, 2, 3)), kernel**2)
    broken = () if kernel // 2 <= min(height, width) else ("(k − 1)/2 at most r and s",)
    return Sides(
        np.abs(unfold(values, kernel).mean(0) - means), share * largest, scale=float(largest.max()), broken=broken
    )


def _odd(kernel: int) -> int:
    if whole(kernel, "kernel") % 2 == 0:
        raise ValueError(f"kernel must be an odd number above 0, not {kernel}.")
    return whole(kernel, "kernel")
