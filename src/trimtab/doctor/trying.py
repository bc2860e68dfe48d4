"""Tries a step that a training has taken: how far the loss follows it, on its own batch and on another."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm.moments import at_least_float32
from trimtab.doctor.measures import Packed
from trimtab.doctor.record import PATH, Trial
from trimtab.probes.isolation import Point
from trimtab.probes.result import CannotMeasure, LossFunction
from trimtab.probes.surface import MovingPoint, Surface, differentiate, ends_of, finite_loss

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
    tried = _TriedStep(surface, surface.on(other), moving, way, surface.moved(way, -1.0))
    numbers = surface.isolated.run(lambda: Packed(_measured(tried, own, question)), moving.leaves).arrays()

    def number(what: str, about: Any = None) -> float:
        return numbers[what, about].item() if (what, about) in numbers else math.nan

    promised = -number("slope")
    return Trial(
        step=step,
        lr=lr,
        loss=finite_loss(number("loss"), numbers["ends", None]),
        after=number("after"),
        promised=promised,
        multiples=MULTIPLES,
        others=tuple(number("other", multiple) for multiple in MULTIPLES),
        other=number("other", 0.0),
        evaluated=_or_infinite(number("evaluated")) if question.running else math.nan,
        grown=_or_infinite(number("grown")) if question.decay else math.nan,
        path=() if question.path is None else tuple(number("path", a) for a in PATH),
        without={name: _or_infinite(number("without", name)) for name in question.without},
        rescaled={name: _or_infinite(number("rescaled", name)) for name in question.rescaled},
        undone=_undone(promised, -number("decayed"), lr * question.decay),
        underflow=number("lost") / max(sum(value.numel() for value in way.values()), 1),
        validation=_mean([number("validation", i) for i in range(len(question.validation))]),
    )


@dataclass(frozen=True)
class _TriedStep:
    """A step, and what its losses are computed with.

    Attributes:
        own_loss: The loss of the batch that the step was made from.
        other_loss: That of another one.
        moving: Goes from point to point.
        way: The step, for all parameters.
        before: Where it has begun; it has led to where the model is, `own_loss.here`.
    """

    own_loss: Surface
    other_loss: Surface
    moving: MovingPoint
    way: Point
    before: Point

    def gradient(self, scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the own batch before the step, times a number, and its gradient."""
        self.moving.move(self.before)
        loss = self.own_loss.loss_in_graph() * scale
        return loss.detach(), differentiate(loss, self.moving.leaves)

    def along(self, surface: Surface, way: Point, multiple: float) -> Tensor:
        """The loss after a multiple of a way that has been gone."""
        self.moving.move(surface.here, way, multiple - 1.0)
        return _loss(surface)

    def other_at(self, point: Point) -> Tensor:
        """The loss of the other batch at a point."""
        self.moving.move(point)
        return _loss(self.other_loss)

    def evaluated_before(self, batch: Any) -> Tensor:
        """The loss of a batch in evaluation mode, before the step."""
        self.moving.move(self.before)  # which also restores the modes
        self.own_loss.isolated.model.eval()
        return _loss(self.own_loss.on(batch))


def _measured(tried: _TriedStep, own: Any, question: Question) -> dict[tuple[str, Any], Tensor]:
    """All that a trial measures, by what it is and what it is about; still on its device, so that nothing waits."""
    way, before, after = tried.way, tried.before, tried.own_loss.here
    loss, gradient = tried.gradient()
    found: dict[tuple[str, Any], Tensor] = {
        ("ends", None): ends_of(list(gradient.values())),
        ("loss", None): loss,
        ("slope", None): _dot(gradient, way),
        ("after", None): tried.along(tried.own_loss, way, 1.0),
    }
    for multiple in (0.0, *MULTIPLES):
        found["other", multiple] = tried.along(tried.other_loss, way, multiple)
    if question.path is not None:
        path = _completed(question.path, before)
        for a in PATH:
            found["path", a] = tried.along(tried.other_loss, path, 1 + a)
    for name in question.without:
        found["without", name] = tried.other_at(_without(way, name, after))
    for name, factor in question.rescaled.items():
        found["rescaled", name] = tried.other_at(_rescaled(before, name, factor))
    if question.decay:
        found["grown", None] = tried.other_at({name: (1 + GROWTH) * value for name, value in before.items()})
        found["decayed", None] = _dot(gradient, before)
    if question.half:
        found["lost", None] = _lost(gradient, tried.gradient(LOSS_SCALE)[1])
    if question.running:
        found["evaluated", None] = tried.evaluated_before(own)
    for i, batch in enumerate(question.validation):
        found["validation", i] = tried.evaluated_before(batch)
    return found


def _completed(way: Point, here: Point) -> dict[str, Tensor]:
    """A way for all parameters: those that it does not name stay."""
    return {name: way[name] if name in way else torch.zeros_like(value) for name, value in here.items()}


def _loss(surface: Surface) -> Tensor:
    with torch.no_grad():
        return surface.loss_in_graph().clone()  # it may be one tensor that is written to again and again


def _or_infinite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _mean(losses: Collection[float]) -> float:
    return sum(map(_or_infinite, losses)) / len(losses) if losses else math.nan


def _without(way: Point, layer: str, here: Point) -> dict[str, Tensor]:
    """Where the step has led, with one layer where it was."""
    own = f"{layer}." if layer else ""
    return {name: value - way[name] if name.startswith(own) else value for name, value in here.items()}


def _rescaled(before: Point, layer: str, factor: float) -> dict[str, Tensor]:
    weight = f"{layer}.weight" if layer else "weight"
    return {name: factor * value if name == weight else value for name, value in before.items()}


def _dot(a: Point, b: Point) -> Tensor:
    # Not in half precision, where a gradient times a small step is 0.
    ours, theirs = ([at_least_float32(point[name]) for name in a] for point in (a, b))
    products = torch.cat([each.reshape(-1) for each in _torch.multiply_all(ours, theirs)])
    return products.sum(dtype=torch.float64)


def _undone(promised: float, decayed: float, strength: float) -> float:
    """The share of the promised decrease that decay takes back: lr·wd·(-g·θ) over what the rest promises."""
    if not strength:
        return math.nan
    taken = strength * decayed
    rest = promised + taken
    return taken / rest if rest > 0 else math.nan


def _lost(gradient: Point, scaled: Point) -> Tensor:
    """How many entries are 0 in the gradient and not in that of a loss that was scaled up first."""
    lost = [((gradient[name] == 0) & (value != 0) & value.isfinite()).sum() for name, value in scaled.items()]
    return torch.stack(lost).sum()
