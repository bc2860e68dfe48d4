"""Moments that are computed later, together with others."""

import math

import torch
from torch import Tensor

from trimtab.bnp.statistics import Moments


class WaitingMoments(Moments):
    """Moments of an input that autograd keeps as it is until the backward; so there is time until then.

    Whoever asks for `mean` or `variance` gets them in any case.

    Attributes:
        x: The input, while it waits.
        layout: Its memory as (samples, columns, positions); with one position these are rows of columns.
    """

    __slots__ = ("_column", "_device", "_first", "_found", "_mean", "_variance", "layout", "x")

    def __init__(self, x: Tensor, column: int, layout: tuple[int, int, int]) -> None:
        """Wait."""
        self.count = layout[0] * layout[2]
        self.x: Tensor | None = x.detach()
        self.layout = layout
        self._column = column
        self._device = x.device
        self._found: Tensor | None = None
        self._first = 0
        self._mean: Tensor | None = None
        self._variance: Tensor | None = None

    def take(self, found: Tensor, first: int) -> None:
        """Have been computed: from number `first` on there are the means, and after them the variances."""
        self.x = None
        self._found, self._first = found, first

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
        assert self._variance is not None
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
        return torch.float32

    def addresses(self) -> tuple[int, int] | None:
        """Where mean and variance are, if they have been computed together with others."""
        if self._found is None:
            return None
        mean = self._found.data_ptr() + 4 * self._first
        return mean, mean + 4 * self.layout[1]

    def settle(self) -> None:
        """Have mean and variance as tensors, computed alone if need be."""
        columns = self.layout[1]
        if self._mean is not None:
            return
        if self._found is not None:
            both = self._found.narrow(0, self._first, 2 * columns)
            self._mean, self._variance = both[:columns], both[columns:]
        else:
            assert self.x is not None
            found = Moments.of(self.x, columns=self._column)
            self.x = None
            self._mean, self._variance = found.mean, found.variance


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
