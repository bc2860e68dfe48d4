"""γ, β, weights and their gradients, layer by layer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from trimtab import _torch
from trimtab.bnp.layers import layer_type
from trimtab.norms import RunningNorm
from trimtab.norms.decay import gammas_of
from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.layer_calls import observe_calls
from trimtab.probes.layer_selection import select_layers
from trimtab.probes.result import CannotMeasure, LossFunction, Probe, Result, by_layer
from trimtab.probes.surface import Surface, check_finite, differentiate


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """The weights of one layer.

    Attributes:
        layer: The layer's name.
        size: How many entries its weight has.
        norm: The Frobenius norm ‖w‖ of its weight; under weight normalization, of the weight that it computes.
        variance: The (biased) variance of the entries.
        folded_norm: ‖γw/σ‖, the norm of the weight with the BatchNorm that reads the layer's output folded into it, σ
            from its running variance; ‖w‖ where there is none.
        gradient_norm: The norm of the loss's gradient with respect to the layer's trained parameters, biases too; 0 if
            it has none.
    """

    layer: str
    size: int
    norm: float
    variance: float
    folded_norm: float
    gradient_norm: float


@dataclass(frozen=True, kw_only=True)
class NormWeights:
    """γ and β of one normalization layer, or the lengths γ of a layer under weight normalization.

    Attributes:
        layer: The layer's name.
        units: How many γ it has.
        gamma: Their mean.
        gamma_square: The mean of γ² (regularization, Fig. 5a).
        gamma_least: The least.
        gamma_largest: The largest.
        beta: The mean of β; NaN if there is none.
        beta_square: The mean of β²; NaN if there is none.
    """

    layer: str
    units: int
    gamma: float
    gamma_square: float
    gamma_least: float
    gamma_largest: float
    beta: float = math.nan
    beta_square: float = math.nan


@dataclass(frozen=True, kw_only=True)
class WeightsResult(Result):
    """Weights, γ and β of a model.

    Attributes:
        loss: The loss of the batch.
        layers: Those with weights, in the order in which the model has them.
        norms: Those with a γ.
    """

    loss: float = math.nan
    layers: tuple[LayerWeights, ...] = ()
    norms: tuple[NormWeights, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Weights(Probe[WeightsResult]):
    """Norms of weights and of their gradients, γ and β of each layer (regularization, Figs. 5a and 6).

    Layers with weights are those whose `weight` has two dimensions or more. Which BatchNorm reads a layer's output is
    seen in the forward: the one that is called with the very tensor.

    It costs a forward and a backward. Peak memory is that of a training step.

    Args:
        layers: Patterns of modules' names; none: all.
        max_layers: Look at so many layers with weights, and at so many norms, evenly over their order; None: no limit.
        statistics: What layers that normalize by the batch do, for the gradient; see `IsolatedModel`.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "weights"
    result: ClassVar[type[Result]] = WeightsResult

    layers: Sequence[str] = ()
    max_layers: int | None = None
    statistics: Statistics = "batch"

    def __post_init__(self) -> None:
        """Check the options."""
        options.check_strings(self, "layers")
        options.check_whole(self, "max_layers", minimum=1, optional=True)
        options.check_statistics(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> WeightsResult:
        """Run the model forward and backward once, or raise CannotMeasure."""
        outputs: dict[str, Tensor] = {}
        readers: dict[str, nn.Module] = {}

        def see(name: str, module: nn.Module, x: Tensor, y: Tensor) -> None:
            if _folds(module):
                readers.update({layer: module for layer, output in outputs.items() if output is x})
            else:
                outputs[name] = y

        def watched(model: nn.Module, batch: Any) -> Tensor:
            modules = dict(model.named_modules())
            with observe_calls({name: m for name, m in modules.items() if _weight(m) is not None or _folds(m)}, see):
                loss = loss_fn(model, batch)
            outputs.clear()
            return loss

        surface = Surface(model, watched, batch, statistics=self.statistics)

        def work(loss: Tensor, leaves: dict[str, Tensor]) -> WeightsResult:
            gradient = differentiate(loss, leaves)
            value = check_finite(loss.detach(), gradient)
            surface.isolated.rewind()  # running variances, which the forward has moved
            with torch.no_grad():
                return self._describe(surface.isolated.model, readers, gradient, value)

        return surface.inside(work)

    def _describe(
        self, model: nn.Module, readers: dict[str, nn.Module], gradient: dict[str, Tensor], loss: float
    ) -> WeightsResult:
        groups = by_layer(gradient)
        modules = dict(model.named_modules())
        layers = [
            _layer_weights(name, modules[name], readers.get(name), [gradient[each] for each in groups.get(name, [])])
            for name in self._selected(modules, lambda module: _weight(module) is not None)
        ]
        with_gamma = self._selected(modules, lambda module: any(True for _ in gammas_of(module)))
        norms = [_norm_weights(name, modules[name]) for name in with_gamma]
        if not layers and not norms:
            raise CannotMeasure("The model has no layer with a weight of two dimensions, and none with a γ.")
        return WeightsResult(loss=loss, layers=tuple(layers), norms=tuple(norms))

    def _selected(self, modules: dict[str, nn.Module], wanted: Callable[[nn.Module], bool]) -> list[str]:
        names = [name for name in modules if wanted(modules[name])]
        if not self.layers:
            return select_layers(names, (), self.max_layers)
        chosen = set(select_layers(list(modules), self.layers, None))
        return select_layers([name for name in names if name in chosen], (), self.max_layers)


def _weight(module: nn.Module) -> Tensor | None:
    """The weight that a layer multiplies by, as it is now; None if it has none of two dimensions or more."""
    known = "weight" in _torch.parameters_of(module) or parametrize.is_parametrized(module, "weight")
    weight = getattr(module, "weight", None) if known else None
    return weight if isinstance(weight, Tensor) and weight.ndim > 1 else None


def _folds(module: nn.Module) -> bool:
    """Whether evaluation multiplies each channel by γ over the root of the running variance."""
    ours = isinstance(module, RunningNorm) and type(module).normalize_by_running is RunningNorm.normalize_by_running
    return (ours or isinstance(module, _torch.BATCH_NORMS)) and getattr(module, "running_var", None) is not None


def _layer_weights(name: str, layer: nn.Module, reader: nn.Module | None, gradient: list[Tensor]) -> LayerWeights:
    weight = _weight(layer)
    assert weight is not None
    wide = weight.double()
    kind = layer_type(layer)
    norm = folded = float(wide.norm())
    if kind is not None and reader is not None:
        rows = kind.view(layer, wide).flatten(2).norm(dim=2).flatten()
        scale = torch.rsqrt(reader.get_buffer("running_var").double() + float(vars(reader)["eps"]))
        gamma = next(gammas_of(reader), None)
        folded = float((rows * scale * (1.0 if gamma is None else gamma.double())).norm())
    return LayerWeights(
        layer=name,
        size=weight.numel(),
        norm=norm,
        variance=float(wide.var(correction=0)),
        folded_norm=folded,
        gradient_norm=math.hypot(*map(float, _torch.norms(gradient))) if gradient else 0.0,
    )


def _norm_weights(name: str, layer: nn.Module) -> NormWeights:
    gamma = next(gammas_of(layer)).double()
    bias = _torch.parameters_of(layer).get("bias") if _weight(layer) is None else None
    return NormWeights(
        layer=name,
        units=gamma.numel(),
        gamma=float(gamma.mean()),
        gamma_square=float(gamma.square().mean()),
        gamma_least=float(gamma.min()),
        gamma_largest=float(gamma.max()),
        beta=math.nan if bias is None else float(bias.double().mean()),
        beta_square=math.nan if bias is None else float(bias.double().square().mean()),
    )
