"""Internal covariate shift: how the gradient of a layer changes when the layers before it are updated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.bnp import BNP
from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.directions import distance_between, total_norm
from trimtab.probes.isolation import Point
from trimtab.probes.layer_selection import select_layers
from trimtab.probes.result import LossFunction, Probe, Result, by_layer
from trimtab.probes.surface import Surface, differentiate
from trimtab.probes.updates import next_step
from trimtab.renamed import renamed_options


@dataclass(frozen=True, kw_only=True)
class LayerShift:
    """The covariate shift of one layer.

    Attributes:
        layer: Its name.
        distance: ‖G − G′‖; infinite if the gradient after the update is not finite.
        cosine: Of the angle between G and G′; NaN where one of them is zero or not finite.
        gradient_norm: ‖G‖.
    """

    layer: str
    distance: float
    cosine: float
    gradient_norm: float


@dataclass(frozen=True, kw_only=True)
class CovariateShiftResult(Result):
    """The internal covariate shift at one step (landscape, Def. 2.1 and Fig. 3).

    Attributes:
        loss: At the parameters before the update.
        layers: In forward order.
    """

    loss: float = math.nan
    layers: tuple[LayerShift, ...] = ()


@renamed_options(most="max_layers")
@dataclass(frozen=True, kw_only=True)
class CovariateShift(Probe[CovariateShiftResult]):
    """The gradient G of each layer, and G′ after the layers before it took their update (landscape, Def. 2.1).

    A layer is a module with trained parameters of its own, all of them together (weight and bias; γ and β of a
    normalization are a layer too). Layers come in the order of their first calls; parameters whose module is not called
    come last. A parameter that several layers share belongs to the first of them. Layers on which the loss does not
    depend are left out. The first layer has none before it: its shift is 0.

    The update is that which the optimizer would really take from the gradient of this batch; see `next_step`.

    Each layer but the first costs a forward and a backward, the update one more, and the layers' order a forward.
    Beside what these need it takes the memory of three times the trained parameters (the gradient, the updated
    parameters, the gradient after them), and that of a copy of the optimizer's state while the update is computed.

    Args:
        optimizer: Whose update it is; whatever is attached to it by `BNP.attach` takes part.
        step_size: In the place of an optimizer: the update is that of plain gradient descent.
        bnp: A BNP whose step() the training calls by hand, before the optimizer's.
        layers: Patterns of layers' names to look at; none: all. All layers are updated in any case.
        max_layers: Look at so many layers at most, evenly over their order; None: no limit.
        statistics: What layers that normalize by the batch do; see `IsolatedModel`.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "shift"
    result: ClassVar[type[Result]] = CovariateShiftResult

    optimizer: torch.optim.Optimizer | None = None
    step_size: float | None = None
    bnp: BNP | None = None
    layers: Sequence[str] = ()
    max_layers: int | None = None
    statistics: Statistics = "batch"

    def __post_init__(self) -> None:
        """Check the options."""
        if (self.optimizer is None) == (self.step_size is None):
            raise ValueError("Give an optimizer, or a step_size in its place.")
        options.check_optimizer(self)
        options.check_positive(self, "step_size")
        options.check_instance(self, "bnp", BNP, "a trimtab.BNP")
        if self.bnp is not None and self.optimizer is None:
            raise ValueError("bnp needs an optimizer that takes the step.")
        options.check_strings(self, "layers")
        options.check_whole(self, "max_layers", minimum=1, optional=True)
        options.check_statistics(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> CovariateShiftResult:
        """Measure.

        Raises:
            CannotMeasure: If loss or gradient are not finite, or the optimizer's update cannot be tried out.
        """
        surface = Surface(model, loss_fn, batch, statistics=self.statistics)
        layers = _in_forward_order(surface, by_layer(surface.here))
        wanted = set(select_layers(list(layers), self.layers, self.max_layers))
        loss, before, after = next_step(surface, self._optimizer(surface), self.bnp)
        point, moved = dict(surface.here), False
        found: dict[str, Tensor] = {}
        for layer, names in layers.items():
            own = {name: before[name] for name in names if name in before}
            if layer in wanted and own:
                found[layer] = _compare(own, _gradient(surface, list(own), point) if moved else own)
            update = {name: after[name] for name in names if name in after}
            point |= update
            moved = moved or bool(update)
        # Only here are the numbers asked for: a GPU is not waited for at each layer.
        rows = list(found.values())
        numbers = torch.stack([row.to(rows[0].device) for row in rows]).tolist() if rows else []
        shifts = (_shift(layer, *row) for layer, row in zip(found, numbers, strict=True))
        return CovariateShiftResult(loss=loss, layers=tuple(shifts))

    def _optimizer(self, surface: Surface) -> torch.optim.Optimizer:
        if self.optimizer is not None:
            return self.optimizer
        assert self.step_size is not None
        return torch.optim.SGD([p for p in surface.isolated.model.parameters() if p.requires_grad], lr=self.step_size)


def _in_forward_order(surface: Surface, layers: dict[str, list[str]]) -> dict[str, list[str]]:
    """Layers by their first call; those that are not called as modules come last, as they are registered."""
    called: dict[str, None] = {}
    handles = []
    try:
        for name in layers:
            module = surface.isolated.model.get_submodule(name)
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: called.setdefault(name)))
        surface.loss()
    finally:
        for handle in handles:
            handle.remove()
    return {name: layers[name] for name in [*called, *(name for name in layers if name not in called)]}


def _gradient(surface: Surface, names: list[str], point: Point) -> dict[str, Tensor]:
    """The gradient at a point with respect to a few parameters.

    All is differentiated, as in training: GroupNorm in torch 2.13 kills the process on a CPU if the gradient of its
    weight is asked for, but not that of its input in channels_last.
    """
    gradient = surface.inside(lambda loss, leaves: differentiate(loss, leaves), point)
    return {name: gradient[name] for name in names}


def _compare(before: Point, after: Point) -> Tensor:
    """‖G − G′‖, ‖G‖ and ‖G′‖."""
    return torch.stack([distance_between(before, after), total_norm(before.values()), total_norm(after.values())])


def _shift(layer: str, distance: float, before: float, after: float) -> LayerShift:
    lengths = before * after
    cosine = math.nan
    if lengths > 0 and math.isfinite(lengths):
        # From the sides of the triangle, since the cosine is near 1 and its distance from 1 is what matters.
        cosine = min(1.0, max(-1.0, 1 - (distance**2 - (before - after) ** 2) / (2 * lengths)))
    distance = distance if math.isfinite(distance) else math.inf
    return LayerShift(layer=layer, distance=distance, cosine=cosine, gradient_norm=before)
