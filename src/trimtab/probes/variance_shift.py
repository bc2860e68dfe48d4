"""How far BatchNorm's running variance is from the variance that its input has in evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.norms import RunningNorm
from trimtab.norms.base import dims_but_channel
from trimtab.probes import options
from trimtab.probes.layer_calls import observe_calls
from trimtab.probes.layer_selection import select_layers
from trimtab.probes.result import LossFunction, Probe, Result
from trimtab.probes.surface import Surface


@dataclass(frozen=True, kw_only=True)
class LayerVariance:
    """The input of one BatchNorm in evaluation mode.

    Attributes:
        layer: The layer's name.
        channels: How many channels vary and have a running variance that is not 0.
        ratio: The variance of a channel's input over the running variance: the median over channels.
        distance: |log ratio|, the median over channels: 0 if both agree.
    """

    layer: str
    channels: int
    ratio: float
    distance: float


@dataclass(frozen=True, kw_only=True)
class VarianceShiftResult(Result):
    """The inputs of BatchNorm layers in evaluation mode.

    Attributes:
        loss: The loss of the batch, in evaluation mode.
        layers: In the order in which they were first called; none if no layer has a running variance.
    """

    loss: float = math.nan
    layers: tuple[LayerVariance, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VarianceShift(Probe[VarianceShiftResult]):
    """The variance of BatchNorm's inputs in evaluation over the running variance (regularization, Sec. 5.1: Li et al.).

    Dropout before a BatchNorm changes the variance that it sees in training, but not the one in evaluation, so that
    both differ. Of layers that are called several times the first call counts. It costs a forward in evaluation mode,
    and the memory of the largest input in double precision.

    Args:
        layers: Patterns of modules' names; none: all layers that have a running variance.
        max_layers: Look at so many of them at most, evenly over their order; None: no limit.
        data: A batch to measure on, such as one of held-out data; None: that of the step.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "variance"
    result: ClassVar[type[Result]] = VarianceShiftResult

    layers: Sequence[str] = ()
    max_layers: int | None = None
    data: Any = None

    def __post_init__(self) -> None:
        """Check the options."""
        options.check_strings(self, "layers")
        options.check_whole(self, "max_layers", minimum=1, optional=True)
        options.check_data(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> VarianceShiftResult:
        """Run the model once in evaluation mode, or raise CannotMeasure."""
        found: dict[str, LayerVariance] = {}

        def see(name: str, module: nn.Module, x: Tensor, y: Tensor) -> None:
            if name not in found:
                found[name] = _describe(name, module, x)

        def watched(model: nn.Module, batch: Any) -> Tensor:
            modules = {name: module for name, module in model.named_modules() if _tracks(module)}
            chosen = select_layers(list(modules), self.layers if modules else (), self.max_layers)
            with observe_calls({name: modules[name] for name in chosen}, see):
                return loss_fn(model, batch)

        surface = Surface(model, watched, batch if self.data is None else self.data, statistics="running")
        loss = surface.loss()
        return VarianceShiftResult(loss=loss, layers=tuple(found.values()))


def _tracks(module: nn.Module) -> bool:
    known = isinstance(module, (*_torch.BATCH_NORMS, RunningNorm))
    return known and isinstance(getattr(module, "running_var", None), Tensor)


def _describe(name: str, module: nn.Module, x: Tensor) -> LayerVariance:
    measured = x.detach().double().var(dims_but_channel(x), correction=0)
    running = module.get_buffer("running_var").double()
    both = (measured > 0) & (running > 0)
    ratio = measured[both] / running[both]
    if not len(ratio):
        return LayerVariance(layer=name, channels=0, ratio=math.nan, distance=math.nan)
    middle = torch.stack([ratio.quantile(0.5), ratio.log().abs().quantile(0.5)]).tolist()
    return LayerVariance(layer=name, channels=len(ratio), ratio=middle[0], distance=middle[1])
