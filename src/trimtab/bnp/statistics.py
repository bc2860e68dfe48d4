"""Mean and variance of a layer's input: of one forward, of one step, of the whole run.

The rows are those of the matrix H of the bnp paper (its extended form 𝓗 for convolutions),
the columns are what the layer's weights multiply.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

Number = int | Tensor
"""How many there are of something; a tensor without dimensions where asking its device for the number would wait."""

_FAR = 1e4  # A mean's square is far from zero if it is so many times the variance.


def at_least(number: Any, bound: int) -> Any:
    """The larger of both."""
    return number.clamp(min=bound) if isinstance(number, Tensor) else max(number, bound)


@dataclass(slots=True)
class Moments:
    """Mean and biased variance of each column over a number of rows (eqs. 19 to 22).

    Attributes:
        count: How many rows.
        mean: The mean of each column; its shape is the shape of the columns.
        variance: The variance of each column about `mean`, divided by `count`.
    """

    count: Number
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, x: Tensor, *, columns: int | Sequence[int]) -> "Moments":
        """Moments of a tensor: the dimensions in `columns` stay, all others are rows.

        Computed in float32 at least, whatever the type of `x`. The result holds no reference to `x`.

        Raises:
            TypeError: If `x` is not a tensor.
            ValueError: If it has no such dimensions.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"Moments.of takes a tensor, not {type(x).__name__}.")
        x = at_least_float32(x.detach())
        dims = [columns] if isinstance(columns, int) else list(columns)
        if not all(isinstance(dim, int) and -x.ndim <= dim < x.ndim for dim in dims):
            raise ValueError(f"columns must be dimensions of a tensor that has {x.ndim} of them, not {columns!r}.")
        kept = {dim % x.ndim for dim in dims}
        rows = [dim for dim in range(x.ndim) if dim not in kept]
        count = math.prod([x.shape[dim] for dim in rows])
        if not rows:  # torch reads an empty list of dimensions as all of them
            return cls(1, x.clone(), x - x)  # x - x and not 0: what is not finite has no variance
        if count == 0:
            nothing = x.new_zeros([x.shape[dim] for dim in sorted(kept)])
            return cls(0, nothing, nothing)
        first_row = tuple(slice(None) if dim in kept else slice(1) for dim in range(x.ndim))
        if x.is_cpu and torch.compiler.is_compiling():
            # About the first row: compiled code adds up in the type of `x`, too.
            variance, mean = torch.var_mean(x - x[first_row], rows, correction=0)
            mean = mean + x[first_row].reshape(mean.shape)
        elif x.is_cpu and x.is_floating_point() and len(kept) == 1:
            mean, variance = _fast_moments(x, column=next(iter(kept)))
            if not _near_zero(mean, variance):
                mean, variance = _fast_moments(x - x[first_row], column=next(iter(kept)))
                mean += x[first_row].flatten()
        else:
            variance, mean = torch.var_mean(x, rows, correction=0)
        return cls(count, mean, variance)

    @property
    def shape(self) -> torch.Size:
        """The shape of the columns."""
        return self.mean.shape

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.mean.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of their numbers."""
        return self.mean.dtype

    def merge(self, other: "Moments") -> "Moments":
        """The moments of both sets of rows together, about their common mean (Chan et al.)."""
        if _is_none(other.count):
            return self
        if _is_none(self.count):
            return other
        other = other.to(self.mean.device)
        count = self.count + other.count
        share = other.count / at_least(count, 1)
        shift = other.mean - self.mean
        mean = self.mean + share * shift
        variance = (1 - share) * self.variance + share * other.variance + share * (1 - share) * shift.square()
        return Moments(count, mean, variance)

    def with_zero_rows(self, count: Number) -> "Moments":
        """The moments after adding rows of zeros; a negative number adds none."""
        count = at_least(count, 0)
        if _is_none(count):
            return self
        zeros = torch.zeros_like(self.mean)
        return self.merge(Moments(count, zeros, zeros))

    def to(self, device: torch.device) -> "Moments":
        """The same moments on a device."""
        if self.device == device:
            return self
        count = self.count.to(device) if isinstance(self.count, Tensor) else self.count
        return Moments(count, self.mean.to(device), self.variance.to(device))


@dataclass(slots=True)
class Rows:
    """What the forwards of a step have shown of a layer's input.

    Attributes:
        moments: Of the columns of H. Their shape is (inputs,) or (inputs, *sites), with the inputs of
            all groups in order.
        samples: N, the samples in these rows.
        outputs: The rows of H: N times the number of output positions.
        zeros: How many rows of zeros H has beside those in `moments`.
    """

    moments: Moments
    samples: Number
    outputs: Number
    zeros: Number = 0

    def merge(self, other: "Rows") -> "Rows":
        """Both together: rows are pooled over all forwards of a step."""
        moments = self.moments.merge(other.moments)
        samples, outputs = self.samples + other.samples, self.outputs + other.outputs
        return Rows(moments, samples, outputs, self.zeros + other.zeros)

    def columns(self) -> Moments:
        """The moments of the columns of H, its rows of zeros included."""
        if _is_none(self.zeros):
            return self.moments
        return self.moments.with_zero_rows(self.zeros)


Averages = tuple[Tensor, Tensor, Tensor]
"""A mean, a variance, and the sum of the weights in them."""


class RunningAverage:
    """The running mean and variance of Algorithms 2 and 3, step 2.

    It starts at mean 0 and variance 1. With `debias` it starts at 0 and 0 instead, and what it has
    gathered is divided by 1 − ρᵗ, which is the sum of the weights of the t batches folded in.

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

    def estimate(self, averages: Averages | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance to be used now, or with other averages; 0 and 1 while nothing has been folded in."""
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
        if not isinstance(batch.count, Tensor) and batch.count > 1:
            return batch.variance
        return either(batch.count > 1, batch.variance, (batch.mean - self.estimate()[0]).square())

    def after(self, mean: Tensor, variance: Tensor, *, rho: float, accept: bool | Tensor) -> Averages:
        """The averages moved by one batch where `accept` is true; else as they are."""
        if accept is False:
            return self.mean, self.variance, self.weight
        weight = self.weight
        if self.debias:
            weight = either(accept, weight.lerp(torch.ones_like(weight), 1 - rho), weight)
        moved_mean, moved_variance = self.mean.lerp(mean, 1 - rho), self.variance.lerp(variance, 1 - rho)
        return either(accept, moved_mean, self.mean), either(accept, moved_variance, self.variance), weight

    def move_to(self, averages: Averages, accept: bool | Tensor) -> None:
        """Take over averages that `after` gave where `accept` is true, and count the step.

        All is written in place, and decided without asking the device for the answer: so it can be replayed.
        """
        if accept is not False:
            mean, variance, weight = averages
            self.mean.copy_(either(accept, mean, self.mean))
            self.variance.copy_(either(accept, variance, self.variance))
            if self.debias:
                # Not copy_: torch.compile loses what is written in place to a float64 without dimensions.
                self.weight[...] = either(accept, weight, self.weight)
        if isinstance(accept, Tensor):
            self.steps += accept
            self.skipped += ~accept
        elif accept:
            self.steps += 1
        else:
            self.skipped += 1

    def clone(self) -> "RunningAverage":
        """Averages of the same values that go their own way."""
        twin = copy.copy(self)
        for name, value in self.tensors().items():
            setattr(twin, name, value.clone())
        return twin

    def to(self, like: Moments) -> bool:
        """Move the averages to the device and the type of others, as when the model was; whether that was needed."""
        if self.mean.device == like.device and self.mean.dtype == like.dtype:
            return False
        for name, value in self.tensors().items():
            setattr(self, name, value.to(like.device, like.dtype if value.is_floating_point() else None))
        return True

    def tensors(self) -> dict[str, Tensor]:
        """All there is to save."""
        return {name: getattr(self, name) for name in self.NAMES}


def _fast_moments(x: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """Mean and variance on a CPU, in a twentieth of the time of var_mean.

    But not as well: it adds up all rows in their own type before it divides, so that a mean far from zero is rough.
    """
    x = x.flatten(0, -2) if column == x.ndim - 1 else x.movedim(column, 1)
    mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
    return mean, variance


def _near_zero(mean: Tensor, variance: Tensor) -> bool:
    """Whether no mean is far from zero; not where their numbers cannot be asked for (torch.func, fake tensors)."""
    if type(mean) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(mean):
        return False
    return not bool((mean.square() > _FAR * variance).any())


def either(condition: bool | Tensor, one: Tensor, other: Tensor) -> Tensor:
    """One of two tensors; the device chooses, if the condition is there."""
    if isinstance(condition, Tensor):
        return torch.where(condition, one, other)
    return one if condition else other


def precision_of(x: Tensor) -> torch.dtype:
    """The tensor's own type, or float32 if that is wider: what is computed in."""
    dtype = x.dtype
    return dtype if dtype is torch.float32 else torch.promote_types(dtype, torch.float32)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in the type that is computed in."""
    return x if x.dtype is torch.float32 else x.to(precision_of(x))


def _is_none(number: Number) -> bool:
    """Whether it is known, without asking a device, that there are none."""
    return not isinstance(number, Tensor) and number == 0


def all_finite(x: Tensor) -> bool | Tensor:
    """Whether no entry is infinite or not a number, since 0 times those is NaN.

    A boolean; where asking for it would wait for a device, or end a graph that is compiled, a tensor of one.
    """
    if not x.is_cpu or torch.compiler.is_compiling():
        return (x * 0).sum() == 0
    return math.isfinite(x.sum().item()) or bool((x * 0).sum() == 0)  # the sum of finite numbers may be infinite
