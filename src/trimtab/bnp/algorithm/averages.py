"""The running mean and variance of a layer's input."""

import copy
from typing import ClassVar

import torch
from torch import Tensor

from trimtab.bnp.algorithm.moments import Moments, scalar

Estimate = tuple[Tensor, Tensor, Tensor]
"""A mean, a variance, and the sum of the weights of the batches in them."""


class RunningAverage:
    """The running mean and variance of Algorithms 2 and 3, step 2.

    It starts at mean 0 and variance 1. With `debias` it starts at 0 and 0 instead, and what it has gathered is divided
    by 1 − ρᵗ, which is the sum of the weights of the t batches folded in.

    The tensors are changed in place, except by `to`, which replaces them.

    Attributes:
        mean: The running mean (before the division).
        variance: The running variance (before the division).
        weight: 1 − ρᵗ, kept by the same recursion as the averages, so that it rounds as they do; with `debias` only.
        steps: How many batches have been folded in.
        skipped: How many were not, because something in them was not finite.
    """

    __slots__ = ("debias", "mean", "skipped", "steps", "variance", "weight")
    NAMES: ClassVar = ("mean", "variance", "weight", "steps", "skipped")  # of all tensors

    def __init__(self, like: Tensor | Moments, *, debias: bool) -> None:
        """Start an average for columns of the shape, type and device of `like`."""
        self.debias = debias
        self.mean = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
        self.variance = torch.zeros_like(self.mean) if debias else torch.ones_like(self.mean)
        self.weight = self.mean.new_zeros(())
        self.steps = torch.zeros((), dtype=torch.int64, device=like.device)
        self.skipped = torch.zeros_like(self.steps)

    def after(self, mean: Tensor, variance: Tensor, rho: float, usable: Tensor) -> Estimate:
        """The averages as they would be with one more batch, or as they are if that is not usable."""
        weight = self.weight.lerp(torch.ones_like(self.weight), 1 - rho) if self.debias else self.weight
        mean = torch.where(usable, self.mean.lerp(mean, 1 - rho), self.mean)
        variance = torch.where(usable, self.variance.lerp(variance, 1 - rho), self.variance)
        return mean, variance, torch.where(usable, weight, self.weight)

    def estimate(self, averages: Estimate | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance that averages (None: these) stand for; 0 and 1 while nothing has been folded in."""
        mean, variance, weight = (self.mean, self.variance, self.weight) if averages is None else averages
        if not self.debias:
            return mean, variance
        started = weight > 0
        weight = torch.where(started, weight, 1)
        return mean / weight, torch.where(started, variance / weight, 1)

    def variance_of(self, batch: Moments) -> Tensor:
        """The batch's variance; for a single row its squared distance to the running mean so far.

        The latter is the paper's rule for mini-batch size 1 (Sec. 3.3, after Algorithm 2).
        """
        distance = (batch.mean - self.estimate()[0]).square()
        return torch.where(scalar(batch.count, batch.mean) > 1, batch.variance, distance)

    def move_to(self, averages: Estimate, accept: Tensor, seen: Tensor) -> None:
        """Take over averages where `accept` is true, and count the step, if rows were `seen`.

        All is written in place, and decided without asking the device for the answer: so it can be replayed.
        """
        mean, variance, weight = averages
        self.mean.copy_(torch.where(accept, mean, self.mean))
        self.variance.copy_(torch.where(accept, variance, self.variance))
        if self.debias:
            # Not copy_: torch.compile loses what is written in place to a float64 without dimensions.
            self.weight[...] = torch.where(accept, weight, self.weight)
        self.steps += accept
        self.skipped += seen & ~accept

    def clone(self) -> "RunningAverage":
        """Averages of the same values that go their own way."""
        twin = copy.copy(self)
        for name, value in self.tensors().items():
            setattr(twin, name, value.clone())
        return twin

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the averages, as when the model was moved."""
        if self.mean.device != device or self.mean.dtype != dtype:
            for name, value in self.tensors().items():
                setattr(self, name, value.to(device, dtype if value.is_floating_point() else None))

    def tensors(self) -> dict[str, Tensor]:
        """All there is to save."""
        return {name: getattr(self, name) for name in self.NAMES}
