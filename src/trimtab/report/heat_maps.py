"""Heat maps of a sweep: what became of the networks at each point of a grid, and where theory puts the boundary."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean, median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from trimtab.records import STATES, GridCell, Sweep
from trimtab.report.axes import log_scale, log_ticks
from trimtab.report.formatting import format_exact
from trimtab.report.styles import LIGHT, Dashes

PANEL_WIDTH, PANEL_HEIGHT, COLUMNS, MOST_PANELS = 4.6, 3.4, 2, 12
STATE_COLORS = {"trained": LIGHT["sky"], "dead": LIGHT["grey"], "exploded": LIGHT["orange"]}
LINES: dict[str, tuple[str, Dashes]] = {
    "the paper": ("ink", "-"),
    "exact": ("vermillion", (0, (5.0, 1.5))),
    "train mode": ("purple", (0, (3.0, 1.0, 1.0, 1.0))),
    "this loss and data": ("blue", (0, (1.2, 1.2))),
}
"""A theory has one colour in all figures, whichever others can say something beside it."""
OTHER_LINE: tuple[str, Dashes] = ("ink", (0, (1.0, 3.0)))
Value = Callable[[GridCell], float | None]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A figure of a sweep: its name for a file, what it shows in a sentence, and what draws it."""

    name: str
    caption: str
    draw: Callable[[], Figure]


def heat_maps(sweep: Sweep) -> list[HeatMap]:
    """The maps of a sweep: state, loss, accuracy, step of explosion, each if there is something to show."""
    several = len(sweep.seeds) > 1
    of = f"mean over {len(sweep.seeds)} restarts" if several else "of one network per point"
    worst = "at least one network" if several else "the network"
    lines = " Lines are the largest learning rates that theory predicts." if sweep.predictions else ""
    blank = f"Blank: {worst} exploded."
    panels = len(list(product(*(sweep.axes[i].values for i in _plane(sweep)[2]))))
    if panels > MOST_PANELS:
        lines += f" The first {MOST_PANELS} of {panels} panels; the values of all are in the table."
    maps = [
        HeatMap(
            "state", f"How the networks ended; the worst of the restarts of each point.{lines}", partial(_states, sweep)
        )
    ]
    if any(_loss(cell) is not None for cell in sweep.cells):
        title = f"{sweep.part} loss".capitalize()
        caption = f"{title} after {sweep.steps} steps, {of}. {blank}{lines}"
        maps.append(HeatMap("loss", caption, partial(_numbers, sweep, title, _loss, log=True)))
    if any(_accuracy(cell) is not None for cell in sweep.cells):
        title = f"{sweep.part} accuracy in %".capitalize()
        caption = f"{title} after {sweep.steps} steps, {of}. {blank}{lines}"
        maps.append(HeatMap("accuracy", caption, partial(_numbers, sweep, title, _accuracy, log=False)))
    if any(_explosion(cell) is not None for cell in sweep.cells):
        caption = f"The step at which networks exploded, the median of those that did. Blank: none did.{lines}"
        maps.append(HeatMap("explosion", caption, partial(_numbers, sweep, "Step of explosion", _explosion, log=True)))
    return maps


def _loss(cell: GridCell) -> float | None:
    return _mean([restart.loss for restart in cell.restarts])


def _accuracy(cell: GridCell) -> float | None:
    return _mean([restart.accuracy and 100 * restart.accuracy for restart in cell.restarts])


def _mean(numbers: Sequence[float | None]) -> float | None:
    """The mean, if none is missing."""
    there = [number for number in numbers if number is not None]
    return fmean(there) if there and len(there) == len(numbers) else None


def _explosion(cell: GridCell) -> float | None:
    steps = [restart.exploded_at for restart in cell.restarts if restart.exploded_at is not None]
    return median(steps) if steps else None


def _worst(cell: GridCell) -> float | None:
    order = list(STATE_COLORS)
    found = [order.index(restart.state) for restart in cell.restarts]
    return max(found) if found else None


def _states(sweep: Sweep) -> Figure:
    colors = ListedColormap(list(STATE_COLORS.values()))
    handles = [
        Patch(facecolor=color, label=state)
        for state, color in STATE_COLORS.items()
        if any(restart.state == state for cell in sweep.cells for restart in cell.restarts)
    ]
    return _map(sweep, "How networks end", _worst, colors, Normalize(-0.5, len(STATES) - 0.5), handles)


