"""Tries a step that a training has taken: how far the loss follows it, on its own batch and on another."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm.moments import at_least_float32
from trimtab.doctor.record import PATH, Trial
from trimtab.probes.isolation import Point
from trimtab.probes.result import CannotMeasure, LossFunction
from trimtab.probes.surface import MovingPoint, Surface, check_finite, differentiate

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
    surface = Surface(model, loss_fn, own)
    way = _completed(moved, surface.here)
    if not any(bool(value.any()) for value in way.values()):
        raise CannotMeasure("No parameter moved: was the optimizer's step skipped, or doctor.step() called twice?")
    # All in one run of the isolated model, which takes as long to begin as a step.
    moving = MovingPoint(surface.isolated)
    here = _Here(surface, surface.on(other), moving, way, surface.moved(way, -1.0))
    measured = surface.isolated.run(lambda: _measured(here, own, lr, question), moving.leaves)
    return Trial(step=step, lr=lr, multiples=MULTIPLES, **measured)


@dataclass(frozen=True)
class _Here:
    """Where a step is tried.

    Attributes:
        own: The loss of the batch that the step was made from.
        other: That of another one.
        moving: Goes from point to point.
        way: The step, for all parameters.
        before: Where it has begun; it has led to `own.here`.
    """

    own: Surface
    other: Surface
    moving: MovingPoint
    way: Point
    before: Point

    def gradient(self, scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the own batch before the step, times a number, and its gradient."""
        self.moving.move(self.before)
        loss = self.own.loss_in_graph() * scale
        return loss.detach(), differentiate(loss, self.moving.leaves)

    def along(self, surface: Surface, way: Point, multiples: Iterable[float]) -> list[float]:
        """The loss after multiples of a way that has been gone."""
        losses = []
        for multiple in multiples:
            self.moving.move(surface.here, way, multiple - 1.0)
            losses.append(_loss(surface))
        return torch.stack(losses).tolist()

    def at(self, point: Point) -> float:
        """The loss of the other batch at a point, infinite if it is not finite."""
        self.moving.move(point)
        return _finite(float(_loss(self.other)))

    def evaluated(self, batches: Iterable[Any]) -> float:
        """The mean loss of batches in evaluation mode before the step; NaN without one, infinite if one is."""
        losses = []
        for batch in batches:
            self.moving.move(self.before)  # which also restores the modes
            self.own.isolated.model.eval()
            losses.append(_loss(self.own.on(batch)))
        return fmean(_finite(float(loss)) for loss in losses) if losses else math.nan


def _measured(here: _Here, own: Any, lr: float, question: Question) -> dict[str, Any]:
    """The fields of a `Trial`."""
    way, before = here.way, here.before
    loss, gradient = here.gradient()
    found: dict[str, Any] = {"loss": check_finite(loss, gradient), "promised": -_dot(gradient, way)}
    (found["after"],) = here.along(here.own, way, [1.0])
    found["other"], *others = here.along(here.other, way, [0.0, *MULTIPLES])
    found["others"] = tuple(others)
    if question.path is not None:
        path = _completed(question.path, before)
        found["path"] = tuple(here.along(here.other, path, [1 + a for a in PATH]))
    found["without"] = {name: here.at(_without(way, name, here.own.here)) for name in question.without}
    found["rescaled"] = {name: here.at(_rescaled(before, name, by)) for name, by in question.rescaled.items()}
    if question.decay:
        found["grown"] = here.at({name: (1 + GROWTH) * value for name, value in before.items()})
        found["undone"] = _undone(gradient, before, lr * question.decay, way)
    if question.half:
        found["underflow"] = _underflow(gradient, here.gradient(LOSS_SCALE)[1])
    found["evaluated"] = here.evaluated([own] if question.running else [])
    found["validation"] = here.evaluated(question.validation)
    return found


def _completed(way: Point, here: Point) -> dict[str, Tensor]:
    """A way for all parameters: those that it does not name stay."""
    return {name: way[name] if name in way else torch.zeros_like(value) for name, value in here.items()}


def _loss(surface: Surface) -> Tensor:
    with torch.no_grad():
        return surface.loss_in_graph().clone()  # it may be one tensor that is written to again and again


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


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


def _underflow(gradient: Point, scaled: Point) -> float:
    """The share of entries that are 0 in the gradient and not in that of a loss that was scaled up first."""
    lost = sum(int(((gradient[name] == 0) & (value != 0) & value.isfinite()).sum()) for name, value in scaled.items())
    total = sum(value.numel() for value in gradient.values())
    return lost / max(total, 1)
