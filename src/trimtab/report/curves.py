"""Several runs as one line with a range."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.records import History, Metric

Numbers = NDArray[np.float64]
Quantity = Literal["measured", "trained", "train_evaluated"]
"""On held-out data; in training steps; on the subset of the training data, in evaluation mode."""
MOST = 50
"""Points of a line; dashes of a line with more of them cannot be told from its noise."""


@dataclass(frozen=True, slots=True)
class Points:
    """Values along a run or along the mean of several.

    Attributes:
        steps: Steps taken.
        seconds: Training time at that step.
        values: What was measured.
    """

    steps: Numbers
    seconds: Numbers
    values: Numbers

    def rows(self) -> list[tuple[float, float, float]]:
        """Step, seconds and value of each point."""
        return list(zip(self.steps.tolist(), self.seconds.tolist(), self.values.tolist(), strict=True))

    def at(self, steps: Numbers) -> "Points":
        """Between the points, on straight lines."""
        return Points(steps, np.interp(steps, self.steps, self.seconds), np.interp(steps, self.steps, self.values))


@dataclass(frozen=True, slots=True)
class Line:
    """Runs that differ in the seed only.

    Attributes:
        mean: Mean over the runs (of the values and of the times), as far as all of them go; None if they share nothing.
        low: Least value over the runs at the same steps.
        high: Largest value.
        rest: What single runs have beyond the end of the mean.
        broken: The last points of the runs that diverged.
    """

    mean: Points | None
    low: Numbers
    high: Numbers
    rest: tuple[Points, ...]
    broken: tuple[Points, ...]

    @property
    def values(self) -> Numbers:
        """All values that are drawn."""
        means = [self.mean.values] if self.mean else []
        return np.concatenate([*means, self.low, self.high, *(one.values for one in (*self.rest, *self.broken))])

    @property
    def seconds(self) -> float:
        """The latest time that is drawn."""
        drawn = [*([self.mean] if self.mean else []), *self.rest]
        return max((float(points.seconds[-1]) for points in drawn), default=0.0)


def line(runs: Sequence[History], quantity: Quantity, metric: Metric) -> Line:
    """The mean over the runs, its range, and what is left of single runs.

    A mean over the runs that happen to be left would jump where one ends, and flatter a method of which only the good
    runs survive. So the mean ends where the first run ends.
    """
    lines = [points(run, quantity, metric) for run in runs]
    there = [one for one in lines if len(one.steps)]
    broken = tuple(
        Points(one.steps[-1:], one.seconds[-1:], one.values[-1:])
        for run, one in zip(runs, lines, strict=True)
        if len(one.steps) and run.ended is not None and run.ended.verdict == "diverged"
    )
    start = max((one.steps[0] for one in there), default=0.0)
    end = min((one.steps[-1] for one in there), default=0.0) if len(there) == len(runs) else -1.0
    empty = np.empty(0)
    if not there or end < start:
        return Line(None, empty, empty, tuple(there), broken)
    steps = np.unique(np.concatenate([one.steps for one in there]))
    steps = steps[(steps >= start) & (steps <= end)]
    aligned = [one.at(steps) for one in there]
    values = np.stack([one.values for one in aligned])
    mean = Points(steps, np.mean([one.seconds for one in aligned], axis=0), values.mean(axis=0))
    rest = tuple(_after(one, end) for one in there if one.steps[-1] > end)
    return Line(mean, values.min(axis=0), values.max(axis=0), rest, broken)


def points(run: History, quantity: Quantity, metric: Metric) -> Points:
    """What a run has measured, finite values only, each step once; the metric is that on held-out data."""
    by_step: dict[int, tuple[float, float | None]] = {}
    if quantity == "trained":
        by_step = {event.step: (event.seconds, event.loss) for event in run.trained}
    else:
        part = run.evaluated[-1].part if run.evaluated else ""
        for event in run.evaluated:
            if event.part == part:
                value = event.accuracy if metric == "accuracy" else event.loss
                by_step[event.step] = event.seconds, event.train_loss if quantity == "train_evaluated" else value
    rows = [(step, seconds, np.nan if value is None else value) for step, (seconds, value) in sorted(by_step.items())]
    table = np.array(rows, dtype=float).reshape(-1, 3)
    steps, seconds, values = table[np.isfinite(table).all(axis=1)].T
    every = max(-(-len(steps) // MOST), 1)
    ends = np.arange(len(steps) - 1, -1, -every)[::-1]  # the last one is what the run came to
    if quantity == "trained" and len(ends):  # a mean over a longer stretch
        starts = np.concatenate([[0], ends[:-1] + 1])
        return Points(steps[ends], seconds[ends], np.add.reduceat(values, starts) / (ends - starts + 1))
    return Points(steps[ends], seconds[ends], values[ends])


def _after(one: Points, step: float) -> Points:
    return one.at(np.concatenate([[step], one.steps[one.steps > step]]))
