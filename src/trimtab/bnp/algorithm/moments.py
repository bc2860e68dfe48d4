"""Mean and variance of a layer's input: of one call, and of several.

The rows are those of the matrix H of the bnp paper (its extended form 𝓗 for convolutions), the columns are what the
layer's weights multiply.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Count = int | Tensor
"""How many there are of something: an int, or a tensor without dimensions if only the device knows."""


@dataclass(slots=True)
class Moments:
    """Mean and biased variance of each column over a number of rows (eqs. 19 to 22).

    Attributes:
        count: How many rows.
        mean: The mean of each column; its shape is the shape of the columns.
        variance: The variance of each column about `mean`, divided by `count`.
    """

    count: Count
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
        if x.layout is not torch.strided or x.is_nested or x.is_complex():
            raise TypeError("Moments.of takes a dense tensor of real numbers, not a sparse, nested or complex one.")
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
        if not x.is_cpu:
            variance, mean = torch.var_mean(x, rows, correction=0)
            return cls(count, mean, variance)
        # On a CPU var_mean takes 20 times as long. About the first row, so that a constant has no variance and a mean
        # far from zero spoils nothing; then about a rough mean, and what that has left over.
        first = x[tuple([slice(None) if dim in kept else slice(1) for dim in range(x.ndim)])]
        x = x - first
        rough = x.mean(rows, keepdim=True)
        x = x - rough
        rest = x.mean(rows)
        variance = (x.square().mean(rows) - rest.square()).clamp(min=0)
        return cls(count, (first + rough).reshape(rest.shape) + rest, variance)

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
        other = other.to(self.device)
        count = self.count + other.count
        share = other.count / at_least(count, 1)
        shift = other.mean - self.mean
        mean = self.mean + share * shift
        variance = (1 - share) * self.variance + share * other.variance + share * (1 - share) * shift.square()
        return Moments(count, mean, variance)

    def to(self, device: torch.device) -> "Moments":
        """The same moments on a device."""
        if self.device == device:
            return self
        count = self.count.to(device) if isinstance(self.count, Tensor) else self.count
        return Moments(count, self.mean.to(device), self.variance.to(device))


@dataclass(slots=True)
class Rows:
    """What the calls of a layer since the last step have shown of its input.

    Attributes:
        moments: Of the columns of H. Their shape is (inputs,) or (inputs, *sites), with the inputs of all groups in
            order.
        samples: N, the samples in these rows.
        positions: Of the output, of all samples: the rows of H.
        zeros: How many rows of zeros H has beside those in `moments`; a negative number stands for none.
    """

    moments: Moments
    samples: Count
    positions: Count
    zeros: Count = 0

    def merge(self, other: "Rows") -> "Rows":
        """Both together: rows are pooled over all calls of a step."""
        return Rows(
            self.moments.merge(other.moments),
            self.samples + other.samples,
            self.positions + other.positions,
            self.zeros + other.zeros,
        )

    def rows(self) -> "Rows":
        """These rows; as `RowSums` has it."""
        return self

    def to(self, device: torch.device) -> "Rows":
        """The same rows on a device."""
        if self.moments.device == device:
            return self
        samples, positions, zeros = (
            count.to(device) if isinstance(count, Tensor) else count
            for count in (self.samples, self.positions, self.zeros)
        )
        return Rows(self.moments.to(device), samples, positions, zeros)

    def columns(self) -> Moments:
        """The moments of the columns of H, its rows of zeros included."""
        if not isinstance(self.zeros, Tensor) and self.zeros <= 0:
            return self.moments
        zeros = torch.zeros_like(self.moments.mean)
        return self.moments.merge(Moments(at_least(self.zeros, 0), zeros, zeros))


def at_least(count: Count, bound: int) -> Count:
    """The larger of both."""
    return count.clamp(min=bound) if isinstance(count, Tensor) else max(count, bound)


def scalar(count: Count, like: Tensor) -> Tensor:
    """A count as a tensor without dimensions, of the type and the device of `like`; no device is waited for."""
    return count.to(like) if isinstance(count, Tensor) else like.new_full((), count)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type that is computed in: the tensor's own, or float32 if that is wider."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in the type that is computed in."""
    return x if x.dtype is torch.float32 else x.to(compute_dtype(x))
