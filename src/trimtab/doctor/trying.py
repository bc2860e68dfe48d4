"""Tries a step that a training has taken: how far the loss follows it, on its own batch and on another."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm.moments import at_least_float32
from trimtab.doctor.record import PATH, Trial
from trimtab.probes.isolation import Point
from trimtab.probes.result import CannotMeasure, LossFunction
from trimtab.probes.surface import Surface, differentiate

MULTIPLES = (1 / 8, 1 / 2, 1.0, 2.0, 8.0)
"""Of the step: from far too long to far too short, each a forward."""
GROWTH = 0.1
"""By how much all weights are lengthened to see what decay costs: little enough for a slope, enough for float32."""
LOSS_SCALE = 2.0**12
"""A power of two, which changes no digit of a gradient but those that are lost below the smallest number."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to find out about one step beside its length.

    Attributes:
        path: The way since an earlier trial, by the names of the parameters; None if there is none.
        without: Layers whose part of the step is to be left out.
        rescaled: Layers whose weight is to be multiplied, and by how much.
        running: Whether to compare with evaluation mode.
        decay: Weight decay, 0 for none.
        half: Whether small gradients may be lost in half precision.
        validation: Held-out batches.
    """

    path: Point | None = None
    without: Collection[str] = ()
    rescaled: Mapping[str, float] = field(default_factory=dict)
    running: bool = False
    decay: float = 0.0
    half: bool = False
    validation: Sequence[Any] = ()


def try_step(
    model: nn.Module,
    loss_fn: LossFunction,
    moved: Point,
    own: Any,
    other: Any,
    *,
    step: int,
    lr: float,
    question: Question,
) -> Trial:
    """Measure the step that has led to where the model is.

    Args:
        model: After the step.
        loss_fn: Takes the model and a batch.
        moved: The step, by the names of the parameters.
        own: The batch that it was made from.
        other: Another one.
        step: Its number.
        lr: Its learning rate.
        question: What else is asked.

    Raises:
        CannotMeasure: If the loss was not finite before the step, or there was no step.
    """
    mine, another = Surface(model, loss_fn, own), Surface(model, loss_fn, other)
    way = _completed(moved, mine.here)
    if not any(bool(value.any()) for value in way.values()):
        raise CannotMeasure("No parameter moved: was the optimizer's step skipped, or doctor.step() called twice?")
    before = mine.moved(way, -1.0)
    loss, gradient = mine.gradient(before)
    (after,) = _along(mine, way, [1.0])
    other_losses = _along(another, way, [0.0, *MULTIPLES])
    return Trial(
        step=step,
        lr=lr,
        loss=loss,
        after=after,
        promised=-_dot(gradient, way),
        multiples=MULTIPLES,
        others=tuple(other_losses[1:]),
        other=other_losses[0],
        evaluated=_evaluated(model, loss_fn, [own], before) if question.running else math.nan,
        grown=_at(another, {name: (1 + GROWTH) * value for name, value in before.items()})
        if question.decay
        else math.nan,
        path=()
        if question.path is None
        else tuple(_along(another, _completed(question.path, mine.here), [1 + a for a in PATH])),
        without={name: _at(another, _without(way, name, mine.here)) for name in question.without},
        rescaled={name: _at(another, _rescaled(before, name, factor)) for name, factor in question.rescaled.items()},
        undone=_undone(gradient, before, lr * question.decay, way),
        underflow=_underflow(mine, before, gradient) if question.half else math.nan,
        validation=_evaluated(model, loss_fn, question.validation, before),
    )


def _completed(way: Point, here: Point) -> dict[str, Tensor]:
    """A way for all parameters: those that it does not name stay."""
    return {name: way[name] if name in way else torch.zeros_like(value) for name, value in here.items()}


def _along(surface: Surface, way: Point, multiples: Iterable[float]) -> list[float]:
    """The loss after multiples of a way that has been gone."""
    losses = surface.walk(way, [s - 1.0 for s in multiples], _value, graph=False)
    return torch.stack(losses).tolist()


def _value(loss: Tensor, leaves: dict[str, Tensor]) -> Tensor:
    return loss.detach().clone()


def _at(surface: Surface, point: Point) -> float:
    try:
        return surface.loss(point)
    except CannotMeasure:  # it is not finite there
        return math.inf


def _evaluated(model: nn.Module, loss_fn: LossFunction, batches: Sequence[Any], point: Point) -> float:
    return _mean(_at(Surface(model, loss_fn, batch, statistics="running"), point) for batch in batches)


def _mean(values: Iterable[float]) -> float:
    several = list(values)
    return sum(several) / len(several) if several else math.nan


def _without(way: Point, layer: str, here: Point) -> dict[str, Tensor]:
    """Where the step has led, with one layer where it was."""
    own = f"{layer}." if layer else ""
    return {name: value - way[name] if name.startswith(own) else value for name, value in here.items()}


def _rescaled(before: Point, layer: str, factor: float) -> dict[str, Tensor]:
    weight = f"{layer}.weight" if layer else "weight"
    return {name: factor * value if name == weight else value for name, value in before.items()}


def _dot(a: Point, b: Point) -> float:
    # Not in half precision, where a gradient times a small step is 0.
    ours, theirs = ([at_least_float32(point[name]) for name in a] for point in (a, b))
    products = torch.cat([each.reshape(-1) for each in _torch.multiply_all(ours, theirs)])
    return float(products.sum(dtype=torch.float64))


def _undone(gradient: Point, before: Point, strength: float, way: Point) -> float:
    """The share of the promised decrease that decay takes back: lr·wd·(-g·θ) over what the rest promises."""
    if not strength:
        return math.nan
    taken = strength * -_dot(gradient, before)
    rest = -_dot(gradient, way) + taken
    return taken / rest if rest > 0 else math.nan


def _underflow(surface: Surface, before: Point, gradient: Point) -> float:
    """The share of entries that are 0 in the gradient and not in that of a loss that is scaled up first."""
    scaled = surface.inside(lambda loss, leaves: differentiate(loss * LOSS_SCALE, leaves), before)
    lost = sum(int(((gradient[name] == 0) & (value != 0) & value.isfinite()).sum()) for name, value in scaled.items())
    total = sum(value.numel() for value in gradient.values())
    return lost / max(total, 1)
