"""Gradients by the inputs: how alike they are at neighbouring inputs (shattered gradients, Balduzzi et al. 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.probes.isolation import IsolatedModel


@dataclass(frozen=True)
class GradientCorrelation:
    """How alike gradients by the input are at neighbouring inputs.

    Attributes:
        mean: The mean over pairs of neighbours of the cosine between their gradients.
        pairs: The cosines; NaN for a pair of which one gradient is 0, which the mean leaves out.
    """

    mean: float
    pairs: tuple[float, ...]


def neighbours(start: Tensor, end: Tensor, count: int) -> Tensor:
    """Inputs at even distances on the line from one input to another, both among them.

    Raises:
        ValueError: If the two are not of one shape, or `count` is below 2.
    """
    if start.shape != end.shape:
        raise ValueError(f"start and end must have one shape, not {tuple(start.shape)} and {tuple(end.shape)}.")
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise ValueError(f"count must be a whole number, 2 or larger, not {count!r}.")
    shares = torch.linspace(0, 1, count, dtype=start.dtype, device=start.device)
    return torch.lerp(start, end, shares.view(-1, *[1] * start.ndim))


def gradient_correlation(
    model: nn.Module, inputs: Tensor, *, statistics: Statistics = "frozen", output: int = 0
) -> GradientCorrelation:
    """The cosines between ∂f(xᵢ)/∂xᵢ and ∂f(xᵢ₊₁)/∂xᵢ₊₁ for inputs in a row, each the neighbour of the next.

    f is one output of the network. Nothing of the network is changed; dropout is off. With BatchNorm the inputs are one
    batch; with `frozen` statistics the gradient of a sample is by its own input alone, with `batch` it is that of the
    sum of all outputs.

    Args:
        model: Maps inputs to a tensor whose first dimension is that of the samples.
        inputs: Two samples or more, such as `neighbours` gives.
        statistics: See `IsolatedModel`.
        output: The number of the output, after flattening.

    Raises:
        ValueError: If an argument is invalid.
    """
    if not isinstance(inputs, Tensor) or inputs.ndim < 1 or len(inputs) < 2 or not inputs.is_floating_point():
        raise ValueError("inputs must be a tensor of two samples or more, of floating-point numbers.")
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {type(model).__name__}.")
    if not inputs.isfinite().all():
        raise ValueError("inputs must be finite numbers; some of these are infinite or NaN.")
    isolated = IsolatedModel(model, statistics=statistics, dropout=False)
    x = inputs.detach().clone().requires_grad_()

    def work() -> Tensor:
        values = isolated.model(x)
        flat = values.reshape(len(values), -1)
        if isinstance(output, bool) or not isinstance(output, int) or not 0 <= output < flat.shape[1]:
            raise ValueError(f"output must be a number from 0 to {flat.shape[1] - 1}, not {output!r}.")
        (gradient,) = torch.autograd.grad(flat[:, output].sum(), x)
        return gradient

    rows = isolated.run(work).double().flatten(1)
    lengths = rows.norm(dim=1)
    cosines = (rows[:-1] * rows[1:]).sum(1) / (lengths[:-1] * lengths[1:])
    return GradientCorrelation(float(cosines.nanmean()), tuple(_numbers(cosines)))


def _numbers(values: Tensor) -> Sequence[float]:
    found: list[float] = values.tolist()
    return found
