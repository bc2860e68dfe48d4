"""The loss along a line, over a training: the smoothness at each distance, and where it is largest."""

import numpy as np
from numpy.typing import NDArray

from trimtab.records import largest_smoothness, smoothness_by_multiple
from trimtab.report.curves import Numbers
from trimtab.report.probe_series import ProbeSeries, RunResults
from trimtab.report.seeds import SeedLine, Spread


def changes(run: RunResults) -> Numbers:
    """The change of the gradient at each multiple of the step, one row for each measurement."""
    return run.rows("gradient_changes")


def smoothness(run: RunResults) -> Numbers:
    """β at each multiple of the step, one row for each measurement.

    It is computed from what all records have, those of an earlier trimtab too.
    """
    pairs = zip(run.rows("gradient_changes"), run.rows("distances"), strict=True)
    return np.array([smoothness_by_multiple(changes, distances) for changes, distances in pairs])


def largest_at(run: RunResults) -> tuple[Numbers, Numbers]:
    """At which multiple β is largest, for each measurement; and where that is an edge of the range (1, else 0)."""
    found = [largest_smoothness(*both) for both in zip(run.rows("multiples"), smoothness(run), strict=True)]
    return np.array([where for _, where, _ in found]), np.array([float(edge) for _, _, edge in found])


def mostly_at_edge(one: ProbeSeries) -> NDArray[np.bool_]:
    """Whether β is largest at an edge with most of the seeds, at each step that all of them have."""
    edges = one.spread(lambda run: largest_at(run)[1])
    return np.asarray(edges.aligned.mean(axis=0) > 0.5)


def multiples(run: RunResults) -> Numbers:
    """The distances of a run, in steps."""
    return np.asarray(run.rows("multiples")[0])


def quartiles(rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Of each column, over what is finite; NaN where nothing is."""
    columns = [column[np.isfinite(column)] for column in rows.T]
    ends = [np.quantile(one, (0.25, 0.5, 0.75)) if len(one) else np.full(3, np.nan) for one in columns]
    low, middle, high = np.array(ends).T
    return low, middle, high


def by_distance(one: ProbeSeries) -> tuple[Spread, Spread]:
    """Change of the gradient and β at each distance: of each seed the median over the measurements."""
    first, second = (
        Spread(tuple(SeedLine(run.seed, multiples(run), quartiles(rows(run))[1]) for run in one.runs))
        for rows in (changes, smoothness)
    )
    return first, second
