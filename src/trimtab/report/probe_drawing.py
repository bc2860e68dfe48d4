"""Draws the results of probes along runs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trimtab.report.axes import count_ticks, log_scale, spread
from trimtab.report.curves import Numbers
from trimtab.report.figure_layout import WIDTH, add_title_and_legend, explain_empty, line_handle, new_figure
from trimtab.report.formatting import format_exact
from trimtab.report.landscape import largest_at, quartiles, smoothness
from trimtab.report.probe_series import ProbeSeries
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
        _band(loss, one.steps, one.rows("loss_range"), one.style)
        _band(change, one.steps, one.rows("predictiveness_range"), one.style)
        values = one.values("smoothness")
        _line(smooth, one.steps, values, one.style)
        _circles(smooth, one.steps, np.where(largest_at(one)[1] > 0, values, np.nan), one.style)
    for axes, words in ((loss, "loss"), (change, "change of gradient"), (smooth, "β-smoothness")):
        axes.set_ylabel(words)
        _scale(axes, NOTHING)
    _steps(smooth)
    return _done(figure, what, where, runs)


def draw_by_distance(what: str, where: str, runs: Sequence[ProbeSeries], direction: str) -> Figure:
    """The change of the gradient and β against the distance, as medians and quartiles over the steps."""
    figure = new_figure(4.8, [one.label for one in runs])
    change, smooth = figure.subplots(2, 1, sharex=True)
    for one in runs:
        x = one.rows("multiples")[0]
        for axes, rows in ((change, one.rows("gradient_changes")), (smooth, smoothness(one))):
            low, middle, high = quartiles(rows)
            axes.fill_between(x, low, high, color=one.style.ink, alpha=0.2, linewidth=0)
            for edge in (low, high):
                axes.plot(x, edge, color=one.style.ink, linewidth=0.5)
            _line(axes, x, middle, one.style)
    for axes, words in ((change, "change of gradient"), (smooth, "β: change / distance")):
        axes.set_ylabel(words)
        _scale(axes, NOTHING)
    smooth.set_xlabel(f"distance along {direction}, in steps")
    return _done(figure, what, where, runs)


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
                    _line(axes, one.steps, one.layer_values(layer, name), one.style, dashes)
            _scale(axes, next(filter(None, (one.note(layer) for one in runs)), NOTHING))
            if axes in grid[0]:
                axes.set_title(words, fontsize=9)
        row[0].set_ylabel(layer_name(runs, layer))
    for axes in grid[-1]:
        _steps(axes, ticks=6 if len(columns) == 1 else 3)
    return _done(figure, what, where, runs)


def draw_numbers(what: str, where: str, runs: Sequence[ProbeSeries], rows: Sequence[Group]) -> Figure:
    """A row for each group of numbers of the whole network."""
    figure = new_figure(0.9 + 2.1 * len(rows), [one.label for one in runs])
    grid = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (words, numbers) in zip(grid, rows, strict=True):
        for one in runs:
            for name, dashes in numbers:
                _line(axes, one.steps, one.values(name), one.style, dashes)
        axes.set_ylabel(words)
        _scale(axes, next(filter(None, (one.note() for one in runs)), NOTHING))
    _steps(grid[-1])
    return _done(figure, what, where, runs)


def draw_histograms(what: str, where: str, runs: Sequence[ProbeSeries], layers: Sequence[int]) -> Figure:
    """Distributions over training, one above the other, the first step at the bottom: a column for each run."""
    figure = new_figure(0.6 + 2.1 * len(layers), [one.label for one in runs])
    grid = figure.subplots(len(layers), len(runs), squeeze=False)
    for row, layer in zip(grid, layers, strict=True):
        for axes, one in zip(row, runs, strict=True):
            axes.set_yticks([])
            if axes in grid[0]:
                axes.set_title(one.label, fontsize=9)
            if layer < len(one.layer_names()):
                _ridges(axes, one, layer)
            else:
                explain_empty(axes, "this network has no such layer")
        row[0].set_ylabel(layer_name(runs, layer))
    return _done(figure, what, where, runs)


def _ridges(axes: Axes, one: ProbeSeries, layer: int) -> None:
    """At most eight of the steps, evenly chosen."""
    histograms = one.histograms(layer)
    usable = [i for i, (edges, counts, _) in enumerate(histograms) if np.isfinite(edges).all() and counts.any()]
    if not usable:
        explain_empty(axes, NOTHING)
        return
    shown = [usable[i] for i in np.unique(np.linspace(0, len(usable) - 1, min(8, len(usable))).astype(int))]
    drawn = [histograms[i] for i in shown]
    low, high = central([(edges, counts) for edges, counts, _ in drawn])
    inside = 0.0
    for height, (edges, counts, values) in enumerate(drawn):
        middle = (edges[1:] + edges[:-1]) / 2
        within = (middle >= low) & (middle <= high)
        density = counts / np.diff(edges)
        # One or two bins that tower above all others, as the zeros of a ReLU do, would flatten the rest.
        top = min(float(density.max()), 2 * float(np.sort(density)[-3:][0]) or np.inf)
        y = height + 1.6 * np.minimum(density / top, 1.0)
        axes.fill_between(middle[within], height, y[within], color=one.style.ink, alpha=0.35, linewidth=0.6)
        inside += counts[within].sum() / max(values, 1) / len(drawn)
    axes.set_xlim(low, high)
    axes.set_ylim(-0.1, len(drawn) + 1.6)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_exact(x)))
    steps = f"steps {one.steps[shown[0]]:g} to {one.steps[shown[-1]]:g}"
    axes.set_xlabel(steps + (f"\n{100 * (1 - inside):.2g} % outside" if inside < 1 - 1e-9 else ""), fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


def central(histograms: Sequence[tuple[Numbers, Numbers]], share: float = 0.99) -> tuple[float, float]:
    """The range with the middle share of all values of some histograms, each of which counts the same."""
    ends = np.array([edge for edges, _ in histograms for edge in (edges[0], edges[-1])])
    grid = np.unique(np.concatenate([edges for edges, _ in histograms]))
    below = np.zeros(len(grid))
    for edges, counts in histograms:
        below += np.interp(grid, edges, np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])) / len(histograms)
    tail = (1 - share) / 2
    low, high = grid[below <= tail + 1e-9].max(), grid[below >= 1 - tail - 1e-9].min()
    return (float(low), float(high)) if low < high else (float(ends.min()), float(ends.max()))


def layer_name(runs: Sequence[ProbeSeries], layer: int) -> str:
    """What a layer is called, in all networks that have it."""
    names = [one.layer_names()[layer] for one in runs if layer < len(one.layer_names())]
    return f"layer {' / '.join(dict.fromkeys(names))}"


def _band(axes: Axes, steps: Numbers, ends: Numbers, style: Style) -> None:
    finite = np.where(np.isfinite(ends), ends, np.nan)
    axes.fill_between(steps, finite[:, 0], finite[:, 1], color=style.ink, alpha=0.25, linewidth=0)
    for values in finite.T:
        axes.plot(steps, values, color=style.ink, linewidth=0.7)


def _line(axes: Axes, x: Numbers, y: Numbers, style: Style, dashes: Dashes = "-") -> None:
    axes.plot(
        x,
        np.where(np.isfinite(y), y, np.nan),
        color=style.ink,
        linestyle=dashes,
        linewidth=1.3,
        marker=style.marker,
        markersize=3,
        markevery=max(1, len(x) // 7),
    )


def _circles(axes: Axes, x: Numbers, y: Numbers, style: Style) -> None:
    axes.plot(x, np.where(np.isfinite(y), y, np.nan), "o", markersize=6.5, mfc="none", mec=style.ink, mew=0.7)


def _steps(axes: Axes, ticks: int = 6) -> None:
    axes.set_xlabel("training steps")
    count_ticks(axes, ticks)


def _scale(axes: Axes, why_empty: str) -> None:
    """Logarithmic where nothing is negative and all spreads over more than a factor of twenty; 0 is at the bottom."""
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()]
    values = np.concatenate(drawn) if drawn else np.empty(0)
    values = values[np.isfinite(values)]
    if not len(values):
        explain_empty(axes, why_empty)
        return
    axes.grid(axis="y")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: format_exact(y)))
    if (values >= 0).all() and spread(values) > 20:
        log_scale(axes, "y", float(values[values > 0].min()), float(values.max()))


def _done(figure: Figure, what: str, where: str, runs: Sequence[ProbeSeries]) -> Figure:
    figure.align_ylabels()
    add_title_and_legend(figure, what, where, [line_handle(one.style, one.label, "-") for one in runs])
    return figure
