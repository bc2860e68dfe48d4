"""Numbers of several seeds, and the interval that their mean is taken to be in."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES, COVERAGE = 10_000, 0.95
ENOUGH_FOR_BOOTSTRAP = 5
_SIMULATED = ((5, 0.085), (7, 0.074), (9, 0.061), (14, 0.052), (19, 0.045), (math.inf, 0.036))
"""Up to so many values, how often the lower end of a bootstrap is above 0 where the mean is 0."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and where it may be.

    Attributes:
        mean: Over the seeds.
        low: The lower end.
        high: The upper end.
        seeds: How many.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Of five values or more a percentile bootstrap of the mean at 95 %; of fewer their range."""
        array = np.asarray(values, dtype=float)
        if not array.size:
            raise ValueError("an interval needs a number")
        mean = float(array.mean())
        if array.size < ENOUGH_FOR_BOOTSTRAP or not np.isfinite(array).all():
            return cls(mean, float(array.min()), float(array.max()), array.size)
        drawn = np.random.default_rng(0).integers(array.size, size=(RESAMPLES, array.size))
        tail = (1 - COVERAGE) / 2
        low, high = np.quantile(array[drawn].mean(axis=1), [tail, 1 - tail])
        return cls(mean, float(low), float(high), array.size)


def paired(left: Mapping[str, float], right: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """The values of the seeds that both have, in order."""
    common = sorted(left.keys() & right.keys(), key=lambda seed: (len(seed), seed))
    return [left[seed] for seed in common], [right[seed] for seed in common]


def chance_of_agreeing(seeds: int) -> float:
    """How likely a difference that is not there is found in a given direction, at the intervals used here.

    All of a few seeds agree with 0.5ⁿ. A bootstrap of few values is narrower than it should be: simulated with normal
    differences, its lower end is above 0 more often than the 2.5 % of its name. One seed finds no direction: what it
    has to show is a factor of three, which chance is taken not to give.
    """
    if seeds == 1:
        return 0.0
    if seeds < ENOUGH_FOR_BOOTSTRAP:
        return 0.5**seeds
    return next(chance for most, chance in _SIMULATED if seeds <= most)
