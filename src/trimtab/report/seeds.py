"""What runs of several seeds have measured, as medians and ranges over the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trimtab.report.curves import Numbers
from trimtab.report.formatting import format_number


@dataclass(frozen=True, slots=True)
class SeedLine:
    """Numbers along the run of one seed.

    Attributes:
        seed: The seed.
        x: Where they were measured, in ascending order: steps, or distances.
        y: The numbers.
        diverged: Whether the run diverged.
    """

    seed: str
    x: Numbers
    y: Numbers
    diverged: bool = False


@dataclass(frozen=True)
class Spread:
    """Numbers along runs that differ in the seed only: medians and ranges.

    A median over the seeds that happen to be left would jump where a run ends, and flatter a method of which only the
    good runs survive. So there is one where all of them were measured, and nowhere else. The numbers of a single run
    are its own.
    """

    lines: tuple[SeedLine, ...]

    @cached_property
    def x(self) -> Numbers:
        """Where all seeds were measured."""
        return shared([line.x for line in self.lines])

    @cached_property
    def aligned(self) -> Numbers:
        """What was measured there, a row for each seed."""
        places = [{x: i for i, x in enumerate(line.x.tolist())} for line in self.lines]
        rows = [[line.y[at[x]] for x in self.x.tolist()] for line, at in zip(self.lines, places, strict=True)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), -1)

    @cached_property
    def counts(self) -> Numbers:
        """How many seeds have a finite number there."""
        return np.asarray(np.isfinite(self.aligned).sum(axis=0), dtype=np.float64)

    @cached_property
    def median(self) -> Numbers:
        """Over the seeds that have a finite number; NaN where these are not more than half of all."""
        return self._over_seeds(0.5)

    @cached_property
    def low(self) -> Numbers:
        """The least of them."""
        return self._over_seeds(0.0)

    @cached_property
    def high(self) -> Numbers:
        """The largest of them."""
        return self._over_seeds(1.0)

    @cached_property
    def tails(self) -> list[SeedLine]:
        """What single seeds have beyond the end of the median, from there on."""
        end = self.x[-1] if len(self.x) else -np.inf
        return [
            SeedLine(line.seed, line.x[line.x >= end], line.y[line.x >= end], line.diverged)
            for line in self.lines
            if len(line.x) and line.x[-1] > end
        ]

    @cached_property
    def broken(self) -> list[tuple[float, float]]:
        """The last finite points of the seeds that diverged, where there are others beside them."""
        ends = []
        for line in self.lines if len(self.lines) > 1 else ():
            finite = np.flatnonzero(np.isfinite(line.y))
            if line.diverged and len(finite):
                ends.append((float(line.x[finite[-1]]), float(line.y[finite[-1]])))
        return ends

    def _over_seeds(self, share: float) -> Numbers:
        if len(self.lines) == 1:
            return self.lines[0].y
        return np.array([quantile(column, share) if most_finite(column) else np.nan for column in self.aligned.T])


def shared(places: Sequence[Numbers]) -> Numbers:
    """What all of some ascending sequences have."""
    first, *others = places
    return first[np.all([np.isin(first, other) for other in others], axis=0)] if others else first


def quantile(values: Numbers, share: float = 0.5) -> float:
    """Of what is finite; NaN if nothing is."""
    finite = values[np.isfinite(values)]
    return float(np.quantile(finite, share)) if len(finite) else float("nan")


def most_finite(values: Numbers) -> bool:
    """Whether more than half are: the median of what a minority has would say nothing of the others."""
    return 2 * int(np.isfinite(values).sum()) > len(values)


def format_spread(values: Numbers) -> str:
    """Median and range of the numbers of some seeds: 2.5 [2.1–2.8]; and of how many, if some are not finite."""
    if len(values) == 1:
        return format_number(float(values[0]))
    finite = values[np.isfinite(values)]
    text = f"{format_number(quantile(values))} {format_ends(finite)}" if most_finite(values) else "–"
    return text if len(finite) == len(values) else f"{text} ({len(finite)} of {len(values)} finite)"


def format_ends(values: Numbers, unit: str = "") -> str:
    """The least and the largest: [2.1–2.8], or [−1 to 2], since a dash before a minus is hard to read."""
    between = " to " if values.min() < 0 else "–"
    return f"[{format_number(float(values.min()))}{between}{format_number(float(values.max()))}{unit}]"
