"""Panels of lines that come as plain numbers."""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trimtab.report.axes import count_ticks, log_scale, spread, value_scale
from trimtab.report.curves import Numbers
from trimtab.report.drawing import MARKERS
from trimtab.report.figure_layout import add_title_and_legend, explain_empty, line_handle, new_figure
from trimtab.report.figures import rendered
from trimtab.report.formatting import format_exact
from trimtab.report.markup import Markup
from trimtab.report.styles import LIGHT, Style, styles
from trimtab.report.svg import inline

Lines = Mapping[str, Sequence[Sequence[float]]]
"""By name, points (x, y), or (x, median, lowest, highest)."""
LOGARITHMIC = 20.0
"""Positive numbers that spread over more than this factor are on a logarithmic scale."""


def lines_image(name: str, panel: str, lines: Lines, where: str = "") -> Markup:
    """A panel as part of a page.

    Args:
        name: Of the figure; each in a page has another one.
        panel: What is drawn. `loss over steps` labels both axes.
        lines: The lines.
        where: What it was measured on, for who cannot see it.
    """
    alt = f"{panel} of {', '.join(lines)}" + (f": {where}." if where else ".")
    return Markup(inline(rendered(partial(draw_lines, panel, lines), "svg"), f"{name}-", alt))


def draw_lines(panel: str, lines: Lines) -> Figure:
    """A line for each case: the median, with the range over seeds as a shade."""
    looks = styles((line, line) for line in lines)  # named as in criteria, not as in reports of comparisons
    labels = {line: line if _any_finite(points) else f"{line} (not finite)" for line, points in lines.items()}
    figure = new_figure(2.6, list(labels.values()))
    axes = figure.subplots()
    handles, drawn_x, drawn_y = [], [np.empty(0)], [np.empty(0)]
    for number, (line, points) in enumerate(lines.items()):
        look = looks[line]
        x, y = _draw(axes, points, look, number / max(len(lines), 1))
        drawn_x.append(x)
        drawn_y.append(y)
        handles.append(line_handle(look, labels[line], look.measured))
    what, of_x = _axes_of(panel)
    _scale_x(axes, np.concatenate(drawn_x))
    _scale_y(axes, np.concatenate(drawn_y), accuracy=what.startswith("accuracy"))
    axes.set_xlabel(of_x)
    axes.set_ylabel(f"{what} in %" if what.startswith("accuracy") else what)
    add_title_and_legend(figure, panel[:1].upper() + panel[1:], "", handles)
    return figure


def _any_finite(points: Sequence[Sequence[float]]) -> bool:
    return any(np.isfinite(point[:2]).all() for point in points)


def _draw(axes: Axes, points: Sequence[Sequence[float]], look: Style, shift: float) -> tuple[Numbers, Numbers]:
    """Draw a line; returns the finite numbers of both axes. Where it is not finite there is a gap."""
    rows = np.array([[p[0], p[1], *(p[2:4] if len(p) >= 4 else (p[1], p[1]))] for p in points], dtype=float)
    x, middle, low, high = np.where(np.isfinite(rows), rows, np.nan).reshape(-1, 4).T
    if (low < high).any():
        axes.fill_between(x, low, high, color=look.ink, alpha=0.2, linewidth=0)
    every = max(len(x) / MARKERS, 1.0)
    axes.plot(
        x,
        middle,
        color=look.ink,
        linestyle=look.measured,
        linewidth=1.6,
        marker=look.marker,
        markersize=4.5,
        markevery=[int(every * (i + shift)) for i in range(MARKERS) if every * (i + shift) < len(x)],
        markerfacecolor=LIGHT["paper"] if look.hollow else look.ink,
    )
    seen = np.isfinite(x) & np.isfinite(middle)
    y = np.concatenate([of[seen] for of in (middle, low, high)])
    return x[seen], y[np.isfinite(y)]


def _axes_of(panel: str) -> tuple[str, str]:
    """What is on the y axis and what on the x axis."""
    what, *rest = re.split(r" (?:over|against) ", panel, maxsplit=1)
    return what, rest[0] if rest else "epochs" if what.startswith("accuracy") else ""


def _scale_x(axes: Axes, x: Numbers) -> None:
    if not len(x):
        axes.set_xticks([])
    elif _is_geometric(x):
        log_scale(axes, "x", float(x.min()), float(x.max()))
    elif np.ptp(x) >= 4:
        count_ticks(axes)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_exact(value)))


def _is_geometric(x: Numbers) -> bool:
    """Whether numbers are spaced by factors rather than by differences."""
    values = np.unique(x)
    if len(values) < 3 or values[0] <= 0 or spread(values) < LOGARITHMIC:
        return False
    steps, factors = np.diff(values), np.diff(np.log(values))
    return bool(factors.std() / factors.mean() < steps.std() / steps.mean())


def _scale_y(axes: Axes, y: Numbers, *, accuracy: bool) -> None:
    if not len(y):
        explain_empty(axes, "no finite number has been recorded")
    elif accuracy:
        value_scale(axes, "accuracy", y)
    else:
        axes.grid(axis="y")
        if (y > 0).all() and spread(y) > LOGARITHMIC:
            log_scale(axes, "y", float(y.min()), float(y.max()))
        else:
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_exact(value)))
