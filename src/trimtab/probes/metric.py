"""The metric in which an optimizer's step is that of steepest descent: lengths of steps and sizes of gradients in it.

A step θ⁺ = θ − ηMg with a symmetric positive definite M is steepest descent in the metric M⁻¹: with M = PPᵀ it is plain
gradient descent in z for θ = Pz (bnp paper, eqs. 7 and 8). In z a gradient has the length √(gᵀMg), and a displacement d
of θ the length √(dᵀM⁻¹d). Whatever is measured with these two is what a plain measurement finds of the loss as a
function of z.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from trimtab.bnp.algorithm.moments import at_least_float32
from trimtab.probes.directions import total_norm
from trimtab.probes.isolation import Point


class NoMetric(Exception):  # noqa: N818
    """A step that is steepest descent in no known metric; the sentence says why."""


@dataclass(frozen=True, kw_only=True)
class LayerMetric:
    """M = PPᵀ/q² of one layer that BNP preconditions.

    Attributes:
        weight: The name of its weight.
        bias: The name of its bias; None if there is none to take up the centring: then M is D²/q².
        view: The view of a tensor like the weight as (groups, outputs, inputs, sites).
        mean: μ.
        scale: σ̃².
        q2: q².
    """

    weight: str
    bias: str | None
    view: Callable[[Tensor], Tensor]
    mean: Tensor
    scale: Tensor
    q2: float | Tensor

    def in_z(self, values: Point, *, gradient: bool) -> list[Tensor]:
        """Pᵀg/q of a gradient, or qP⁻¹d of a displacement."""
        weight = at_least_float32(self.view(values[self.weight].contiguous()))
        root = (self.q2 * self.scale).sqrt()
        if self.bias is None:
            return [weight / root if gradient else weight * root]
        bias = at_least_float32(values[self.bias]).reshape(*weight.shape[:2], 1, 1)
        q = self.q2**0.5
        if gradient:
            return [(weight - self.mean * bias) / root, bias / q]
        return [weight * root, q * (bias + (self.mean * weight).sum((2, 3), keepdim=True))]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Lengths in the metric of a step.

    Attributes:
        name: `euclidean` (M = I), `bnp` (PPᵀ/q² where BNP preconditions, I elsewhere), or `adaptive` (diagonal).
        gains: How many times larger a parameter's learning rate is than the first group's, by its name; parameters that
            are not named do not move, and do not count.
        layers: Those that BNP preconditions.
        diagonal: M of a parameter that has a diagonal one.
    """

    name: str
    gains: Mapping[str, float]
    layers: Sequence[LayerMetric] = ()
    diagonal: Mapping[str, Tensor] = field(default_factory=dict)

    def gradient_norm(self, gradient: Point) -> Tensor:
        """√(gᵀMg)."""
        return self._length(gradient, gradient=True)

    def distance(self, displacement: Point) -> Tensor:
        """√(dᵀM⁻¹d)."""
        return self._length(displacement, gradient=False)

    def _length(self, values: Point, *, gradient: bool) -> Tensor:
        in_layers: dict[str | None, LayerMetric | None] = dict.fromkeys(layer.bias for layer in self.layers)
        in_layers |= {layer.weight: layer for layer in self.layers}
        parts: list[Tensor] = []
        for name, gain in self.gains.items():
            if not gain:
                continue
            layer = in_layers.get(name)
            if layer is not None:
                found = layer.in_z(values, gradient=gradient)
            elif name in in_layers:  # a bias, which belongs to its weight
                continue
            elif name in self.diagonal:
                root = self.diagonal[name].sqrt()
                found = [values[name] * root if gradient else values[name] / root]
            else:
                found = [values[name]]
            parts += [part * (gain**0.5 if gradient else gain**-0.5) for part in found]
        return total_norm(parts)


def step_metric(
    optimizer: Optimizer, double: Optimizer, twins: Mapping[str, nn.Parameter], layers: Sequence[LayerMetric]
) -> Metric:
    """The metric of a step that was tried out.

    Args:
        optimizer: Whose step.
        double: Its copy, after the step.
        twins: The parameters that the copy holds, by name.
        layers: Those whose gradients BNP has replaced before.

    Raises:
        NoMetric: If there is none.
    """
    names = {id(twin): name for name, twin in twins.items()}
    groups = {names[id(p)]: group for group in double.param_groups for p in group["params"] if id(p) in names}
    first = float(optimizer.param_groups[0]["lr"])
    gains = {name: float(groups[name]["lr"]) / first for name in twins}
    for layer in layers:
        if layer.bias is not None and gains.get(layer.bias, 0.0) != gains[layer.weight]:
            raise NoMetric(f"{layer.weight} and {layer.bias} have different learning rates, and BNP mixes the two.")
    kind = type(optimizer)
    if kind is SGD:
        return Metric(name="bnp" if layers else "euclidean", gains=gains, layers=layers)
    if kind not in _DIAGONALS:
        raise NoMetric(f"The metric of {kind.__name__} is not known.")
    if layers:
        raise NoMetric(f"{kind.__name__} after BNP is steepest descent in no metric: the product is not symmetric.")
    diagonal = {name: _DIAGONALS[kind](double.state[twins[name]], group) for name, group in groups.items()}
    return Metric(name="adaptive", gains=gains, diagonal=diagonal)


def _adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    if not state:  # a parameter without gradient has not moved
        return torch.ones(())
    second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    unbiased = second / (1 - group["betas"][1] ** float(state["step"]))
    return _inverse(unbiased, group)


def _rmsprop(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    if not state:
        return torch.ones(())
    mean2 = state["grad_avg"].square() if group["centered"] else 0.0
    return _inverse(state["square_avg"] - mean2, group)


def _adagrad(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    return _inverse(state["sum"], group)


def _inverse(square: Tensor, group: Mapping[str, Any]) -> Tensor:
    return 1 / (square.sqrt() + float(group["eps"]))


_DIAGONALS: dict[type[Optimizer], Callable[[Mapping[str, Any], Mapping[str, Any]], Tensor]] = {
    Adam: _adam,
    AdamW: _adam,
    RMSprop: _rmsprop,
    Adagrad: _adagrad,
}
