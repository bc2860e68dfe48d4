"""Draws the results of probes along runs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from trimtab.report.axes import count_ticks, log_scale, spread
from trimtab.report.curves import Numbers
from trimtab.report.figure_layout import WIDTH, add_title_and_legend, explain_empty, line_handle, new_figure
from trimtab.report.formatting import format_exact
from trimtab.report.landscape import by_distance, changes, mostly_at_edge, quartiles, smoothness
from trimtab.report.probe_series import ProbeSeries, any_several
from trimtab.report.seed_notes import count_seeds
from trimtab.report.seeds import Spread
from trimtab.report.styles import Dashes, Style

Group = tuple[str, Sequence[tuple[str, Dashes]]]
"""What is written beside an axis, and the names of the numbers in it with their dashes."""
NOTHING = "no finite value was found"
ROW = 1.35
"""Height of a row of a figure that has one for each layer, in inches."""


def draw_landscape(what: str, where: str, runs: Sequence[ProbeSeries]) -> Figure:
    """Ranges of the loss and of the change of the gradient along a direction, and effective smoothness."""
    figure = new_figure(6.2, [one.label for one in runs])
    loss, change, smooth = figure.subplots(3, 1, sharex=True)
    for one in runs:
        _band(loss, one, "loss_range")
        _band(change, one, "predictiveness_range")
        beta = one.values("smoothness")
        draw_spread(smooth, beta, one.style)
        _circles(smooth, beta.x, np.where(mostly_at_edge(one), beta.median, np.nan), one.style)
    for axes, words in ((loss, "loss"), (change, "change of gradient"), (smooth, "β-smoothness")):
        axes.set_ylabel(words)
        _scale(axes, NOTHING)
    step_axis(smooth)
    return finish(figure, what, where, runs)


def draw_by_distance(what: str, where: str, runs: Sequence[ProbeSeries], direction: str) -> Figure:
    """The change of the gradient and β against the distance.

    Medians and quartiles over the steps; of several seeds the medians over the steps.
    """
    figure = new_figure(4.8, [one.label for one in runs])
    change, smooth = figure.subplots(2, 1, sharex=True)
    several = any_several(runs)
    for one in runs:
        for axes, rows, middle in zip((change, smooth), (changes, smoothness), by_distance(one), strict=True):
            if not several:
                low, _, high = quartiles(rows(one.runs[0]))
                axes.fill_between(middle.x, low, high, color=one.style.ink, alpha=0.2, linewidth=0)
                for edge in (low, high):
                    axes.plot(middle.x, edge, color=one.style.ink, linewidth=0.5)
            draw_spread(axes, middle, one.style)
    for axes, words in ((change, "change of gradient"), (smooth, "β: change / distance")):
        axes.set_ylabel(words)
        _scale(axes, NOTHING)
    smooth.set_xlabel(f"distance along {direction}, in steps")
    return finish(figure, what, where, runs)


def draw_layers(
    what: str,
    where: str,
    runs: Sequence[ProbeSeries],
    layers: Sequence[int],
    columns: Sequence[Group],
) -> Figure:
    """A row for each of some layers, a column for each group of numbers, which differ in their dashes.

    Layers are counted, since networks with and without norms name them differently.

    Args:
        what: What is shown, for the title.
        where: Of which network and batch size; it stands below that.
        runs: One for each line.
        layers: The layers by their number, one for each row.
        columns: What is written above each, and the names of the numbers in it with their dashes.
    """
    figure = new_figure(
        max(2.9, 0.6 + ROW * len(layers)), [one.label for one in runs], WIDTH * max(1, len(columns) / 2)
    )
    grid = figure.subplots(len(layers), len(columns), sharex=True, squeeze=False)
    for row, layer in zip(grid, layers, strict=True):
        for axes, (words, numbers) in zip(row, columns, strict=True):
            for one in (one for one in runs if layer < len(one.layer_names())):
                for name, dashes in numbers:
                    draw_spread(axes, one.layer_values(layer, name), one.style, dashes)
            _scale(axes, next(filter(None, (one.note(layer) for one in runs)), NOTHING))
            if axes in grid[0]:
                axes.set_title(words, fontsize=9)
        row[0].set_ylabel(layer_name(runs, layer))
    for axes in grid[-1]:
        step_axis(axes, ticks=6 if len(columns) == 1 else 3)
    return finish(figure, what, where, runs)


def draw_numbers(what: str, where: str, runs: Sequence[ProbeSeries], rows: Sequence[Group]) -> Figure:
    """A row for each group of numbers of the whole network."""
    figure = new_figure(0.9 + 2.1 * len(rows), [one.label for one in runs])
    grid = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (words, numbers) in zip(grid, rows, strict=True):
        for one in runs:
            for name, dashes in numbers:
                draw_spread(axes, one.values(name), one.style, dashes)
        axes.set_ylabel(words)
        _scale(axes, next(filter(None, (one.note() for one in runs)), NOTHING))
    step_axis(grid[-1])
    return finish(figure, what, where, runs)


def layer_name(runs: Sequence[ProbeSeries], layer: int) -> str:
    """What a layer is called, in all networks that have it."""
    names = [one.layer_names()[layer] for one in runs if layer < len(one.layer_names())]
    return f"layer {' / '.join(dict.fromkeys(names))}"


def _band(axes: Axes, one: ProbeSeries, name: str) -> None:
    """Between the medians of both ends; a fainter one between the least and the largest of any seed."""
    low, high = (one.spread(lambda run, end=end: run.rows(name)[:, end]) for end in (0, 1))  # type: ignore[misc]
    if one.several:
        axes.fill_between(low.x, _finite(low.low), _finite(high.high), color=one.style.ink, alpha=0.12, linewidth=0)
    ends = _finite(low.median), _finite(high.median)
    axes.fill_between(low.x, *ends, color=one.style.ink, alpha=0.25, linewidth=0)
    for values in ends:
        axes.plot(low.x, values, color=one.style.ink, linewidth=0.7)
    for end in (low, high):
        _tails(axes, end, one.style, "-")


def draw_spread(axes: Axes, spread: Spread, style: Style, dashes: Dashes = "-") -> None:
    """The median, the range as a shade, and what single seeds have beyond."""
    if len(spread.lines) > 1:
        axes.fill_between(spread.x, _finite(spread.low), _finite(spread.high), color=style.ink, alpha=0.2, linewidth=0)
    axes.plot(
        spread.x,
        _finite(spread.median),
        color=style.ink,
        linestyle=dashes,
        linewidth=1.3,
        marker=style.marker,
        markersize=3,
        markevery=max(1, len(spread.x) // 7),
    )
    _tails(axes, spread, style, dashes)


def _tails(axes: Axes, spread: Spread, style: Style, dashes: Dashes) -> None:
    for tail in spread.tails:
        axes.plot(tail.x, _finite(tail.y), color=style.ink, linestyle=dashes, linewidth=0.5)
    for x, y in spread.broken:
        axes.plot([x], [y], color=style.ink, marker="x", markersize=6, markeredgewidth=1.5, linestyle="none", zorder=5)


def _finite(values: Numbers) -> Numbers:
    return np.where(np.isfinite(values), values, np.nan)


def _circles(axes: Axes, x: Numbers, y: Numbers, style: Style) -> None:
    axes.plot(x, _finite(y), "o", markersize=6.5, mfc="none", mec=style.ink, mew=0.7)


def step_axis(axes: Axes, ticks: int = 6) -> None:
    """Training steps along the x axis."""
    axes.set_xlabel("training steps")
    count_ticks(axes, ticks)


def _scale(axes: Axes, why_empty: str) -> None:
    """Logarithmic where nothing is negative and all spreads over more than a factor of twenty; 0 is at the bottom."""
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()]
    drawn += [np.asarray(path.vertices)[:, 1] for shade in axes.collections for path in shade.get_paths()]
    values = np.concatenate(drawn) if drawn else np.empty(0)
    values = values[np.isfinite(values)]
    if not len(values):
        explain_empty(axes, why_empty)
        return
    axes.grid(axis="y")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: format_exact(y)))
    if (values >= 0).all() and spread(values) > 20:
        log_scale(axes, "y", float(values[values > 0].min()), float(values.max()))


def finish(figure: Figure, what: str, where: str, runs: Sequence[ProbeSeries]) -> Figure:
    """Add what all figures of probes have."""
    figure.align_ylabels()
    if any_several(runs):
        seeds = count_seeds({one.label: len(one.runs) for one in runs}, short=True)
        where += f"\nmedian over {seeds}, shaded range"
        figure.set_figheight(figure.get_figheight() + 0.2)
    add_title_and_legend(figure, what, where, [line_handle(one.style, one.label, "-") for one in runs])
    return figure
