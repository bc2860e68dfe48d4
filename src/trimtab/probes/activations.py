"""The distribution of the outputs of layers: moments, histograms, and how they change during training."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.layers import layer_type
from trimtab.norms import RunningNorm
from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.distribution import Distribution
from trimtab.probes.layer_selection import select_layers
from trimtab.probes.result import CannotMeasure, LossFunction, Probe, Result
from trimtab.probes.surface import Surface
from trimtab.renamed import renamed_options

_CHANNELS_FIRST = (*_torch.BATCH_NORMS, *_torch.INSTANCE_NORMS, nn.GroupNorm, RunningNorm)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)


@dataclass(frozen=True, kw_only=True)
class LayerActivations(Distribution):
    """All outputs of one layer as one distribution, and some of its channels each by itself.

    Attributes:
        layer: The layer's name.
        channels: How many channels (features, units) it has.
        mean_magnitude: The mean over channels of |mean of the channel|.
        mean_spread: The (biased) standard deviation over channels of their means.
        examples: The distribution of single channels, evenly spread over all; the landscape paper looks at such
            "example activations" (Figs. 2, 8, 9).
    """

    layer: str = ""
    channels: int = 0
    mean_magnitude: float = math.nan
    mean_spread: float = math.nan
    examples: tuple[Distribution, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ActivationsResult(Result):
    """The outputs of layers for one batch.

    Attributes:
        loss: The loss of the batch.
        layers: In the order in which they were first called.
    """

    loss: float = math.nan
    layers: tuple[LayerActivations, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MomentChange:
    """How the outputs of a layer changed between two measurements (landscape, Fig. 8).

    Attributes:
        layer: The layer's name.
        mean: The change of the mean of all its outputs.
        variance: The change of their variance.
        example_mean: The mean over example channels of |change of the channel's mean|.
        example_variance: The mean over example channels of |change of the channel's variance|.
    """

    layer: str
    mean: float
    variance: float
    example_mean: float
    example_variance: float


@renamed_options(most="max_layers")
@dataclass(frozen=True, kw_only=True)
class Activations(Probe[ActivationsResult]):
    """Moments and histograms of chosen layers' outputs (landscape, Sec. 2.1 and App. A.2.1).

    The channels of an output are in dimension 1 for convolutions and normalizations over the batch, in the last one for
    dense layers, LayerNorm and embeddings; for others in dimension 1, or in the last one of three (tokens). All other
    dimensions are samples. The outputs of several calls of one module count together. Outputs that are not tensors of
    real numbers are left out; of several, the first one counts.

    It costs one forward, without a graph. Beside what that needs it takes the memory of the chosen outputs, in float32
    at least, and a few times that of the largest of them.

    Args:
        layers: Patterns of modules' names; none: all dense, convolution and normalization layers.
        max_layers: Look at so many of them at most, evenly over their order; None: no limit.
        examples: How many channels of each are also looked at one by one.
        bins: How many bins the histograms have.
        limits: Where all histograms begin and end; None: each at its smallest and its largest value, outliers left out
            (those that are farther from the middle 99 % of the values than these are wide).
        statistics: What layers that normalize by the batch do; see `IsolatedModel`.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "activations"
    result: ClassVar[type[Result]] = ActivationsResult
    successive: ClassVar[bool] = True

    layers: Sequence[str] = ()
    max_layers: int | None = 8
    examples: int = 1
    bins: int = 50
    limits: tuple[float, float] | None = None
    statistics: Statistics = "batch"

    def __post_init__(self) -> None:
        """Check the options."""
        options.check_strings(self, "layers")
        options.check_whole(self, "max_layers", minimum=1, optional=True)
        options.check_whole(self, "examples", minimum=0)
        options.check_whole(self, "bins", minimum=1)
        if self.limits is not None:
            several = list(self.limits) if isinstance(self.limits, Iterable) else []
            if len(several) != 2 or not all(map(options.is_finite, several)) or not several[0] < several[1]:
                raise ValueError(
                    f"limits must be None or two finite numbers, the smaller one first, not {self.limits!r}."
                )
            object.__setattr__(self, "limits", tuple(several))
        options.check_statistics(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> ActivationsResult:
        """Run the model once.

        Raises:
            CannotMeasure: If the loss is not finite, or no layer put anything out.
        """
        outputs: dict[str, list[Tensor]] = {}

        def watched(model: nn.Module, batch: Any) -> Tensor:
            with _record_outputs(self._selected_layers(model), outputs):
                return loss_fn(model, batch)

        loss = Surface(model, watched, batch, statistics=self.statistics).loss()
        if not outputs:
            raise CannotMeasure("No layer was called that puts out a tensor of real numbers.")
        # Each output is let go of as soon as it is described.
        layers = [self._describe(name, outputs.pop(name)) for name in list(outputs)]
        return ActivationsResult(loss=loss, layers=tuple(layers))

    def _selected_layers(self, model: nn.Module) -> dict[str, nn.Module]:
        modules = {name: module for name, module in model.named_modules() if self.layers or _by_default(module)}
        if not modules:
            raise CannotMeasure("The model has no dense, convolution or normalization layer; name others in `layers`.")
        return {name: modules[name] for name in select_layers(list(modules), self.layers, self.max_layers)}

    def _describe(self, name: str, outputs: list[Tensor]) -> LayerActivations:
        rows = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        outputs.clear()
        channels = rows.shape[1]
        means = rows.mean(0, dtype=torch.float64)
        picked = [int((i + 0.5) * channels / self.examples) for i in range(min(self.examples, channels))]
        return LayerActivations(
            layer=name,
            channels=channels,
            mean_magnitude=float(means.abs().mean()),
            mean_spread=float(means.std(correction=0)),
            examples=tuple(self._distribution(rows[:, channel]) for channel in picked),
            **vars(self._distribution(rows)),
        )

    def _distribution(self, x: Tensor) -> Distribution:
        return Distribution.of(x, bins=self.bins, limits=self.limits)


def moment_change(before: ActivationsResult, after: ActivationsResult) -> tuple[MomentChange, ...]:
    """The change of moments of the layers that both measurements have, as from one step to the next."""
    earlier = {layer.layer: layer for layer in before.layers}
    return tuple(_change(earlier[layer.layer], layer) for layer in after.layers if layer.layer in earlier)


@contextmanager
def _record_outputs(modules: dict[str, nn.Module], outputs: dict[str, list[Tensor]]) -> Iterator[None]:
    """Record copies of the outputs of these modules, as rows of channels, while this is active."""

    def record(name: str, module: nn.Module, args: Any, output: Any) -> None:
        values = output if isinstance(output, tuple | list) else (output,)
        first = next((value for value in values if isinstance(value, Tensor)), None)
        if first is not None and first.is_floating_point() and first.layout is torch.strided and first.numel():
            outputs.setdefault(name, []).append(_rows(module, first.detach()))

    handles = [module.register_forward_hook(partial(record, name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rows(module: nn.Module, output: Tensor) -> Tensor:
    """A copy (a layer that works in place may follow) of shape (samples, channels), in float32 at least."""
    dtype = torch.promote_types(output.dtype, torch.float32)
    channels_last = output.movedim(_channel_dimension(module, output), -1) if output.ndim else output.reshape(1)
    copy = channels_last.to(dtype, copy=True, memory_format=torch.contiguous_format)
    return copy.reshape(-1, copy.shape[-1])


def _channel_dimension(module: nn.Module, output: Tensor) -> int:
    if isinstance(module, _CHANNELS_LAST) or output.ndim == 1:
        return -1
    if isinstance(module, _CHANNELS_FIRST):
        return 1
    space = len(getattr(module, "kernel_size", ())) if layer_type(module) is not None else 0
    if space:
        return output.ndim - space - 1  # 0 for a sample without a batch dimension
    return -1 if output.ndim == 3 else 1


def _by_default(module: nn.Module) -> bool:
    known = isinstance(module, (*_CHANNELS_FIRST, *_CHANNELS_LAST)) and not isinstance(module, nn.Embedding)
    return known or layer_type(module) is not None


def _change(before: LayerActivations, after: LayerActivations) -> MomentChange:
    pairs = list(zip(before.examples, after.examples, strict=True))
    return MomentChange(
        layer=after.layer,
        mean=after.mean - before.mean,
        variance=after.variance - before.variance,
        example_mean=_mean_distance([(a.mean, b.mean) for a, b in pairs]),
        example_variance=_mean_distance([(a.variance, b.variance) for a, b in pairs]),
    )


def _mean_distance(pairs: list[tuple[float, float]]) -> float:
    return sum(abs(b - a) for a, b in pairs) / len(pairs) if pairs else math.nan
