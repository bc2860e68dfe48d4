"""Panels of lines that come as plain numbers, alone or beside each other as one figure."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trimtab.report.axes import count_ticks, log_scale, log_ticks, spread, value_scale
from trimtab.report.curves import Numbers
from trimtab.report.drawing import MARKERS
from trimtab.report.figure_layout import WIDTH, add_title_and_legend, explain_empty, line_handle, new_figure
from trimtab.report.figures import rendered
from trimtab.report.formatting import format_exact
from trimtab.report.heat_maps import edges_between
from trimtab.report.markup import Markup
from trimtab.report.styles import LIGHT, Style, method_styles
from trimtab.report.svg import inline

Lines = Mapping[str, Sequence[Sequence[float]]]
"""By name, points (x, y), or (x, median, lowest, highest)."""
Cells = tuple[tuple[float, float, float], ...]
LOGARITHMIC = 20.0
"""Positive numbers that spread over more than this factor are on a logarithmic scale."""
COLUMNS, HEIGHT = 3, 2.6
LONGEST = 30
"""Of a line of a label, in letters."""
ALONE = "no finite number has been recorded"


@dataclass(frozen=True, slots=True)
class LinePanel:
    """What is drawn into one pair of axes.

    Attributes:
        title: Above the axes.
        lines: The lines.
        x: What is on the x axis.
        y: What is on the y axis; "accuracy" is told in %.
        cells: Rectangles (x, y, number) behind the lines, coloured by their number; both axes are logarithmic then.
        of_cells: What the colours say.
        points: Whether the points are not joined to lines.
        empty: What is written into axes without a finite number.
    """

    title: str
    lines: Lines
    x: str = ""
    y: str = ""
    cells: Cells = ()
    of_cells: str = ""
    points: bool = False
    empty: str = ALONE

    @classmethod
    def named(cls, panel: str, lines: Lines) -> "LinePanel":
        """A panel whose name says what its axes are: `loss over steps`."""
        y, *x = re.split(r" (?:over|against|by) (?:the )?", panel, maxsplit=1)
        accuracy = y.startswith(("accuracy", "training accuracy"))
        by_steps = y.startswith(("training accuracy", "cosine")) or " along the " in y
        of_x = x[0] if x else "steps" if by_steps else "epochs" if y.startswith("accuracy") else ""
        return cls(
            panel[:1].upper() + panel[1:] if panel[:1].isascii() else panel, lines, of_x, f"{y} in %" if accuracy else y
        )


def lines_image(name: str, panel: LinePanel, where: str = "") -> Markup:
    """A panel as part of a page.

    Args:
        name: Of the figure; each in a page has another one.
        panel: The panel.
        where: What it was measured on, for who cannot see it.
    """
    alt = f"{panel.title}: {', '.join(panel.lines)}" + (f"; {where}." if where else ".")
    return Markup(inline(rendered(partial(draw_panels, [panel]), "svg"), f"{name}-", alt))


def draw_panels(panels: Sequence[LinePanel], title: str = "") -> Figure:
    """Panels beside each other, below each other where there are many, with one legend.

    A line for each case: the median, with the range over seeds as a shade. Without a title there is one panel, and its
    own title stands above.
    """
    names = list(dict.fromkeys(line for panel in panels for line in panel.lines))
    looks = method_styles(names)
    labels = {
        name: name if any(map(_finite, _all_points(panels, name))) else f"{name} (no finite number)" for name in names
    }
    alone = len(panels) == 1
    columns = min(len(panels), COLUMNS if len(panels) != 4 else 2)
    rows = -(-len(panels) // columns)
    width = WIDTH if alone else 3.7 * columns
    figure = new_figure((HEIGHT if alone else HEIGHT + 0.25) * rows, list(labels.values()), width)
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        if title:
            axes.set_title(panel.title)
        _draw_panel(figure, axes, panel, looks)
    handles = [line_handle(looks[name], labels[name], looks[name].measured) for name in names]
    above = fill(title or panels[0].title, int(12.5 * width))
    add_title_and_legend(figure, above, "", handles)
    return figure


def _all_points(panels: Sequence[LinePanel], name: str) -> list[Sequence[float]]:
    return [point for panel in panels for point in panel.lines.get(name, ())]


def _finite(point: Sequence[float]) -> bool:
    return bool(np.isfinite(point[:2]).all())


def _draw_panel(figure: Figure, axes: Axes, panel: LinePanel, looks: Mapping[str, Style]) -> None:
    drawn_x, drawn_y = [np.empty(0)], [np.empty(0)]
    for number, (line, points) in enumerate(panel.lines.items()):
        x, y = _draw(
            axes, points, looks[line], number / len(panel.lines), joined=not panel.points, casing=bool(panel.cells)
        )
        drawn_x.append(x)
        drawn_y.append(y)
    if panel.cells:
        _draw_cells(figure, axes, panel.cells, panel.of_cells, np.concatenate(drawn_x))
    else:
        _scale_x(axes, np.concatenate(drawn_x))
        _scale_y(axes, np.concatenate(drawn_y), accuracy="accuracy" in panel.y, empty=panel.empty)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(fill(panel.y, LONGEST))


def _draw_cells(figure: Figure, axes: Axes, cells: Cells, what: str, beside: Numbers) -> None:
    """Rectangles behind the lines, half way to their neighbours, with a bar that says what their colours mean."""
    rows = sorted({y for _, y, _ in cells})
    rates = np.log(sorted({x for x, _, _ in cells}))
    half = float(np.diff(rates).max() if len(rates) < 3 else np.median(np.diff(rates))) / 2 if len(rates) > 1 else 0.1
    up = edges_between(rows, geometric=True)
    drawn = [
        Rectangle((x * math.exp(-half), up[i]), 2 * x * math.sinh(half), up[i + 1] - up[i])
        for x, y, _ in cells
        for i in [rows.index(y)]
    ]
    values = np.array([value for *_, value in cells])
    low, high = float(values.min()), float(values.max())
    scale = LogNorm(low, high if high > low else 1.1 * low)
    axes.add_collection(PatchCollection(drawn, array=values, cmap="viridis", norm=scale, linewidth=0, zorder=0))
    ends = *rates[[0, -1]] + (-half, half), *np.log(beside[beside > 0])
    log_scale(axes, "x", math.exp(min(ends)), math.exp(max(ends)))
    log_scale(axes, "y", float(up[0]), float(up[-1]))
    bar = figure.colorbar(ScalarMappable(scale, "viridis"), ax=axes, pad=0.02, aspect=25)
    bar.outline.set_visible(False)
    ticks = log_ticks(low, high)
    bar.set_ticks(ticks, labels=[format_exact(tick) for tick in ticks])
    bar.minorticks_off()
    bar.set_label(what)


def _draw(
    axes: Axes, points: Sequence[Sequence[float]], look: Style, shift: float, *, joined: bool, casing: bool
) -> tuple[Numbers, Numbers]:
    """Draw a line; returns the finite numbers of both axes. Where it is not finite there is a gap."""
    rows = np.array([[p[0], p[1], *(p[2:4] if len(p) >= 4 else (p[1], p[1]))] for p in points], dtype=float)
    x, middle, low, high = np.where(np.isfinite(rows), rows, np.nan).reshape(-1, 4).T
    if (low < high).any():
        axes.fill_between(x, low, high, color=look.ink, alpha=0.2, linewidth=0)
    every = max(len(x) / MARKERS, 1.0)
    marked = [int(every * (i + shift)) for i in range(MARKERS) if every * (i + shift) < len(x)]
    if casing:  # a light line beneath keeps it visible on any colour
        axes.plot(x, middle, color=LIGHT["paper"], linewidth=3.4, alpha=0.7)
    axes.plot(
        x,
        middle,
        color=look.ink,
        linestyle=look.measured if joined else "none",
        linewidth=1.6,
        marker=look.marker,
        markersize=4.5,
        markevery=marked if joined else None,
        markerfacecolor=LIGHT["paper"] if look.hollow else look.ink,
    )
    seen = np.isfinite(x) & np.isfinite(middle)
    y = np.concatenate([of[seen] for of in (middle, low, high)])
    return x[seen], y[np.isfinite(y)]


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


def _scale_y(axes: Axes, y: Numbers, *, accuracy: bool, empty: str) -> None:
    if not len(y):
        explain_empty(axes, empty)
    elif accuracy:
        value_scale(axes, "accuracy", y)
    else:
        axes.grid(axis="y")
        if (y > 0).all() and spread(y) > LOGARITHMIC:
            log_scale(axes, "y", float(y.min()), float(y.max()))
        else:
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_exact(value)))
