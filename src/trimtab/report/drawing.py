"""The figures, drawn."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trimtab.records import Cell, Comparison, Metric
from trimtab.report.axes import (
    count_ticks,
    log_scale,
    logit_scale,
    make_room,
    short_count,
    time_unit,
    value_scale,
)
from trimtab.report.curves import Line, Numbers, Points
from trimtab.report.figure_layout import WIDTH, add_title_and_legend, explain_empty, line_handle, new_figure
from trimtab.report.formatting import batch_label, method_label, network_label
from trimtab.report.ranking import methods
from trimtab.report.report_data import Panel
from trimtab.report.styles import LIGHT, Dashes, Style, styles

Against = Literal["steps", "time"]
MARKERS = 7
"""Along a curve."""


def draw_curves(panel: Panel, looks: Mapping[str, Style], against: Against) -> Figure:
    """What is measured on held-out data above, the training loss below it."""
    figure = new_figure(4.1, [curve.label for curve in panel.curves])
    above, below = figure.subplots(2, 1, sharex=True)
    part = "" if " or " in panel.part else f"{panel.part} "
    measured = [curve.line("measured", panel.metric) for curve in panel.curves]
    trained = [curve.line("trained", panel.metric) for curve in panel.curves]
    unit, unit_name = time_unit(max((one.seconds for one in (*measured, *trained)), default=0.0))
    percent = 100.0 if panel.metric == "accuracy" else 1.0
    handles = []
    for number, (curve, over, under) in enumerate(zip(panel.curves, measured, trained, strict=True)):
        look = looks[curve.label]
        shift = number / max(len(panel.curves), 1)
        _draw_line(above, over, look, look.measured, against, unit, percent, shift)
        _draw_line(below, under, look, look.trained, against, unit, 1.0, shift)
        handles.append(line_handle(look, curve.label, look.measured))
    values = np.concatenate([percent * one.values for one in measured] or [np.empty(0)])
    value_scale(above, panel.metric, values)
    value_scale(below, "loss", np.concatenate([one.values for one in trained] or [np.empty(0)]))
    if not len(values):
        explain_empty(above, f"no finite {part}{panel.metric} has been recorded")
    if not sum(len(one.values) for one in trained):
        explain_empty(below, "no finite training loss has been recorded")
    below.set_xlim(left=0)
    if against == "steps":
        count_ticks(below)
        below.set_xlabel("training steps")
    else:
        below.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        below.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short_count(x)))
        below.set_xlabel(f"training time in {unit_name}")
    above.set_ylabel(f"{part}{panel.metric} in %" if panel.metric == "accuracy" else f"{part}{panel.metric}")
    below.set_ylabel("training loss")
    figure.align_ylabels()
    add_title_and_legend(figure, f"{part}{panel.metric} and training loss".capitalize(), panel.title, handles)
    return figure


def _draw_line(
    axes: Axes,
    one: Line,
    look: Style,
    dashes: Dashes,
    against: Against,
    unit: float,
    factor: float,
    shift: float,
) -> None:
    def x(points: Points) -> Numbers:
        return points.steps if against == "steps" else points.seconds / unit

    if one.mean is not None:
        if (one.low < one.high).any():
            axes.fill_between(x(one.mean), factor * one.low, factor * one.high, color=look.ink, alpha=0.2, linewidth=0)
        every = max(len(one.mean.steps) / MARKERS, 1.0)
        places = [int(every * (i + shift)) for i in range(MARKERS) if every * (i + shift) < len(one.mean.steps)]
        _plot(axes, x(one.mean), factor * one.mean.values, look, dashes, 1.6, places)
    for rest in one.rest:
        _plot(axes, x(rest), factor * rest.values, look, dashes, 0.7, [len(rest.steps) - 1])
    for end in one.broken:
        axes.plot(x(end), factor * end.values, color=look.ink, marker="x", markersize=8, markeredgewidth=2, zorder=5)


def _plot(
    axes: Axes,
    x: Numbers,
    y: Numbers,
    look: Style,
    dashes: Dashes,
    width: float,
    places: Sequence[int],
) -> None:
    axes.plot(
        x,
        y,
        color=look.ink,
        linestyle=dashes,
        linewidth=width,
        marker=look.marker,
        markersize=4.5 if width > 1 else 3.5,
        markevery=list(places),
        markerfacecolor=LIGHT["paper"] if look.hollow else look.ink,
    )


def draw_tuning(panel: Panel, looks: Mapping[str, Style]) -> Figure:
    """Validation result against learning rate. The chosen rate has a ring; what diverged is a cross at the edge."""
    tuned = [cell for cell in panel.cells if cell.candidates]
    figure = new_figure(3.4, [method_label(cell.method) for cell in tuned])
    axes = figure.subplots()
    percent = 100.0 if panel.metric == "accuracy" else 1.0
    drawn, lost, handles = [np.empty(0)], [], []
    for cell in tuned:
        look = looks[method_label(cell.method)]
        good = [(c.lr, percent * c.value) for c in cell.candidates if c.value is not None and np.isfinite(c.value)]
        lost += [(c.lr, look) for c in cell.candidates if c.value is None or not np.isfinite(c.value)]
        x, y = np.array(good, dtype=float).reshape(-1, 2).T
        _plot(axes, x, y, look, look.line, 1.6, range(len(good)))
        chosen = x == cell.lr
        axes.plot(
            x[chosen],
            y[chosen],
            color=look.ink,
            linestyle="none",
            marker="o",
            markersize=12,
            markerfacecolor="none",
            markeredgewidth=1.4,
        )
        handles.append(line_handle(look, method_label(cell.method), look.line))
        drawn.append(y)
    axes.margins(y=0.12)
    value_scale(axes, panel.metric, np.concatenate(drawn))
    _draw_lost(axes, lost, panel.metric)
    if not sum(map(len, drawn)):
        explain_empty(axes, "every run diverged")
    rates = [candidate.lr for cell in tuned for candidate in cell.candidates if candidate.lr > 0]
    if rates:
        log_scale(axes, "x", min(rates), max(rates))
    axes.set_xlabel("learning rate")
    axes.set_ylabel("validation accuracy in %" if panel.metric == "accuracy" else "validation loss")
    add_title_and_legend(figure, f"Validation {panel.metric} by learning rate", panel.title, handles)
    return figure


def _draw_lost(axes: Axes, lost: Sequence[tuple[float, Style]], metric: Metric) -> None:
    """Crosses for the rates at which methods diverged, one above the other, where no values are."""
    if not lost:
        return
    piles: Counter[float] = Counter()
    step = 0.06
    make_room(axes, metric, 0.04 + step * max(Counter(rate for rate, _ in lost).values()))
    for rate, look in lost:
        height = 0.04 + step * piles[rate]
        piles[rate] += 1
        axes.plot(
            rate,
            height if metric == "accuracy" else 1 - height,
            color=look.ink,
            marker="x",
            markersize=7,
            markeredgewidth=1.8,
            transform=axes.get_xaxis_transform(),
        )


def draw_overview(comparison: Comparison, networks: Sequence[str], note: str = "") -> Figure:
    """Test result against batch size, one panel per network, with a note below.

    The scale of accuracies is logistic, since the step from 98 to 99 % halves the errors and that from 58 to 59 % does
    not.
    """
    wide = len(networks) > 1
    labels = [method_label(method) for method in methods(comparison)]
    figure = new_figure(4.0, labels, 5.0 * len(networks) if wide else WIDTH)
    panels = figure.subplots(1, len(networks), sharey=True, squeeze=False)[0]
    sizes = list(dict.fromkeys(cell.batch_size for cell in comparison.cells))
    looks = styles((method, method_label(method)) for method in methods(comparison))
    cells = [cell for cell in comparison.cells if cell.network in networks and cell.trials]
    handles = []
    for place, (label, look) in enumerate(looks.items()):
        shift = 0.5 * (place - (len(looks) - 1) / 2) / max(len(looks), 6)
        of_method = [cell for cell in cells if method_label(cell.method) == label]
        if of_method:
            handles.append(line_handle(look, label, look.line))
        for axes, network in zip(panels, networks, strict=True):
            own = [cell for cell in of_method if cell.network == network]
            _draw_bars(axes, own, [sizes.index(cell.batch_size) + shift for cell in own], look, comparison.metric)
    for axes, network in zip(panels, networks, strict=True):
        axes.set_xticks(range(len(sizes)), [batch_label(size) for size in sizes])
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.set_xlabel("batch size")
        if wide:
            axes.set_title(network_label(network))
    _overview_scale(panels[0], comparison.metric, cells)
    for axes in panels:
        axes.grid(visible=True, axis="y")
    if note:
        figure.supxlabel(note, x=0.005, horizontalalignment="left", fontsize=8, color=LIGHT["muted"])
    add_title_and_legend(
        figure, f"Test {comparison.metric} by batch size", "" if wide else network_label(networks[0]), handles
    )
    return figure


def _overview_scale(axes: Axes, metric: Metric, cells: Sequence[Cell]) -> None:
    values = np.array([value for cell in cells for value in cell.values if np.isfinite(value)])
    if metric == "accuracy":
        axes.set_ylabel("test accuracy in % (logistic scale)")
        if len(values):
            logit_scale(axes, _inside(values.min()), _inside(values.max()))
    else:
        axes.set_ylabel("test loss")
        value_scale(axes, "loss", values)


def _draw_bars(axes: Axes, cells: Sequence[Cell], places: Sequence[float], look: Style, metric: Metric) -> None:
    """Means with ranges. Where a loss is infinite there is a gap."""
    if not cells:
        return
    rows = [(cell.mean or 0.0, min(cell.values), max(cell.values)) for cell in cells]
    if metric == "accuracy":
        rows = [(_inside(mean), _inside(low), _inside(high)) for mean, low, high in rows]
    mean, low, high = np.where(np.isfinite(rows), rows, np.nan).T
    axes.errorbar(
        places,
        mean,
        yerr=[mean - low, high - mean],
        color=look.ink,
        marker=look.marker,
        markerfacecolor=LIGHT["paper"] if look.hollow else look.ink,
        linestyle=look.line,
        markersize=6,
        linewidth=1.8,
        capsize=3,
    )


def _inside(accuracy: float) -> float:
    """Away from 0 and 1, which a logistic scale cannot show."""
    return min(max(float(accuracy), 0.01), 0.999)
