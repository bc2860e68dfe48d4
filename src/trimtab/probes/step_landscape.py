"""The loss and its gradient along the step that the optimizer really takes, in the step's own metric."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.bnp import BNP
from trimtab.norms.statistics import Statistics
from trimtab.probes import options
from trimtab.probes.directions import total_norm
from trimtab.probes.isolation import Point
from trimtab.probes.landscape import VGG_MULTIPLES, LandscapeResult, next_step_size
from trimtab.probes.metric import Metric, NoMetric
from trimtab.probes.result import LossFunction, Probe, Result
from trimtab.probes.surface import Surface, differentiate
from trimtab.probes.updates import next_step_and_metric
from trimtab.records import largest_smoothness, smoothness_by_multiple


@dataclass(frozen=True, kw_only=True)
class StepLandscapeResult(LandscapeResult):
    """Losses and gradients at the points θ − s·Δ, where θ − Δ is where the optimizer's next step leads.

    `gradient_norm`, `gradient_norms`, `gradient_changes`, `distances` and what is made of them are Euclidean, as those
    of a `LandscapeResult`. The numbers in the metric have no meaning between runs by their size alone, since a metric
    may be of any scale: `relative_change` and `relative_smoothness` have none, and can be compared.

    Attributes:
        metric: `euclidean`, `bnp` or `adaptive`; empty if the step is steepest descent in no metric.
        metric_gradient_norm: √(gᵀMg) of g = ∇L(θ).
        metric_gradient_changes: √(cᵀMc) of c = ∇L(θ) − ∇L(θ − sΔ), for each s.
        metric_distances: √(dᵀM⁻¹d) of d = sΔ, for each s.
        note: Why there is no metric.
    """

    metric: str = ""
    metric_gradient_norm: float = math.nan
    metric_gradient_changes: tuple[float, ...] = ()
    metric_distances: tuple[float, ...] = ()
    note: str | None = None

    @property
    def metric_smoothness_by_multiple(self) -> tuple[float, ...]:
        """β in the metric at each of the multiples; NaN where the distance is 0, or there is no metric."""
        if not self.metric:
            return (math.nan,) * len(self.multiples)
        return smoothness_by_multiple(self.metric_gradient_changes, self.metric_distances)

    @property
    def metric_smoothness(self) -> float:
        """The largest of them."""
        return largest_smoothness(self.multiples, self.metric_smoothness_by_multiple)[0]

    @property
    def relative_change(self) -> float:
        """The largest change of the gradient over the gradient itself, in the metric."""
        changes = [change if math.isfinite(change) else math.inf for change in self.metric_gradient_changes]
        return max(changes) / self.metric_gradient_norm if changes and self.metric_gradient_norm > 0 else math.nan

    @property
    def relative_smoothness(self) -> float:
        """ηβ in the metric: plain gradient descent in z is stable on a quadratic of this curvature if it is below 2."""
        return self.step_size * self.metric_smoothness

    def to_dict(self) -> dict[str, Any]:
        """All of it, the properties included."""
        derived = {
            "metric_smoothness_by_multiple": list(self.metric_smoothness_by_multiple),
            "metric_smoothness": self.metric_smoothness,
            "relative_change": self.relative_change,
            "relative_smoothness": self.relative_smoothness,
        }
        return super().to_dict() | derived


@dataclass(frozen=True, kw_only=True)
class StepLandscape(Probe[StepLandscapeResult]):
    """Loss, gradient predictiveness and effective smoothness along the optimizer's next step, and in its own metric.

    `Landscape` looks along the plain gradient, where a preconditioned or adaptive optimizer does not go. Here the line
    is that of Δ, the update that the optimizer would really take from the gradient of this batch, with momentum, weight
    decay and attached BNP (see `next_step`); s = 1 is where it leads.

    The metric is that in which the step is steepest descent: for a step ηMg, gradients are measured by √(gᵀMg) and
    displacements by √(dᵀM⁻¹d), the norm that is dual to it. With M = PPᵀ these are the plain numbers of the loss as a
    function of z, for θ = Pz. M is

    - I for SGD;
    - PPᵀ/q² for the layers that BNP preconditions and I for the rest, with SGD: the P and q of this very step;
    - diag(1/(√v̂ + ε)) for Adam and AdamW, diag(1/(√v + ε)) for RMSprop and Adagrad, v as it is after the step;
    - times the learning rate of a parameter's group over that of the first group.

    Momentum and weight decay change Δ and not M. Other optimizers, and BNP with an adaptive one (a product of two
    matrices that is not symmetric), have no metric: `note` says so, and the Euclidean numbers are there all the same.

    Each point costs one forward and one backward, and θ costs one more. Beside what these need it takes the memory of
    five times the trained parameters, and that of a copy of the optimizer's state.

    Args:
        optimizer: Whose step it is; whatever is attached to it by `BNP.attach` takes part.
        bnp: A BNP whose step() the training calls by hand, before the optimizer's.
        multiples: The s of the points θ − s·Δ, in any order.
        statistics: What layers that normalize by the batch do; see `IsolatedModel`.

    Raises:
        ValueError: If an option is invalid.
    """

    name: ClassVar[str] = "step"
    result: ClassVar[type[Result]] = StepLandscapeResult

    optimizer: torch.optim.Optimizer
    bnp: BNP | None = None
    multiples: tuple[float, ...] = VGG_MULTIPLES
    statistics: Statistics = "batch"

    def __post_init__(self) -> None:
        """Check the options."""
        if self.optimizer is None:
            raise ValueError("optimizer must be an optimizer of torch.optim, not None.")
        options.check_optimizer(self)
        options.check_instance(self, "bnp", BNP, "a trimtab.BNP")
        options.check_multiples(self)
        options.check_statistics(self)

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> StepLandscapeResult:
        """Measure loss and gradient at each point.

        Raises:
            CannotMeasure: If loss or gradient are not finite at θ, or the optimizer's step cannot be tried out.
        """
        step_size = next_step_size(self.optimizer)
        surface = Surface(model, loss_fn, batch, statistics=self.statistics)
        loss, found, after, metric = next_step_and_metric(surface, self.optimizer, self.bnp)
        gradient = {name: found.get(name, torch.zeros_like(value)) for name, value in surface.here.items()}
        step = {name: value - after.get(name, value) for name, value in surface.here.items()}

        def look(loss: Tensor, leaves: dict[str, Tensor]) -> list[Tensor]:
            there = differentiate(loss, leaves)
            size = total_norm(there.values())
            change = {name: g - gradient[name] for name, g in there.items()}
            moved = {name: leaf.detach() - surface.here[name] for name, leaf in leaves.items()}
            return [loss.detach(), size, *_lengths(metric, change, moved)]

        points = surface.walk(step, [-s for s in self.multiples], look)
        size = total_norm(gradient.values())
        points.append([torch.tensor(loss), size, *_lengths(metric, gradient, step)])
        rows = [torch.stack([number.to(size.device, torch.float64) for number in row]) for row in points]
        # Only here are the numbers asked for: a GPU is not waited for at each point.
        *columns, in_metric, metric_distances = torch.stack(rows).T.tolist()
        losses, norms, changes, distances = (tuple(column[:-1]) for column in columns)
        known = isinstance(metric, Metric)
        return StepLandscapeResult(
            loss=loss,
            gradient_norm=columns[1][-1],
            step_size=step_size,
            direction="step",
            multiples=self.multiples,
            losses=losses,
            gradient_norms=norms,
            gradient_changes=changes,
            distances=distances,
            metric=metric.name if isinstance(metric, Metric) else "",
            metric_gradient_norm=in_metric[-1],
            metric_gradient_changes=tuple(in_metric[:-1]) if known else (),
            metric_distances=tuple(metric_distances[:-1]) if known else (),
            note=None if isinstance(metric, Metric) else str(metric),
        )


def _lengths(metric: Metric | NoMetric, gradient: Point, displacement: Point) -> list[Tensor]:
    """Of a gradient and of a displacement: Euclidean, and in the metric; NaN if there is none."""
    plain = [total_norm(gradient.values()), total_norm(displacement.values())]
    if isinstance(metric, NoMetric):
        return [*plain, *(number * math.nan for number in plain)]
    return [*plain, metric.gradient_norm(gradient), metric.distance(displacement)]
