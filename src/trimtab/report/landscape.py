"""The loss along a line, over a training: the smoothness at each distance, where it is largest, and tables."""

from collections.abc import Sequence

import numpy as np

from trimtab.records import largest_smoothness, smoothness_by_multiple
from trimtab.report.curves import Numbers
from trimtab.report.formatting import format_number
from trimtab.report.probe_series import ProbeSeries, Table


def smoothness(run: ProbeSeries) -> Numbers:
    """β at each multiple of the step, one row for each measurement.

    It is computed from what all records have, those of an earlier trimtab too.
    """
    pairs = zip(run.rows("gradient_changes"), run.rows("distances"), strict=True)
    return np.array([smoothness_by_multiple(changes, distances) for changes, distances in pairs])


def largest_at(run: ProbeSeries) -> tuple[Numbers, Numbers]:
    """At which multiple β is largest, for each measurement; and where that is an edge of the range (1, else 0)."""
    found = [largest_smoothness(*both) for both in zip(run.rows("multiples"), smoothness(run), strict=True)]
    return np.array([where for _, where, _ in found]), np.array([float(edge) for _, _, edge in found])


def quartiles(rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Of each column, over what is finite; NaN where nothing is."""
    columns = [column[np.isfinite(column)] for column in rows.T]
    ends = [np.quantile(one, (0.25, 0.5, 0.75)) if len(one) else np.full(3, np.nan) for one in columns]
    low, middle, high = np.array(ends).T
    return low, middle, high


def landscape_table(runs: Sequence[ProbeSeries]) -> Table:
    """A row for each measurement."""
    head = ["run", "step", "loss", "least along it", "largest", "least change of gradient", "largest"]
    lines: list[list[object]] = []
    for run in runs:
        for step, result, where, edge in zip(run.steps, run.results, *largest_at(run), strict=True):
            numbers = (result["loss"], *result["loss_range"], *result["predictiveness_range"], result["smoothness"])
            place = f"{format_number(where)}, an edge" if edge else format_number(where)
            lines.append([run.label, f"{step:.0f}", *map(format_number, numbers), place])
    return [*head, "β-smoothness", "at so many steps"], lines


def distance_table(runs: Sequence[ProbeSeries]) -> Table:
    """A row for each distance: medians and quartiles over the measurements."""
    lines: list[list[object]] = []
    for run in runs:
        columns = zip(*quartiles(run.rows("gradient_changes")), *quartiles(smoothness(run)), strict=True)
        for x, (*changes, low, middle, high) in zip(run.rows("multiples")[0], columns, strict=True):
            cells = [_with_quartiles(*changes), _with_quartiles(low, middle, high)]
            lines.append([run.label, format_number(x), *(cell for pair in cells for cell in pair)])
    return ["run", "steps away", "median change of gradient", "quartiles", "median β", "quartiles"], lines


def _with_quartiles(low: float, middle: float, high: float) -> tuple[str, str]:
    return format_number(middle), f"{format_number(low)} to {format_number(high)}"
