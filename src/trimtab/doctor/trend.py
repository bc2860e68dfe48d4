"""What the curve of the training loss says by itself."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from trimtab.doctor.record import Record

RECENT = 0.1
"""The share of a training's steps that is its recent part, and its part around the middle."""
LEAST = 10
"""So many steps each part has at least: batches differ."""
STEADY = 0.97
"""A loss falls still if it is lower than this share of what it was half the training ago: less is the noise of batches
of the medians of 10 % of the steps."""
CHANCE = 0.93
"""A loss is where it began if it is above this share of it. Trainings that learned nothing ended at 0.97 to 1.03 of
their first loss, those that learn anything within 300 steps below 0.9."""
LEAPT = 1.25
"""A loss that went up to this multiple of its first value has left it behind: killed trainings 1.33 to 10⁴, trainings
that learned nothing for another reason at most 1.1."""
LOUDER = 1.15
"""... if it is so many times what all but a twentieth of the losses of the second half are below: losses of batches
differ, those of a squared error by more than a cross-entropy's."""
SMOOTH = 32
"""Peaks are of means over so many samples: the losses of batches of 2 differ by as much as a leap."""
DONE = 0.05
"""A loss below this share of its beginning leaves little to be gained."""


@dataclass(frozen=True)
class Trend:
    """A loss curve in a few numbers; NaN for a training of no steps.

    Attributes:
        start: The least of the first three losses, means of steps that have 32 samples together: a loss that begins far
            above chance falls to it without learning.
        middle: The median around the middle of the training.
        recent: The median of the last ones.
        peak: The largest of all such means.
        usual: What all but a twentieth of those of the second half are below.
        broken: The first step whose loss was not finite; None if all are.
    """

    start: float
    middle: float
    recent: float
    peak: float
    usual: float
    broken: int | None

    @property
    def falls(self) -> bool:
        """Whether it falls still."""
        return self.recent < STEADY * self.middle

    @property
    def stuck(self) -> bool:
        """Whether it is where it began, or higher."""
        return self.broken is not None or self.recent > CHANCE * self.start

    @property
    def leapt(self) -> bool:
        """Whether it has gone up far beyond its beginning."""
        return self.peak > LEAPT * self.start and self.peak > LOUDER * self.usual

    @property
    def done(self) -> bool:
        """Whether little is left to be gained."""
        return self.recent < DONE * self.start


def trend(record: Record) -> Trend:
    """The trend of all losses of a training so far."""
    losses = record.losses
    broken = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    finite = list(losses[:broken])
    if not finite:
        return Trend(math.nan, math.nan, math.nan, math.nan, math.nan, broken)
    smoothed = _smoothed(finite, record.facts.batch_size)
    late = sorted(smoothed[len(smoothed) // 2 :])
    some = max(LEAST, int(RECENT * len(finite)))
    half = max(0, len(finite) // 2 - some // 2)
    middle = finite[half : half + some]
    return Trend(
        min(smoothed[:3]), median(middle), median(finite[-some:]), max(smoothed), late[int(0.95 * len(late))], broken
    )


def _smoothed(losses: Sequence[float], batch_size: int) -> list[float]:
    """Means of neighbours that have `SMOOTH` samples together."""
    several = max(1, SMOOTH // batch_size) if batch_size else 1
    return [mean(losses[at : at + several]) for at in range(max(len(losses) - several + 1, 1))]
