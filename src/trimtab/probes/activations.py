"""The distribution of the outputs of layers: moments, histograms, and how they change during training."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.channels import default_layer, per_channel_rows
from trimtab.probes.distribution import Distribution
from trimtab.probes.layer_selection import select_layers
from trimtab.probes.result import CannotMeasure, LossFunction, Probe, Result
from trimtab.probes.spectrum.lanczos import lanczos_max
from trimtab.probes.surface import Surface
from trimtab.renamed import renamed_options

_SATURATED = 0.05
"""Values beyond all but this share of the way from the middle of their range to an end are saturated."""
_DENSE_RANK = 1024
"""Up to so many channels (or rows, if these are fewer) all singular values are computed."""
_RANGES: dict[type[nn.Module], tuple[float, float]] = {
    nn.Tanh: (-1.0, 1.0),
    nn.Softsign: (-1.0, 1.0),
    nn.Sigmoid: (0.0, 1.0),
}
"""Of activations that approach two ends."""


@dataclass(frozen=True, kw_only=True)
class LayerActivations(Distribution):
    """All outputs of one layer as one distribution, and some of its channels each by itself.

    Attributes:
        layer: The layer's name.
        channels: How many channels (features, units) it has.
        mean_magnitude: The mean over channels of |mean of the channel|.
        mean_spread: The (biased) standard deviation over channels of their means.
        stable_rank: ‖A‖_F²/‖A‖₂² of the matrix A with a row for each sample and position and a column for each channel,
            not centred: from 1, if all rows are multiples of one, to the number of channels.
        examples: The distribution of single channels, evenly spread over all; the landscape paper looks at such
            "example activations" (Figs. 2, 8, 9).
    """

    layer: str = ""
    channels: int = 0
    mean_magnitude: float = math.nan
    mean_spread: float = math.nan
    stable_rank: float = math.nan
    examples: tuple[Distribution, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ActivationsResult(Result):
    """The outputs of layers for one batch.

    Attributes:
        loss: The loss of the batch.
        layers: In the order in which they were first called.
        saturated: The share of the outputs of all tanh, softsign and sigmoid modules that are in the outermost 2.5 % of
            their range at either end, as |tanh| > 0.95; NaN if there are none.
    """

    loss: float = math.nan
    layers: tuple[LayerActivations, ...] = ()
    saturated: float = math.nan


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
        ends: list[tuple[int, int]] = []

        def watched(model: nn.Module, batch: Any) -> Tensor:
            with _record_outputs(self._selected_layers(model), outputs), _count_saturated(model, ends):
                return loss_fn(model, batch)

        loss = Surface(model, watched, batch, statistics=self.statistics).loss()
        if not outputs:
            raise CannotMeasure("No layer was called that puts out a tensor of real numbers.")
        # Each output is let go of as soon as it is described.
        layers = [self._describe(name, outputs.pop(name)) for name in list(outputs)]
        beyond, count = (sum(numbers) for numbers in zip(*ends, strict=True)) if ends else (0, 0)
        return ActivationsResult(loss=loss, layers=tuple(layers), saturated=beyond / count if count else math.nan)

    def _selected_layers(self, model: nn.Module) -> dict[str, nn.Module]:
        modules = {name: module for name, module in model.named_modules() if self.layers or default_layer(module)}
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
            stable_rank=stable_rank(rows),
            examples=tuple(self._distribution(rows[:, channel]) for channel in picked),
            **vars(self._distribution(rows)),
        )

    def _distribution(self, x: Tensor) -> Distribution:
        return Distribution.of(x, bins=self.bins, limits=self.limits)


def moment_change(before: ActivationsResult, after: ActivationsResult) -> tuple[MomentChange, ...]:
    """The change of moments of the layers that both measurements have, as from one step to the next."""
    earlier = {layer.layer: layer for layer in before.layers}
    return tuple(_change(earlier[layer.layer], layer) for layer in after.layers if layer.layer in earlier)


def stable_rank(rows: Tensor) -> float:
    """‖A‖_F²/‖A‖₂² of a matrix; NaN if it is zero.

    The largest singular value is that of all, or by Lanczos' method to 1e-4 if there are very many.
    """
    wide = rows.double()
    square = float(wide.square().sum())
    if not square > 0 or not math.isfinite(square):
        return math.nan
    if min(wide.shape) <= _DENSE_RANK:
        gram = wide.T @ wide if wide.shape[1] <= wide.shape[0] else wide @ wide.T
        return square / float(torch.linalg.eigvalsh(gram)[-1])
    start = wide.T @ wide.sum(1)
    return square / lanczos_max(lambda v: wide.T @ (wide @ v), start if bool(start.any()) else wide[0])


@contextmanager
def _count_saturated(model: nn.Module, ends: list[tuple[int, int]]) -> Iterator[None]:
    """Add, for each call of a bounded activation, how many outputs are near an end of its range, and how many all."""

    def count(module: nn.Module, args: Any, output: Tensor) -> None:
        low, high = next(bounds for kind, bounds in _RANGES.items() if isinstance(module, kind))
        beyond = (output.detach() - (low + high) / 2).abs() > (1 - _SATURATED) * (high - low) / 2
        ends.append((int(beyond.sum()), output.numel()))

    handles = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, tuple(_RANGES))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _record_outputs(modules: dict[str, nn.Module], outputs: dict[str, list[Tensor]]) -> Iterator[None]:
    """Record copies of the outputs of these modules, as rows of channels, while this is active."""

    def record(name: str, module: nn.Module, args: Any, output: Any) -> None:
        values = output if isinstance(output, tuple | list) else (output,)
        first = next((value for value in values if isinstance(value, Tensor)), None)
        if first is not None and first.is_floating_point() and first.layout is torch.strided and first.numel():
            outputs.setdefault(name, []).append(per_channel_rows(module, first.detach()))

    handles = [module.register_forward_hook(partial(record, name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
