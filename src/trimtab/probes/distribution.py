"""Moments and histograms of a tensor's entries."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SAMPLE = 100_000
"""So many entries at most tell where outliers begin."""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """The distribution of some activations over a batch (and over positions).

    Attributes:
        values: How many there are.
        mean: Their mean.
        variance: Their (biased) variance.
        skewness: The third moment of the standardized values; NaN if they are all the same.
        kurtosis: The fourth, less the 3 of a Gaussian; NaN if they are all the same.
        low: Where the histogram begins.
        high: Where it ends.
        counts: How many values lie in each of its bins, which are of equal width. A value on an edge belongs to the
            bin above it, one at `high` to the last bin. Values outside, or not finite, are in none.
    """

    values: int = 0
    mean: float = math.nan
    variance: float = math.nan
    skewness: float = math.nan
    kurtosis: float = math.nan
    low: float = math.nan
    high: float = math.nan
    counts: tuple[int, ...] = ()

    @property
    def edges(self) -> tuple[float, ...]:
        """Where the bins begin and end, one more than there are bins."""
        return bin_edges(self.low, self.high, len(self.counts))

    @classmethod
    def of(cls, x: Tensor, *, bins: int, limits: tuple[float, float] | None = None) -> "Distribution":
        """The distribution of a tensor's entries; limits as those of `Activations`."""
        x = x.flatten().contiguous()
        low, high = limits or automatic_limits(x)
        mean, variance, skewness, kurtosis = moments(x)
        return cls(
            values=x.numel(),
            mean=mean,
            variance=variance,
            skewness=skewness,
            kurtosis=kurtosis,
            low=low,
            high=high,
            counts=histogram(x, low, high, bins),
        )


def moments(x: Tensor) -> tuple[float, float, float, float]:
    """Mean, biased variance, skewness and excess kurtosis of all entries; NaN for what is not defined."""
    if not x.numel():
        return math.nan, math.nan, math.nan, math.nan
    mean = x.mean(dtype=torch.float64)
    centred = x - mean.to(x.dtype)
    variance = centred.square().mean(dtype=torch.float64)
    # Standardized first, so that large values do not overflow in the fourth power.
    z = centred / variance.sqrt().to(x.dtype)
    square = z.square()
    third, fourth = (square * z).mean(dtype=torch.float64), square.square().mean(dtype=torch.float64)
    first, second, skewness, kurtosis = torch.stack([mean, variance, third, fourth - 3]).tolist()
    return (first, second, skewness, kurtosis) if second > 0 else (first, second, math.nan, math.nan)


def automatic_limits(x: Tensor) -> tuple[float, float]:
    """The smallest and the largest finite entry, but for outliers, which would leave all others in a bin or two.

    An outlier is farther from the middle 99 % of the entries than these are wide. One half around all entries if they
    are the same, as numpy does it.
    """
    finite = x[torch.isfinite(x)]
    if not finite.numel():
        return math.nan, math.nan
    low, high = torch.stack(finite.aminmax()).tolist()
    if not low < high:
        return low - 0.5, high + 0.5
    # Of many entries a part, evenly taken, tells enough.
    ordered = finite[:: -(-finite.numel() // SAMPLE)].sort().values
    tail = int(0.005 * (len(ordered) - 1))
    left, right = ordered[tail].item(), ordered[-1 - tail].item()
    width = right - left
    return (max(low, left - width), min(high, right + width)) if width > 0 else (low, high)


def bin_edges(low: float, high: float, bins: int) -> tuple[float, ...]:
    """Where equally wide bins begin and end."""
    return (*(low + (high - low) * i / bins for i in range(bins)), high)


def histogram(x: Tensor, low: float, high: float, bins: int) -> tuple[int, ...]:
    """How many entries are in each of equally wide bins from low to high, as `numpy.histogram` counts them."""
    if not low < high:
        return (0,) * bins
    # Not torch.histc, which is not deterministic on a GPU and is refused where that is asked for.
    edges = torch.tensor(bin_edges(low, high, bins), dtype=x.dtype, device=x.device)
    places = torch.bucketize(x, edges, right=True)
    places = torch.where(x == edges[-1], bins, places)
    places = torch.where(torch.isnan(x), 0, places)
    return tuple(torch.bincount(places, minlength=bins + 2)[1 : bins + 1].tolist())
