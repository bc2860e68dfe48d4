"""The change of gradients that BNP makes, as pure functions.

One output unit of a layer sees its weights as ŵ = [b; w] and its inputs as rows of Ĥ = [e, H].
With ŵ = P z, P = U D, U = [[1, −μᵀ], [0, I]], D = diag(1, 1/σ̃), gradient descent in z is gradient
descent in ŵ with the gradient multiplied by P Pᵀ (bnp paper, eqs. 8 and 15).

All functions here take a layer's gradient in one layout, (groups, outputs, inputs, sites): the
outputs of a group see the inputs of that group at each kernel site. Statistics have the shape
(groups, 1, inputs, sites), or (groups, 1, inputs, 1) where all sites share them.
"""

import math

import torch
from torch import Tensor

from trimtab.bnp.algorithm.moments import Count


def squared_norm(fan_in: int, samples: Count, outputs: Count) -> float | Tensor:
    """q², the estimate of ‖ĤP‖²/N that brings the layers to comparable size.

    Dense layers: max(n/N, 1) (Prop. 5). Convolutions: max(c·k²/N, √(r·s)) (Sec. 4), where r·s, the
    output positions, are the rows of 𝓗 per sample. A dense layer has one position, or is a
    convolution over its positions, so both are one formula.

    Args:
        fan_in: Weights per output unit: n, or c·k².
        samples: N.
        outputs: N·r·s, the rows of H.
    """
    if isinstance(samples, Tensor):
        return (fan_in / samples).maximum((outputs / samples).sqrt())
    return max(fan_in / samples, math.sqrt(outputs / samples))


def regularized(variance: Tensor, eps1: float, eps2: float) -> Tensor:
    """σ̃² = σ² + ε₁ max(σ²) + ε₂, the maximum taken within each group (Algorithm 2, step 3)."""
    return variance.add(variance.amax((1, 2, 3), keepdim=True), alpha=eps1).add_(eps2)


def second_moment(mean: Tensor, variance: Tensor) -> Tensor:
    """σ² + μ², the mean square of a column, which scales uncentred columns to equal norm (Lemma A1)."""
    return variance + mean.square()


def precondition(
    weight: Tensor, bias: Tensor | None, mean: Tensor, scale: Tensor, q2: float | Tensor
) -> tuple[Tensor, Tensor | None]:
    """P Pᵀ/q² applied to the gradients of weight and bias (Algorithms 2 and 3, steps 4 and 5).

    Args:
        weight: Gradient of the weight, (groups, outputs, inputs, sites).
        bias: Gradient of the bias, (groups, outputs, 1, 1). None if there is none to take up the centring: then it is
            D²/q² that is applied.
        mean: μ.
        scale: σ̃².
        q2: q².

    Returns:
        The new gradients, as new tensors.
    """
    if bias is None:
        return weight / (q2 * scale), None
    new = torch.addcmul(weight, mean, bias, value=-1).div_(q2 * scale)
    return new, bias / q2 - (mean * new).sum((2, 3), keepdim=True)
