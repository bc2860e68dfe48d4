"""Moments that are computed later, together with others, or that are not yet cut out of where they were written."""

import math

import torch
from torch import Tensor

from trimtab.bnp.statistics import Moments


class KernelMoments(Moments):
    """Moments that a kernel writes, or will write, into some memory: the means, then the variances.

    They are tensors of their own when somebody asks for them, which the kernels do not.

    Attributes:
        x: The input, while the moments wait to be computed. Autograd keeps it as it is until the backward.
        layout: Its memory as (samples, columns, positions); with one position these are rows of columns.
    """

    __slots__ = ("_column", "_device", "_dtype", "_first", "_found", "_mean", "_variance", "layout", "x")

    def __init__(self, x: Tensor, column: int, layout: tuple[int, int, int], dtype: torch.dtype) -> None:
        """Of no value yet.

        Args:
            x: The input.
            column: The dimension of its columns.
            layout: See above.
            dtype: The type of the moments.
        """
        self.count = layout[0] * layout[2]
        self.x: Tensor | None = None
        self.layout = layout
        self._column = column
        self._device = x.device
        self._dtype = dtype
        self._found: Tensor | None = None
        self._mean: Tensor | None = None

    def wait(self, x: Tensor) -> "KernelMoments":
        """Be computed later."""
        self.x = x.detach()
        return self

    def take(self, found: Tensor, first: int) -> "KernelMoments":
        """Be found in a tensor, from a number of it on."""
        self.x = None
        self._found, self._first = found, first
        return self

    def settle(self) -> None:
        """Have mean and variance as tensors, computed alone if they still wait."""
        if self._mean is not None:
            return
        if self._found is not None:
            columns = self.layout[1]
            self._mean = self._found.narrow(0, self._first, columns)
            self._variance = self._found.narrow(0, self._first + columns, columns)
        else:
            assert self.x is not None
            moments = Moments.of(self.x, columns=self._column)
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
        return torch.Size((self.layout[1],))

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The type of their numbers."""
        return self._dtype

    def addresses(self) -> tuple[int, int] | None:
        """Where means and variances were written to, if a kernel did that."""
        if self._found is None:
            return None
        size = self._dtype.itemsize
        mean = self._found.data_ptr() + size * self._first
        return mean, mean + size * self.layout[1]


def layout(x: Tensor, column: int) -> tuple[int, int, int] | None:
    """The memory of a tensor as (samples, columns, positions) with nothing in between; None if it is not so."""
    shape = x.shape
    columns = shape[column]
    if x.is_contiguous():
        positions = math.prod(shape[column + 1 :]) if column >= 0 else 1
        return x.numel() // (columns * positions), columns, positions
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if column == 1 and x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim]):
        return x.numel() // columns, columns, 1
    return None
