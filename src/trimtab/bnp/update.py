"""What a step does to one layer: its statistics move, its gradients are replaced.

`plain` is the one to read, in PyTorch's own operations. What `trimtab.bnp.kernels` has does the same for many layers at
once, and is tested to.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trimtab.bnp import transform
from trimtab.bnp.options import Options
from trimtab.bnp.statistics import Moments, Number, RunningAverage, all_finite, at_least_float32, either


@dataclass(slots=True)
class Update:
    """All that the step of one layer is about.

    Attributes:
        weight: The gradient of the weight.
        bias: The gradient of the bias, if there is one to precondition.
        batch: The moments of the step's rows.
        running: The running averages, on the device of the weight.
        samples: N, the samples in these rows.
        outputs: The rows of H.
        units: The view of a tensor like the weight as (groups, outputs, inputs, sites).
        shape: The shape of that view.
        by_output: Whether the view is one of rows in memory: all weights of one output, then those of the next.
        kernel: What is to do it, as far as this does not change from step to step; `kernels` decides.
        row: For the kernels, what does not change from step to step,
        sites_last: unless the weights of an output come in another order: site by site or, as here, input by input.
        numel: The number of weights.
        columns: The number of columns that have averages.
        dtype: The type of the averages' numbers.
    """

    weight: Tensor
    bias: Tensor | None
    batch: Moments
    running: RunningAverage
    samples: Number
    outputs: Number
    units: Callable[[Tensor], Tensor]
    shape: tuple[int, int, int, int]
    by_output: bool
    kernel: str | None = None
    row: bytes = b""
    sites_last: bool = True
    numel: int = field(init=False)
    columns: int = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        """Count."""
        self.numel, self.columns, self.dtype = math.prod(self.shape), self.running.mean.numel(), self.running.mean.dtype

    @property
    def q2(self) -> float | Tensor:
        """q²."""
        _, _, inputs, sites = self.shape
        return transform.squared_norm(inputs * sites, self.samples, self.outputs)


def plain(update: Update, options: Options, fold: bool) -> bool | Tensor:
    """Replace the gradients; move the averages, if this is to `fold` and all is finite.

    Returns:
        Whether all is finite: the batch and the new gradients. Where asking a device for that would wait for it, it is
        a boolean that stays there.
    """
    batch, running = update.batch, update.running
    variance = running.variance_of(batch)
    usable = all_finite(variance)
    moved = running.after(batch.mean, variance, rho=options.rho, accept=usable) if fold else None
    mean_now, variance_now = running.estimate(moved)
    if options.statistics == "batch":
        own = usable & (batch.count > 1)
        mean_now, variance_now = either(own, batch.mean, mean_now), either(own, variance, variance_now)
    accept = usable & _transform(update, mean_now, variance_now, options)
    if moved is not None:
        running.move_to(moved, accept)
    return accept


def _transform(update: Update, mean: Tensor, variance: Tensor, options: Options) -> bool | Tensor:
    """Replace the gradients; returns whether the new ones are finite."""
    groups, outputs, inputs, _ = update.shape
    weight, bias = update.weight, update.bias
    buffer = weight.contiguous()  # so that it can be viewed; the gradient itself unless channels_last
    units = update.units(buffer)
    mean = mean.reshape(groups, 1, inputs, -1)
    variance = variance.reshape(groups, 1, inputs, -1)
    if bias is None and options.no_bias == "second_moment":
        variance = transform.second_moment(mean, variance)
    scale = transform.regularized(variance, options.eps1, options.eps2)

    new_weight, q2 = at_least_float32(units), update.q2
    if bias is None:
        transform.precondition_without_bias_(new_weight, scale, q2)
        finite = all_finite(new_weight)
    else:
        bias_units = at_least_float32(bias).reshape(groups, outputs, 1, 1)
        new_bias = transform.precondition_(new_weight, bias_units, mean, scale, q2)
        bias.copy_(new_bias.reshape(bias.shape))
        finite = all_finite(new_bias)  # it has the sum of the new weights in it, times μ: 0 times infinity is NaN
    if new_weight is not units:
        units.copy_(new_weight)
    if buffer is not weight:
        weight.copy_(buffer)
    return finite
