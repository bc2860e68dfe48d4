"""Tables of what probes measured along runs: numbers of single runs, or medians and ranges over seeds."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from trimtab.report.curves import Numbers
from trimtab.report.formatting import format_number
from trimtab.report.landscape import by_distance, changes, largest_at, multiples, quartiles, smoothness
from trimtab.report.probe_series import ProbeSeries, Table, any_several
from trimtab.report.seeds import Spread, format_spread

SEEDS = "seeds"
"""The column that tables of several seeds have."""
Column = tuple[Spread, Callable[[Numbers], str]]
"""Numbers, and what is written of those of some seeds at one step."""


def landscape_table(runs: Sequence[ProbeSeries]) -> Table:
    """A row for each step."""
    head = ["loss", "least along it", "largest", "least change of gradient", "largest", "β-smoothness"]
    lines: list[list[object]] = []
    if any_several(runs):
        for one in runs:
            ranges = [
                one.spread(lambda run, name=name, end=end: run.rows(name)[:, end])  # type: ignore[misc]
                for name in ("loss_range", "predictiveness_range")
                for end in (0, 1)
            ]
            where, edge = (one.spread(lambda run, i=i: largest_at(run)[i]) for i in (0, 1))  # type: ignore[misc]
            spreads = [one.values("loss"), *ranges, one.values("smoothness"), where]
            lines += _step_rows(one, [], [*((spread, format_spread) for spread in spreads), (edge, _share)])
        return ["run", "step", SEEDS, *head, "at so many steps", "an edge with"], lines
    for one in runs:
        (run,) = one.runs
        for step, result, place, at_edge in zip(run.steps, run.results, *largest_at(run), strict=True):
            numbers = (result["loss"], *result["loss_range"], *result["predictiveness_range"], result["smoothness"])
            words = f"{format_number(place)}, an edge" if at_edge else format_number(place)
            lines.append([one.label, f"{step:.0f}", *map(format_number, numbers), words])
    return ["run", "step", *head, "at so many steps"], lines


def distance_table(runs: Sequence[ProbeSeries]) -> Table:
    """A row for each distance: medians and quartiles over the measurements, or medians and ranges over the seeds."""
    lines: list[list[object]] = []
    if any_several(runs):
        for one in runs:
            change, beta = by_distance(one)
            for i, x in enumerate(change.x):
                cells = [format_spread(spread.aligned[:, i]) for spread in (change, beta)]
                lines.append([one.label, format_number(x), str(len(one.runs)), *cells])
        return ["run", "steps away", SEEDS, "median change of gradient", "median β"], lines
    for one in runs:
        (run,) = one.runs
        columns = zip(*quartiles(changes(run)), *quartiles(smoothness(run)), strict=True)
        for x, (*ends, low, middle, high) in zip(multiples(run), columns, strict=True):
            pairs = [_with_quartiles(*ends), _with_quartiles(low, middle, high)]
            lines.append([one.label, format_number(x), *(cell for pair in pairs for cell in pair)])
    return ["run", "steps away", "median change of gradient", "quartiles", "median β", "quartiles"], lines


def layer_table(runs: Sequence[ProbeSeries], names: Sequence[str]) -> Table:
    """A row for each layer and step."""
    lines: list[list[object]] = []
    for one in runs:
        for index, layer in enumerate(one.layer_names()):
            spreads = [one.layer_values(index, name) for name in names]
            lines += _rows(runs, one, [layer], spreads)
    return ["run", "layer", "step", *_head(runs, names)], lines


def network_table(runs: Sequence[ProbeSeries], names: Sequence[str]) -> Table:
    """A row for each step."""
    lines: list[list[object]] = []
    for one in runs:
        lines += _rows(runs, one, [], [one.values(name) for name in names])
    return ["run", "step", *_head(runs, names)], lines


def _head(runs: Sequence[ProbeSeries], names: Sequence[str]) -> list[str]:
    return [*([SEEDS] if any_several(runs) else []), *(name.replace("_", " ") for name in names)]


def _rows(
    runs: Sequence[ProbeSeries], one: ProbeSeries, front: list[object], spreads: Sequence[Spread]
) -> Iterator[list[object]]:
    if any_several(runs):
        yield from _step_rows(one, front, [(spread, format_spread) for spread in spreads])
        return
    for i, step in enumerate(one.steps):
        yield [one.label, *front, f"{step:.0f}", *(format_number(spread.median[i]) for spread in spreads)]


def _step_rows(one: ProbeSeries, front: list[object], columns: Sequence[Column]) -> Iterator[list[object]]:
    """A row for each step that all seeds have; at other steps one for each seed."""
    places = {step: i for i, step in enumerate(one.steps.tolist())}
    for step in np.unique(np.concatenate([run.steps for run in one.runs])).tolist():
        before = [one.label, *front, f"{step:.0f}"]
        if step in places:
            cells = [written(spread.aligned[:, places[step]]) for spread, written in columns]
            yield [*before, str(len(one.runs)), *cells]
            continue
        for i, run in enumerate(one.runs):
            if step in run.steps:
                cells = [written(spread.lines[i].y[run.steps == step]) for spread, written in columns]
                yield [*before, f"only {run.seed}", *cells]


def _share(edges: Numbers) -> str:
    return f"{int(edges.sum())} of {len(edges)}"


def _with_quartiles(low: float, middle: float, high: float) -> tuple[str, str]:
    return format_number(middle), f"{format_number(low)} to {format_number(high)}"
