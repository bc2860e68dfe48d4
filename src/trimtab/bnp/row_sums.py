"""Rows as sums that can be added up: over the calls in compiled code, and over several processes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.bnp.algorithm.moments import Moments, Rows, at_least, scalar

COUNTS = 4
"""How many numbers stand before the sums of the columns in `RowSums`."""


def sums_of(rows: Rows) -> Tensor:
    """Rows as one vector of float64 whose sum over calls, or over processes, has the rows of all of them.

    Its entries are the numbers of rows, rows of zeros, samples and output positions, then Σx and Σx² of each column.
    Written as a sum of two vectors and not as a concatenation, of which a compiler makes a kernel per part.
    """
    moments = rows.moments
    mean, variance = moments.mean.double().flatten(), moments.variance.double().flatten()
    counts = (moments.count, at_least(rows.zeros, 0), rows.samples, rows.positions)
    is_square = torch.arange(2, device=mean.device).unsqueeze(1) == 1
    sums = (moments.count * torch.where(is_square, variance + mean.square(), mean)).flatten()
    place = torch.arange(COUNTS + len(sums), device=mean.device)
    numbers = sum((place == i) * scalar(count, mean) for i, count in enumerate(counts))
    return numbers + torch.nn.functional.pad(sums, (COUNTS, 0))


class RowSums:
    """Rows given by their sums, as `sums_of` makes them. How many rows there are, only the device knows.

    Attributes:
        sums: The vector, of float64, so that the variance can be got from it.
        shape: The shape of the columns.
        dtype: The type to compute in.
    """

    def __init__(self, sums: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Of columns of a shape, in a type to compute in."""
        self.sums, self.shape, self.dtype = sums, torch.Size(shape), dtype

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.sums.device

    def rows(self) -> Rows:
        """The rows that have these sums."""
        count, zeros, samples, outputs = self.sums[:COUNTS].unbind()
        mean, square = (self.sums[COUNTS:] / count.clamp(min=1)).view(2, *self.shape)
        variance = (square - mean.square()).clamp(min=0).to(self.dtype)
        return Rows(Moments(count, mean.to(self.dtype), variance), samples, outputs, zeros)

    def to(self, device: torch.device) -> "RowSums":
        """The same rows on a device."""
        return RowSums(self.sums.to(device), self.shape, self.dtype)
