"""The loss and its gradient along a line through the parameters: how smooth the loss is where the training goes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.directions import distance_between, filter_normalized, total_norm
from trimtab.probes.isolation import Point
from trimtab.probes.result import CannotMeasure, LossFunction, Probe, Result
from trimtab.probes.surface import Surface, differentiate
from trimtab.records import largest_smoothness, smoothness_by_multiple

VGG_MULTIPLES = tuple(0.5 + 3.5 * i / 7 for i in range(8))
"""Eight points on [1/2, 4], the range of the landscape paper for its VGG networks (App. A.2.2)."""

DLN_MULTIPLES = tuple(0.01 + 29.99 * i / 7 for i in range(8))
"""Eight points on [1/100, 30], its range for deep linear networks."""


@dataclass(frozen=True, kw_only=True)
class LandscapeResult(Result):
    """Losses and gradients at the points θ − s·η·d for several s; θ are the parameters, d is the gradient or random.

    At a point where the loss diverges the numbers are infinite or NaN. The properties count
    each of those as infinite, so that an infinite end of a range says that some point is such.

    Attributes:
        loss: L(θ).
        gradient_norm: ‖∇L(θ)‖.
        step_size: η.
        direction: What d is.
        multiples: The s.
        losses: L(θ − sηd) for each s.
        gradient_norms: ‖∇L(θ − sηd)‖ for each s.
        gradient_changes: ‖∇L(θ) − ∇L(θ − sηd)‖ for each s, the gradient predictiveness.
        distances: How far θ − sηd is from θ, for each s; for parameters in half precision as it is after rounding.
    """

    loss: float = math.nan
    gradient_norm: float = math.nan
    step_size: float = math.nan
    direction: str = ""
    multiples: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    gradient_changes: tuple[float, ...] = ()
    distances: tuple[float, ...] = ()

    @property
    def loss_range(self) -> tuple[float, float]:
        """The smallest and the largest loss of the points, θ itself not among them (landscape, Fig. 4a)."""
        return _range(self.losses)

    @property
    def predictiveness_range(self) -> tuple[float, float]:
        """The smallest and the largest change of the gradient (landscape, Fig. 4b)."""
        return _range(self.gradient_changes)

    @property
    def smoothness_by_multiple(self) -> tuple[float, ...]:
        """β at each of the multiples: the change of the gradient per distance. NaN where the distance is 0."""
        return smoothness_by_multiple(self.gradient_changes, self.distances)

    @property
    def smoothness(self) -> float:
        """The effective β: the largest change of the gradient per distance (landscape, Fig. 4c).

        Where the gradient's change levels off with the distance, as it does with BatchNorm, the largest is that of the
        nearest point: then it tells where the range begins (`smoothness_at_edge`), and β is to be compared multiple by
        multiple.
        """
        return self._largest_smoothness[0]

    @property
    def smoothness_multiple(self) -> float:
        """At which multiple β is largest; the one nearest to θ if it is so at several."""
        return self._largest_smoothness[1]

    @property
    def smoothness_at_edge(self) -> bool:
        """Whether that is the nearest or the farthest of the points on its side of θ.

        If so, a point still nearer or farther might have a larger β.
        """
        return self._largest_smoothness[2]

    @property
    def _largest_smoothness(self) -> tuple[float, float, bool]:
        return largest_smoothness(self.multiples, self.smoothness_by_multiple)

    @property
    def lipschitz(self) -> float:
        """The largest norm of the gradient at the points and at θ.

        It is a lower bound of the loss's Lipschitz constant there (landscape, Sec. 3.1).
        """
        return _largest((self.gradient_norm, *self.gradient_norms)) if self.multiples else math.nan

    @property
    def steepest(self) -> float:
        """The largest change of the loss per distance between two neighbours on the line, θ being one of the points.

        It is another such lower bound, by the loss alone. Where points are so near that their losses differ by
        rounding only, it is rounding that it shows.
        """
        places = [math.copysign(d, s) for s, d in zip(self.multiples, self.distances, strict=True)]
        met = sorted([(0.0, self.loss), *zip(places, self.losses, strict=True)])
        steps = [(there - here, abs(b - a)) for (here, a), (there, b) in pairwise(met)]
        return _largest(change / distance for distance, change in steps if distance > 0)

    def to_dict(self) -> dict[str, Any]:
        """All of it, the properties included."""
        derived = {
            "loss_range": list(self.loss_range),
            "predictiveness_range": list(self.predictiveness_range),
            "smoothness": self.smoothness,
            "smoothness_by_multiple": list(self.smoothness_by_multiple),
            "smoothness_multiple": self.smoothness_multiple,
            "smoothness_at_edge": self.smoothness_at_edge,
            "lipschitz": self.lipschitz,
            "steepest": self.steepest,
        }
        return super().to_dict() | derived


@dataclass(frozen=True, kw_only=True)
class Landscape(Probe[LandscapeResult]):
    """Loss, gradient predictiveness and effective smoothness along a line (landscape, Secs. 3.1, 3.2, App. A.2.2).

    Each point costs one forward and one backward, and θ costs one more. Beside what a forward and a backward need it
    takes the memory of three times the trained parameters: the gradient at θ, a point and the gradient there; four
    times with a random direction; and of the largest parameter once more.

    Args:
        step_size: η; None takes the optimizer's learning rate at the time of the measurement.
        optimizer: Where to look for the learning rate; if its groups have several, it is that of the first group.
            How it would use the gradient does not matter: the line is that of the plain gradient, as in the paper.
            `StepLandscape` looks along the optimizer's own step.
        multiples: The s of the points θ − s·η·d, in any order. Negative ones go uphill.
        direction: `gradient`: d = ∇L(θ). `random`: d is Gaussian with filters as long as those of the weights, so that
            at s·η = 0.1 each filter has moved by a tenth of its length; see `filter_normalized`.
        seed: What the random direction is drawn from; each measurement with the same seed draws the same numbers.
        statistics: What layers that normalize by the batch do; see `IsolatedModel`.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "landscape"
    result: ClassVar[type[Result]] = LandscapeResult

    step_size: float | None = None
    optimizer: torch.optim.Optimizer | None = None
    multiples: tuple[float, ...] = VGG_MULTIPLES
    direction: Literal["gradient", "random"] = "gradient"
    seed: int = 0
    statistics: Statistics = "batch"

    def __post_init__(self) -> None:
        """Check the options."""
        if self.step_size is None and self.optimizer is None:
            raise ValueError("Give a step_size, or an optimizer whose learning rate is the step size.")
        options.check_positive(self, "step_size")
        options.check_optimizer(self)
        options.check_multiples(self)
        options.check_choice(self, "direction", ("gradient", "random"))
        options.check_seed(self)
        options.check_statistics(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> LandscapeResult:
        """Measure loss and gradient at each point.

        Raises:
            CannotMeasure: If loss or gradient are not finite at θ, or there is no way to go.
        """
        step_size = self._step_size()
        surface = Surface(model, loss_fn, batch, statistics=self.statistics)
        loss, gradient = surface.gradient()
        size = total_norm(gradient.values())
        direction: Point = gradient
        span = size
        if self.direction == "random":
            direction = filter_normalized(surface.isolated.model, surface.here, self.seed)
            span = total_norm(direction.values())
            if not bool(span):
                raise CannotMeasure("The model has no trained weight of two dimensions to draw a direction for.")
        # In half precision much of a step is lost by rounding.
        coarse = any(value.dtype.itemsize < 4 for value in surface.here.values())

        def look(loss: Tensor, leaves: dict[str, Tensor]) -> list[Tensor]:
            there = differentiate(loss, leaves)
            numbers = [loss.detach(), total_norm(there.values()), distance_between(there, gradient)]
            if coarse:
                numbers.append(distance_between({name: leaf.detach() for name, leaf in leaves.items()}, surface.here))
            return numbers

        met = surface.walk(direction, [-s * step_size for s in self.multiples], look)
        points = []
        for s, (value, norm, change, *moved) in zip(self.multiples, met, strict=True):
            numbers = (value, norm, change, moved[0] if moved else abs(s) * step_size * span)
            points.append(torch.stack([number.to(value.device, torch.float64) for number in numbers]))
        # Only here are the numbers asked for: a GPU is not waited for at each point.
        losses, norms, changes, distances = torch.stack(points).T.tolist()
        return LandscapeResult(
            loss=loss,
            gradient_norm=float(size),
            step_size=step_size,
            direction=self.direction,
            multiples=self.multiples,
            losses=tuple(losses),
            gradient_norms=tuple(norms),
            gradient_changes=tuple(changes),
            distances=tuple(distances),
        )

    def _step_size(self) -> float:
        if self.step_size is not None:
            return self.step_size
        assert self.optimizer is not None
        return next_step_size(self.optimizer)


@dataclass(frozen=True, kw_only=True)
class RandomLandscape(Landscape):
    """The same along a random direction: a probe of its own, so that both can be measured in one training."""

    name: ClassVar[str] = "random"

    direction: Literal["gradient", "random"] = "random"


def next_step_size(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate of an optimizer's first group.

    Raises:
        CannotMeasure: If it is not a positive number.
    """
    rate = float(optimizer.param_groups[0]["lr"])
    if not (math.isfinite(rate) and rate > 0):
        raise CannotMeasure(f"The optimizer's learning rate is {rate:g}, so that there is no step to look along.")
    return rate


def _range(values: tuple[float, ...]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    if not values:
        return math.nan, math.nan
    return min(finite, default=math.inf), _largest(values)


def _largest(values: Iterable[float]) -> float:
    """The largest; infinite if one is not finite, NaN if there is none."""
    return max((value if math.isfinite(value) else math.inf for value in values), default=math.nan)