def _numbers(sweep: Sweep, title: str, value: Value, *, log: bool) -> Figure:
    values = [found for cell in sweep.cells if (found := value(cell)) is not None and math.isfinite(found)]
    positive = [one for one in values if one > 0]
    log = log and len(positive) == len(values)
    low, high = min(values), max(values)
    # A few huge losses just below the boundary would leave one colour for all others.
    if log and len(values) > 10:
        high = min(high, max(10 * median(values), 10 * low))
    if low == high:
        low, high = low * 0.9 if low else -1.0, high * 1.1 if high else 1.0
    scale = LogNorm(low, high, clip=True) if log else Normalize(low, high)
    figure = _map(sweep, title, value, "viridis", scale, [])
    bar = figure.colorbar(ScalarMappable(scale, "viridis"), ax=figure.axes, shrink=0.9, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    if log:
        ticks = log_ticks(low, high)
        if len(ticks) < 2:  # of one number alone nobody can read off another
            ticks = [tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]
        bar.set_ticks(ticks, labels=[format_exact(tick) for tick in ticks])
        bar.minorticks_off()
    return figure


def _map(
    sweep: Sweep, title: str, value: Value, colors: str | Colormap, scale: Normalize, handles: list[Any]
) -> Figure:
    """One panel for each combination of the axes that are not in the plane."""
    up, across, others = _plane(sweep)
    combinations = list(product(*(sweep.axes[i].values for i in others)))[:MOST_PANELS]
    columns = min(COLUMNS, len(combinations))
    rows = -(-len(combinations) // columns)
    handles = [*handles, *_line_handles(sweep)]
    deep = 0.24 * -(-len(handles) // (2 * columns))
    figure = Figure(figsize=(PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 0.4 + deep), layout="constrained")
    for place, combination in enumerate(combinations):
        axes = figure.add_subplot(rows, columns, place + 1)
        _panel(axes, sweep, up, across, dict(zip(others, combination, strict=True)), value, colors, scale)
    shown = f"{title}: {sweep.settings['network']}, {sweep.settings['method']}, on {sweep.settings['data']}"
    if sweep.settings.get("loss") == "squared":
        shown += ", squared loss"
    if handles:
        legend = figure.legend(
            handles=handles,
            title=shown,
            title_fontsize=11,
            loc="outside upper center",
            ncols=min(2 * columns, len(handles)),
            frameon=False,
            fontsize=9,
            handlelength=2.2,
        )
        legend.get_title().set_multialignment("center")
    else:
        figure.suptitle(shown, fontsize=11)
    return figure


def _plane(sweep: Sweep) -> tuple[int, int, list[int]]:
    """Which axis goes up, which one across, and those that make a panel for each of their values."""
    up = sweep.rate_axis or 0
    across = next(i for i in range(len(sweep.axes)) if i != up)
    return up, across, [i for i in range(len(sweep.axes)) if i not in (up, across)]


def _panel(
    axes: Axes,
    sweep: Sweep,
    up: int,
    across: int,
    fixed: dict[int, float],
    value: Value,
    colors: str | Colormap,
    scale: Normalize,
) -> None:
    x, y = sweep.axes[across], sweep.axes[up]
    found = {
        (cell.values[across], cell.values[up]): value(cell)
        for cell in sweep.cells
        if all(cell.values[i] == number for i, number in fixed.items())
    }
    grid = np.array([[found[a, b] for a in x.values] for b in y.values], dtype=float)  # None becomes NaN
    edges = [edges_between(axis.values, geometric=_is_geometric(axis.values, axis.geometric)) for axis in (x, y)]
    axes.pcolormesh(*edges, np.ma.masked_invalid(grid), cmap=colors, norm=scale, edgecolors="face", linewidth=0.2)
    for axis, which, own in ((x, "x", edges[0]), (y, "y", edges[1])):
        if _is_geometric(axis.values, axis.geometric):
            log_scale(axes, which, *_ends(axis.values))
        (axes.set_xlim if which == "x" else axes.set_ylim)(own[0], own[-1])
        label = "learning rate" if axis.name == "lr" else axis.name.replace("_", " ")
        (axes.set_xlabel if which == "x" else axes.set_ylabel)(label)
    if fixed:
        words = [f"{sweep.axes[i].name.replace('_', ' ')} {format_exact(number)}" for i, number in fixed.items()]
        axes.set_title(", ".join(words), fontsize=10)
    if sweep.rate_axis is not None:
        _predictions(axes, sweep, across, fixed)


def _predictions(axes: Axes, sweep: Sweep, across: int, fixed: dict[int, float]) -> None:
    """The predicted boundaries of one panel."""
    assert sweep.rate_axis is not None
    names = [i for i in range(len(sweep.axes)) if i != sweep.rate_axis]
    places = [dict(zip(names, values, strict=True)) for values, _ in sweep.slices()]
    for predicted in sweep.predictions:
        color, dashes = LINES.get(predicted.name, OTHER_LINE)
        points = [
            (place[across], rate)
            for place, rate in zip(places, predicted.rates, strict=True)
            if rate is not None and all(place[i] == number for i, number in fixed.items())
        ]
        if points:
            # A light line beneath keeps it visible on any colour.
            axes.plot(*zip(*points, strict=True), color=LIGHT["paper"], linewidth=3.2, alpha=0.7)
            axes.plot(*zip(*points, strict=True), color=LIGHT[color], linestyle=dashes, linewidth=1.8)


def _line_handles(sweep: Sweep) -> list[Line2D]:
    drawn = [predicted for predicted in sweep.predictions if any(rate is not None for rate in predicted.rates)]
    styles = [(predicted.name, *LINES.get(predicted.name, OTHER_LINE)) for predicted in drawn]
    return [
        Line2D([], [], color=LIGHT[color], linestyle=dashes, linewidth=1.8, label=f"η*: {name}")
        for name, color, dashes in styles
    ]


def _is_geometric(values: Sequence[float], told: bool | None) -> bool:
    """Whether an axis is drawn on a logarithmic scale; a list of values is if they spread over more than a decade."""
    return told if told is not None else min(values) > 0 and max(values) > 10 * min(values)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def edges_between(values: Sequence[float], *, geometric: bool) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The borders of the cells around these values: half way between two, on the scale of the axis."""
    where = np.log(np.asarray(values, float)) if geometric else np.asarray(values, float)
    if len(where) == 1:
        middle = np.array([where[0] - 0.5, where[0] + 0.5])
    else:
        between = (where[1:] + where[:-1]) / 2
        middle = np.array([2 * where[0] - between[0], *between, 2 * where[-1] - between[-1]])
    return np.exp(middle) if geometric else middle
