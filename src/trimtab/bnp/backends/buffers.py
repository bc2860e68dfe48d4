"""Moments as the kernels write them, and how inputs lie in memory."""

import math

import torch
from torch import Tensor

from trimtab.bnp.algorithm.moments import Count, Moments


class InputLayout:
    """What inputs of one kind have in common: they are (samples, columns, positions) in memory, without gaps.

    With one position these are rows of columns.

    Attributes:
        shape: Of these inputs.
        strides: Of these inputs.
        dtype: Of these inputs.
        device: Where they are.
        column: The dimension of their columns.
        samples: How many.
        columns: How many.
        positions: How many.
        result: The type of the moments.
        count: Of rows.
        moments_shape: The shape of the moments.
    """

    def __init__(self, x: Tensor, column: int, sizes: tuple[int, int, int], result: torch.dtype) -> None:
        """Of inputs like this one."""
        self.shape, self.strides, self.dtype, self.device = x.shape, x.stride(), x.dtype, x.device
        self.column, self.result = column, result
        self.sizes = self.samples, self.columns, self.positions = sizes
        self.count, self.moments_shape = self.samples * self.positions, torch.Size((self.columns,))

    def moments(self, x: Tensor, saved: bool) -> "BufferMoments | None":
        """As `Moments.of`, for an input that was found to be of this kind; None if they cannot be had.

        `saved`: autograd keeps the input as it is until the backward, so that they may be computed later.
        """
        raise NotImplementedError


class BufferMoments(Moments):
    """Moments that a kernel has written, or will write, into a buffer: the means, then the variances.

    They become tensors of their own when somebody asks for them, which the kernels do not.

    Attributes:
        layout: Of the input.
        x: The input, while they wait to be computed. Autograd keeps it as it is until the backward.
        address: Where the means are; 0 as long as no kernel has written them.
    """

    __slots__ = ("_buffer", "_first", "_mean", "_variance", "address", "layout", "x")

    def __init__(
        self, layout: InputLayout, x: Tensor | None, buffer: Tensor | None, first: int = 0, address: int = 0
    ) -> None:
        """Of an input that waits, or in a buffer, from its entry `first` on, which is at an address."""
        self.layout = layout
        self.x = x
        self._buffer = buffer
        self._first = first
        self.address = address
        self._mean: Tensor | None = None

    def __reduce__(self) -> tuple[type[Moments], tuple[Count, Tensor, Tensor]]:
        """Copies, and what is saved, are ordinary moments."""
        return Moments, (self.count, self.mean, self.variance)

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many rows."""
        return self.layout.count

    @property
    def shape(self) -> torch.Size:
        """The shape of the columns."""
        return self.layout.moments_shape

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.layout.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of their numbers."""
        return self.layout.result

    def input_address(self) -> int:
        """Where the input is that waits, everything checked that a kernel takes on trust; 0 if there is none.

        There is none if it is not what it was (`x.data = ...`, a freed storage): then they are NaN, which no average
        takes.
        """
        x, layout = self.x, self.layout
        if x is None:
            return 0
        if (
            x.shape == layout.shape
            and x.stride() == layout.strides
            and x.dtype is layout.dtype
            and x.device == layout.device
            and (address := x.data_ptr())
        ):
            return address
        self.written(torch.full((2 * layout.columns,), math.nan, dtype=layout.result, device=layout.device), 0, 0)
        return 0

    def written(self, buffer: Tensor, first: int, address: int) -> None:
        """Wait no longer: they are in a buffer, from its entry `first` on, which is at an address."""
        self.x = None
        self._buffer, self._first, self.address = buffer, first, address

    def place(self) -> tuple[Tensor, int] | None:
        """The buffer they are in, and the first of its entries that is theirs; None if they are not written yet."""
        return None if self._buffer is None or self.x is not None else (self._buffer, self._first)

    def materialize(self) -> None:
        """Have mean and variance as tensors, computed alone if they still wait."""
        if self._mean is not None:
            return
        if self.x is not None and self.input_address():
            moments = Moments.of(self.x, columns=self.layout.column)
            self._mean, self._variance = moments.mean, moments.variance
            self.x = None
            return
        assert self._buffer is not None
        columns = self.layout.columns
        self._mean = self._buffer.narrow(0, self._first, columns)
        self._variance = self._buffer.narrow(0, self._first + columns, columns)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The mean of each column."""
        self.materialize()
        assert self._mean is not None
        return self._mean

    @property
    def variance(self) -> Tensor:  # type: ignore[override]
        """The variance of each column."""
        self.materialize()
        return self._variance


def sizes_in_memory(x: Tensor, column: int) -> tuple[int, int, int] | None:
    """The memory of a tensor as (samples, columns, positions) with no gaps; None if it is not so."""
    columns = x.shape[column]
    if x.is_contiguous():
        positions = math.prod(x.shape[column + 1 :]) if column >= 0 else 1
        return x.numel() // (columns * positions), columns, positions
    if column == 1 and is_channels_last(x):
        return x.numel() // columns, columns, 1
    return None


def is_channels_last(x: Tensor) -> bool:
    """Whether a tensor has no gaps in memory, with its second dimension as the innermost."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])


def division_by(divisor: int) -> list[int]:
    """Two numbers for a kernel to divide by this one: n // divisor is (umulhi(n, first) + n) >> second for n < 2³¹.

    The first is 2³²·(2ˢ − divisor)/divisor, rounded down, plus 1, with the second s = ⌈log₂ divisor⌉ (Granlund and
    Montgomery 1994, Fig. 4.1), as a signed number of the same bits.
    """
    shift = (divisor - 1).bit_length()
    magic = ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1
    return [magic - (1 << 32) if magic >= 1 << 31 else magic, shift]
