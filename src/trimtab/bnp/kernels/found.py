"""Moments as kernels give them, and how to get them for inputs like one that has been seen."""

import math

import torch
from torch import Tensor

from trimtab.bnp.statistics import Moments

NUMBERS = 3
"""What the sums of a compiled model begin with: the numbers of rows, samples and outputs."""
MOST_NUMBERS = 2**31 - 2**12
"""The kernels of a GPU take tensors of fewer: they count with 32 bits, up to one block beyond the last number."""


class Recipe:
    """How the moments of inputs of one kind are got: here, by waiting.

    Attributes:
        shape: Of these inputs.
        strides: Of these inputs.
        dtype: Of these inputs.
        device: Where they are.
        column: The dimension of their columns.
        layout: Their memory as (samples, columns, positions); with one position these are rows of columns.
        result: The type of the moments.
        between: The bytes between a column's mean and its variance where they are written.
        waits: Whether the moments are to be computed later.
    """

    waits = True

    def __init__(self, x: Tensor, column: int, layout: tuple[int, int, int], result: torch.dtype) -> None:
        """For inputs like this one."""
        self.shape, self.strides, self.dtype, self.device = x.shape, x.stride(), x.dtype, x.device
        self.column, self.layout, self.result = column, layout, result
        self.between = layout[1] * result.itemsize

    def moments(self, x: Tensor) -> "KernelMoments | None":
        """The moments of an input of this kind; None if they cannot be had."""
        return KernelMoments(self, x, None)


class KernelMoments(Moments):
    """Moments that a kernel writes, or will write, into some memory: the means, then the variances.

    They are tensors of their own when somebody asks for them, which the kernels do not.

    Attributes:
        recipe: What they are of.
        x: The input, while they wait to be computed. Autograd keeps it as it is until the backward.
        address: Where the means were written to, and after them the variances; 0 if no kernel did that.
    """

    __slots__ = ("_first", "_found", "_mean", "_variance", "address", "recipe", "x")

    def __init__(
        self, recipe: Recipe, x: Tensor | None, found: Tensor | None, first: int = 0, address: int = 0
    ) -> None:
        """Of an input that waits, or in a tensor, from a number of it on, which is at an address."""
        self.recipe = recipe
        self.x = x
        self._found = found
        self._first = first
        self.address = address
        self._mean: Tensor | None = None

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many rows."""
        return self.recipe.layout[0] * self.recipe.layout[2]

    def __reduce__(self) -> tuple[type[Moments], tuple[int, Tensor, Tensor]]:
        """Copies, and what is saved, are moments like others."""
        return Moments, (self.count, self.mean, self.variance)

    def still_waits(self) -> bool:
        """Whether there is an input to compute them from.

        One that is not what it was (`x.data = ...`, a freed storage) is not: then they are NaN, which no average takes.
        """
        x, recipe = self.x, self.recipe
        if x is None:
            return False
        if (
            x.shape == recipe.shape
            and x.stride() == recipe.strides
            and x.dtype is recipe.dtype
            and x.device == recipe.device
            and x.data_ptr()
        ):
            return True
        numbers = 2 * recipe.layout[1]
        self.take(torch.full((numbers,), math.nan, dtype=recipe.result, device=recipe.device), 0, 0)
        return False

    def take(self, found: Tensor, first: int, address: int) -> None:
        """Wait no longer: they are in a tensor, from a number of it on, which is at an address."""
        self.x = None
        self._found, self._first, self.address = found, first, address

    def settle(self) -> None:
        """Have mean and variance as tensors, computed alone if they still wait."""
        if self._mean is not None:
            return
        if self.x is not None:
            self.still_waits()
        if self._found is not None:
            columns = self.recipe.layout[1]
            self._mean = self._found.narrow(0, self._first, columns)
            self._variance = self._found.narrow(0, self._first + columns, columns)
        else:
            assert self.x is not None
            moments = Moments.of(self.x, columns=self.recipe.column)
            self._mean, self._variance = moments.mean, moments.variance
            self.x = None

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The mean of each column."""
        self.settle()
        assert self._mean is not None
        return self._mean

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of each column."""
        self.settle()
        return self._variance

    @property
    def shape(self) -> torch.Size:
        """The shape of the columns."""
        return torch.Size((self.recipe.layout[1],))

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.recipe.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of their numbers."""
        return self.recipe.result


class SummedMoments(Moments):
    """Moments from the sums that a compiled model leaves: the numbers of rows, samples and outputs, Σx and Σx².

    The sums are float64, so that the variance can be got from them. How many rows there are, only the device knows.

    Attributes:
        sums: All of them, one after the other.
    """

    __slots__ = ("_columns", "_dtype", "_mean", "_variance", "sums")

    def __init__(self, sums: Tensor, columns: tuple[int, ...], dtype: torch.dtype) -> None:
        """Of columns of a shape, in a type to compute in."""
        self.sums = sums
        self._columns, self._dtype = columns, dtype
        self._mean: Tensor | None = None

    def _settle(self) -> None:
        if self._mean is None:
            mean, square = (self.sums[NUMBERS:] / self.count.clamp(min=1)).view(2, *self._columns)
            self._variance: Tensor = (square - mean.square()).clamp(min=0).to(self._dtype)
            self._mean = mean.to(self._dtype)

    @property
    def count(self) -> Tensor:  # type: ignore[override]
        """How many rows."""
        return self.sums[0]

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The mean of each column."""
        self._settle()
        assert self._mean is not None
        return self._mean

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of each column."""
        self._settle()
        return self._variance

    @property
    def shape(self) -> torch.Size:
        """The shape of the columns."""
        return torch.Size(self._columns)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.sums.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of their numbers."""
        return self._dtype

    def __reduce__(self) -> tuple[type[Moments], tuple[Tensor, Tensor, Tensor]]:
        """Copies, and what is saved, are moments like others."""
        return Moments, (self.count, self.mean, self.variance)


def layout(x: Tensor, column: int) -> tuple[int, int, int] | None:
    """The memory of a tensor as (samples, columns, positions) with nothing in between; None if it is not so."""
    shape = x.shape
    columns = shape[column]
    if x.is_contiguous():
        positions = math.prod(shape[column + 1 :]) if column >= 0 else 1
        return x.numel() // (columns * positions), columns, positions
    if column == 1 and channels_last(x):
        return x.numel() // columns, columns, 1
    return None


def channels_last(x: Tensor) -> bool:
    """Whether a tensor is dense in memory, with its second dimension as the innermost."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])
