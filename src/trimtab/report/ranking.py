"""Which methods are best in which setting, for tables and sentences alike."""

import math

from trimtab.records import Cell, Comparison, Metric

Setting = tuple[str, int]
"""Network and batch size."""
Row = dict[str, Cell]
"""The cells of one setting, by method."""


def cells_by_setting(comparison: Comparison) -> dict[Setting, Row]:
    """The cells of a comparison by setting, then by method, in the order of the comparison."""
    table: dict[Setting, Row] = {}
    for cell in comparison.cells:
        table.setdefault((cell.network, cell.batch_size), {})[cell.method] = cell
    return table


def methods(comparison: Comparison) -> list[str]:
    """The methods of a comparison, in its order."""
    return list(dict.fromkeys(cell.method for cell in comparison.cells))


def means(row: Row) -> dict[str, float]:
    """The mean result of each method that has one."""
    return {method: cell.mean for method, cell in row.items() if cell.mean is not None}


def best(row: Row, metric: Metric) -> float | None:
    """The best mean; None if no method has one that is finite."""
    finite = [mean for mean in means(row).values() if math.isfinite(mean)]
    if not finite:
        return None
    return max(finite) if metric == "accuracy" else min(finite)


def leaders(row: Row, metric: Metric) -> list[str]:
    """The methods with the best mean, and those whose range over the seeds overlaps the range of one of these."""
    top = best(row, metric)
    able = {method: cell for method, cell in row.items() if math.isfinite(means(row).get(method, math.inf))}
    first = [cell for cell in able.values() if cell.mean == top]
    return [method for method, cell in able.items() if any(_overlap(cell, one) for one in first)]


def _overlap(a: Cell, b: Cell) -> bool:
    return min(a.values) <= max(b.values) and min(b.values) <= max(a.values)


def is_complete(row: Row, comparison: Comparison) -> bool:
    """Whether all runs of a setting are done."""
    return comparison.finished or all(cell.why_not or len(cell.trials) >= comparison.seeds for cell in row.values())


def diverged_count(cell: Cell) -> int:
    """How many runs at the chosen learning rate diverged."""
    return sum(trial.diverged for trial in cell.trials)


def reasons(comparison: Comparison) -> dict[str, list[Cell]]:
    """Why methods cannot be trained: each reason once, with the cells it holds for."""
    by_reason: dict[str, list[Cell]] = {}
    for cell in comparison.cells:
        if cell.why_not:
            by_reason.setdefault(cell.why_not, []).append(cell)
    return by_reason
