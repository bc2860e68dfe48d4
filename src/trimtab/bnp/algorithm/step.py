"""What one optimizer step does to one layer: its statistics move, its gradients are replaced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.bnp.algorithm import transform
from trimtab.bnp.algorithm.averages import Estimate, RunningAverage
from trimtab.bnp.algorithm.moments import Rows, at_least_float32, scalar
from trimtab.bnp.options import Options

Shape = tuple[int, int, int, int]
"""Of a weight in the layout of `transform`: groups, outputs, inputs, sites."""


class HasRows(Protocol):
    """What stands for rows, as for instance their sums do."""

    def rows(self) -> Rows:
        """The rows."""


@dataclass(slots=True)
class LayerStep:
    """All that the step of one layer is about.

    Attributes:
        name: The layer's name in the model.
        weight: The gradient of the weight.
        bias: The gradient of the bias, if there is one to precondition.
        rows: What was seen of the layer's input, on the device of the weight.
        running: The running averages, on the device of the weight.
        view: The view of a tensor like the weight as (groups, outputs, inputs, sites).
        shape: The shape of that view.
        by_output: Whether the view is one of rows in memory: all weights of one output, then those of the next.
        replace: Replaces the gradients, as `replace_gradients`, if they are not all of the layer's.
        memo: For the backends, to keep what does not change from one step of this layer to the next.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    rows: Rows | HasRows
    running: RunningAverage
    view: Callable[[Tensor], Tensor]
    shape: Shape
    by_output: bool
    memo: dict[str, Any] = field(default_factory=dict)
    replace: "Callable[[LayerStep, Rows, Tensor, Tensor, Tensor, Options], Tensor] | None" = None


def layer_step(step: LayerStep, options: Options, fold: bool) -> Tensor:
    """Replace the gradients; move the averages, if this is to `fold` and all is finite.

    Everything is decided on the device of the weight, which is not waited for. Without any rows nothing changes.

    Returns:
        Whether something was not finite: the rows, or the new gradients.
    """
    rows, running = step.rows.rows(), step.running
    seen, usable, averages, (used_mean, used_variance) = _statistics(rows, running, options, fold)
    finite = (step.replace or replace_gradients)(step, rows, used_mean, used_variance, seen, options)
    accept = usable & finite
    if fold:
        running.move_to(averages, accept, seen)
    return seen & ~accept


def next_scaling(step: LayerStep, options: Options) -> tuple[Tensor, Tensor, float | Tensor]:
    """μ, σ̃² and q² of PPᵀ/q² as `layer_step` would apply it now, the averages moved; nothing changes."""
    rows = step.rows.rows()
    _, _, _, used = _statistics(rows, step.running, options, True)
    return scaling(step, rows, *used, options)


def _statistics(
    rows: Rows, running: RunningAverage, options: Options, fold: bool
) -> tuple[Tensor, Tensor, Estimate, tuple[Tensor, Tensor]]:
    """Whether rows were seen and are usable, the averages after them, and the mean and variance to use."""
    batch = rows.columns()
    count = scalar(batch.count, batch.mean)
    seen = count > 0
    variance = running.variance_of(batch)
    usable = seen & all_finite(variance)
    averages = running.after(batch.mean, variance, options.rho, usable & fold)
    used_mean, used_variance = running.estimate(averages)
    if options.statistics == "batch":
        own = usable & (count > 1)
        used_mean = torch.where(own, batch.mean, used_mean)
        used_variance = torch.where(own, variance, used_variance)
    return seen, usable, averages, (used_mean, used_variance)


def scaling(
    step: LayerStep, rows: Rows, mean: Tensor, variance: Tensor, options: Options
) -> tuple[Tensor, Tensor, float | Tensor]:
    """μ, σ̃² and q² as `transform.precondition` takes them, for a layer with this mean and variance."""
    groups, _, inputs, sites = step.shape
    mean = mean.reshape(groups, 1, inputs, -1)
    variance = variance.reshape(groups, 1, inputs, -1)
    if step.bias is None and options.no_bias == "second_moment":
        variance = transform.second_moment(mean, variance)
    scale = transform.regularized(variance, options.eps1, options.eps2)
    samples, positions = scalar(rows.samples, scale), scalar(rows.positions, scale)
    return mean, scale, transform.squared_norm(inputs * sites, samples, positions)


def replace_gradients(
    step: LayerStep, rows: Rows, mean: Tensor, variance: Tensor, seen: Tensor, options: Options
) -> Tensor:
    """Replace the gradients if rows were seen; returns whether the new ones are finite."""
    groups, outputs, _, _ = step.shape
    mean, scale, q2 = scaling(step, rows, mean, variance, options)
    whole = step.weight.contiguous()  # so that it can be viewed; the gradient itself unless channels_last
    view = step.view(whole)
    weight = at_least_float32(view)
    bias = None if step.bias is None else at_least_float32(step.bias).reshape(groups, outputs, 1, 1)
    new_weight, new_bias = transform.precondition(weight, bias, mean, scale, q2)
    # The new bias has the sum of the new weights in it, times μ, and 0 times infinity is NaN: so it tells of them, too.
    finite = all_finite(new_weight if new_bias is None else new_bias)
    if isinstance(rows.samples, Tensor):  # there may be no rows
        new_weight = torch.where(seen, new_weight, weight)
        new_bias = None if new_bias is None or bias is None else torch.where(seen, new_bias, bias)
    view.copy_(new_weight)
    if whole is not step.weight:
        step.weight.copy_(whole)
    if step.bias is not None and new_bias is not None:
        step.bias.copy_(new_bias.reshape(step.bias.shape))
    return finite


def all_finite(x: Tensor) -> Tensor:
    """Whether no entry is infinite or not a number: 0 times those is NaN."""
    return (x * 0).sum() == 0
