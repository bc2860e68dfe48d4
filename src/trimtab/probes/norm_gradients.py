"""The gradient at the outputs of normalization layers, in the parts that Theorem 4.1 of the landscape paper has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.batches import first_samples, samples_of
from trimtab.probes.channels import default_layer, is_norm, per_channel_rows
from trimtab.probes.layer_calls import observe_calls
from trimtab.probes.layer_selection import select_layers
from trimtab.probes.noise.batch_statistics import normalizes
from trimtab.probes.result import CannotMeasure, LossFunction, Probe, Result
from trimtab.probes.surface import Surface, check_finite, check_gradient

CORRELATED = 3.0
"""How many times the squared cosine of independent vectors counts as correlated."""


@dataclass(frozen=True, kw_only=True)
class LayerGradient:
    """The gradient g of the loss at the output z of one layer; shares are medians over units with a gradient.

    A unit (channel, feature) has m values z and m entries of g: samples times positions. ŷ is z standardized over
    these, which for a BatchNorm is what it normalizes to, up to the sign of γ.

    Attributes:
        layer: The layer's name.
        units: How many units have a gradient and an output that varies.
        values: m.
        output_norm: ‖g‖, over all units.
        input_norm: The norm of the gradient that reaches the layer's input through the layer; NaN for layers that do
            not normalize by the batch, or whose input has no gradient.
        mean_share: ⟨1, g⟩²/(m‖g‖²), what the theorem's second term takes from ‖g‖².
        inner_share: ⟨g, ŷ⟩²/(m‖g‖²), what its third term takes. For independent vectors it is 1/m.
        correlated: The share of units with an inner_share of 3/m or more.
        kept: σ²‖∂L/∂y‖²/(γ²‖g‖²) with y the layer's input: the theorem's left side over γ²/σ²‖g‖². With BatchNorm it
            is 1 − mean_share − inner_share in each unit. NaN as for input_norm.
        sizes: Numbers of samples N.
        sum_squares: ⟨1, N g⟩² at each of these: the median over units.
        slope: By which power of N that grows; NaN with fewer than two sizes.
    """

    layer: str
    units: int
    values: int
    output_norm: float
    input_norm: float
    mean_share: float
    inner_share: float
    correlated: float
    kept: float
    sizes: tuple[int, ...] = ()
    sum_squares: tuple[float, ...] = ()
    slope: float = math.nan


@dataclass(frozen=True, kw_only=True)
class NormGradientsResult(Result):
    """The gradient at the outputs of layers.

    Attributes:
        loss: The loss of the batch.
        samples: How many samples it has.
        layers: In the order in which they were first called.
    """

    loss: float = math.nan
    samples: int = 0
    layers: tuple[LayerGradient, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NormGradients(Probe[NormGradientsResult]):
    """The gradient at the outputs of normalization layers (landscape, Theorem 4.1 and what is said after it).

    The theorem compares BatchNorm's gradient with that of a network without it, whose activations are z: so g is taken
    at z, the layer's output. Of networks without normalization the same is measured at other layers' outputs.

    It costs a forward and a backward on the batch, and one more of each for each of the `sizes`, on the first samples
    of the batch. Peak memory is that of a training step, and a copy of the chosen outputs, their gradients, and a few
    times the largest of them in double precision.

    Args:
        layers: Patterns of modules' names; none: all normalization layers, or, without these, all dense and
            convolution layers.
        max_layers: Look at so many of them at most, evenly over their order; None: no limit.
        sizes: Numbers of samples at which ⟨1, N g⟩² is measured, for losses that are means over samples. Those that
            the batch does not have are left out.
        data: A batch to measure on; None: that of the step.
        statistics: What layers that normalize by the batch do; see `IsolatedModel`.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "gradients"
    result: ClassVar[type[Result]] = NormGradientsResult

    layers: Sequence[str] = ()
    max_layers: int | None = 8
    sizes: Sequence[int] = ()
    data: Any = None
    statistics: Statistics = "batch"

    def __post_init__(self) -> None:
        """Check the options."""
        options.check_strings(self, "layers")
        options.check_whole(self, "max_layers", minimum=1, optional=True)
        options.check_increasing(self, "sizes", "whole numbers, 1 or larger", lambda n: n >= 1 and n == int(n))
        options.check_data(self)
        options.check_statistics(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> NormGradientsResult:
        """Differentiate by the outputs of layers, or raise CannotMeasure."""
        batch = batch if self.data is None else self.data
        samples = samples_of(batch) or 0
        loss, calls = self._gradients(model, loss_fn, batch)
        found = {name: _describe(name, call) for name, call in calls.items()}
        del calls
        sums: dict[str, dict[int, float]] = {name: {} for name in found}
        for size in (int(size) for size in self.sizes if size <= samples):
            _, calls = self._gradients(model, loss_fn, first_samples(batch, size))
            for name, call in calls.items():
                sums.setdefault(name, {})[size] = _median((size * call.gradient.sum(0)).square())
        layers = [_with_sums(layer, sums[name]) for name, layer in found.items()]
        return NormGradientsResult(loss=loss, samples=samples, layers=tuple(layers))

    def _gradients(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> tuple[float, "dict[str, _Call]"]:
        """The loss, and what each layer's first call has."""
        seen: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}

        def see(name: str, module: nn.Module, x: Tensor, z: Tensor) -> Tensor | None:
            if name in seen or not z.requires_grad:
                return None
            seen[name] = module, x, z
            return z.clone()  # which may be changed in place, while z stays

        def watched(model: nn.Module, batch: Any) -> Tensor:
            with observe_calls(self._selected(model), see):
                return loss_fn(model, batch)

        surface = Surface(model, watched, batch, statistics=self.statistics)

        def work(loss: Tensor, leaves: dict[str, Tensor]) -> tuple[float, dict[str, _Call]]:
            if not seen:
                raise CannotMeasure("No layer was called whose output depends on a trained parameter.")
            check_gradient(loss)
            outputs = [z for _, _, z in seen.values()]
            gradients = torch.autograd.grad(loss, outputs, retain_graph=True, allow_unused=True)
            slopes = {name: g for name, g in zip(seen, gradients, strict=True) if g is not None}
            value = check_finite(loss.detach(), slopes)
            return value, {name: _Call.of(*seen[name], slope) for name, slope in slopes.items()}

        try:
            return surface.inside(work)
        finally:
            seen.clear()

    def _selected(self, model: nn.Module) -> dict[str, nn.Module]:
        modules = dict(model.named_modules())
        if self.layers:
            names = list(modules)
        else:
            names = [name for name in modules if is_norm(modules[name])]
            names = names or [name for name in modules if default_layer(modules[name])]
        if not names:
            raise CannotMeasure("The model has no normalization, dense or convolution layer; name others in `layers`.")
        return {name: modules[name] for name in select_layers(names, self.layers, self.max_layers)}


@dataclass(frozen=True)
class _Call:
    """One call of a layer: rows of units.

    Attributes:
        output: z, a row for each sample and position.
        gradient: g at z.
        input: The layer's input y; None if it is not to be looked at.
        input_gradient: What of g reaches y through the layer.
    """

    output: Tensor
    gradient: Tensor
    input: Tensor | None
    input_gradient: Tensor | None

    @classmethod
    def of(cls, module: nn.Module, x: Tensor, z: Tensor, slope: Tensor) -> "_Call":
        """All of it in double precision, apart from the graph."""

        def rows(tensor: Tensor) -> Tensor:
            return per_channel_rows(module, tensor.detach()).double()

        through = None
        if normalizes(module) and x.requires_grad:
            # Between x and z there is the layer only, whatever else reads x.
            (through,) = torch.autograd.grad(z, x, slope, retain_graph=True, allow_unused=True)
        if through is None:
            return cls(rows(z), rows(slope), None, None)
        return cls(rows(z), rows(slope), rows(x), rows(through))


def _describe(name: str, call: _Call) -> LayerGradient:
    z, g = call.output, call.gradient
    count = len(z)
    squares = g.square().sum(0)
    deviation = z.std(0, correction=0)
    usable = (squares > 0) & (deviation > 1e-12 * z.abs().amax(0))
    z, g, squares, deviation = z[:, usable], g[:, usable], squares[usable], deviation[usable]
    standard = (z - z.mean(0)) / deviation
    mean = g.sum(0).square() / (count * squares)
    inner = (g * standard).sum(0).square() / (count * squares)
    kept, input_norm = math.nan, math.nan
    if call.input is not None and call.input_gradient is not None:
        input_norm = float(call.input_gradient.norm())
        scale = call.input[:, usable].var(0, correction=0) / deviation.square()
        kept = _median(scale * call.input_gradient[:, usable].square().sum(0) / squares)
    return LayerGradient(
        layer=name,
        units=int(usable.sum()),
        values=count,
        output_norm=float(call.gradient.norm()),
        input_norm=input_norm,
        mean_share=_median(mean),
        inner_share=_median(inner),
        correlated=float((inner >= CORRELATED / count).double().mean()) if len(inner) else math.nan,
        kept=kept,
    )


def _with_sums(layer: LayerGradient, sums: dict[int, float]) -> LayerGradient:
    positive = {size: value for size, value in sums.items() if value > 0}
    slope = math.nan
    if len(positive) > 1:
        slope = float(np.polyfit(np.log(list(positive)), np.log(list(positive.values())), 1)[0])
    return LayerGradient(**{**vars(layer), "sizes": tuple(sums), "sum_squares": tuple(sums.values()), "slope": slope})


def _median(values: Tensor) -> float:
    """The mean of the two in the middle, if their number is even."""
    return float(values.quantile(0.5)) if len(values) else math.nan
