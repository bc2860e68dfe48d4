"""Scales and ticks that figures share."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from trimtab.records import Metric
from trimtab.report.curves import Numbers
from trimtab.report.formatting import format_exact, format_number, format_power
from trimtab.report.styles import LIGHT

RC: dict[Any, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.labelsize": 10.5,
    "legend.fontsize": 10,
    "font.family": "DejaVu Sans",
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.titlecolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["muted"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.labelcolor": LIGHT["ink"],
    "axes.grid": False,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.7,
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": LIGHT["paper"],
    "svg.fonttype": "none",
    "svg.hashsalt": "trimtab",
    "pdf.fonttype": 42,
    "text.parse_math": False,
}
# From coarse to fine; each level has those before it too.
LOGIT_TICKS = (
    (0.01, 0.1, 0.5, 0.9, 0.99, 0.999),
    (0.02, 0.05, 0.2, 0.8, 0.95, 0.98, 0.995, 0.998),
    (0.03, 0.07, 0.3, 0.4, 0.6, 0.7, 0.85, 0.93, 0.97, 0.985, 0.993, 0.997),
    (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.82, 0.87, 0.91, 0.92, 0.94, 0.96, 0.975, 0.988, 0.991, 0.996),
)


def value_scale(axes: Axes, metric: Metric, values: Numbers) -> None:
    """Accuracies in %, losses as they are: on a logarithmic scale if they spread over more than a factor of five."""
    axes.grid(axis="y")
    values = values[np.isfinite(values)]
    if metric == "accuracy":
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -3), min(high, 103))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    elif spread(values) > 5:
        positive = values[values > 0]
        log_scale(axes, "y", float(positive.min()), float(positive.max()))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: format_exact(y)))


def make_room(axes: Axes, metric: Metric, share: float) -> None:
    """Widen the y axis on its worse side by a share of its length; there are no ticks in the new part."""
    low, high = axes.get_ylim()
    if metric == "accuracy":
        axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])
        axes.set_ylim(low - share * (high - low), high)
    elif axes.get_yscale() == "log":
        axes.set_ylim(low, high * (high / low) ** share)
    else:
        axes.set_ylim(low, high + share * (high - low))


def spread(values: Numbers) -> float:
    """The largest over the least positive value."""
    positive = values[values > 0]
    return float(positive.max() / positive.min()) if len(positive) else 1.0


def log_scale(axes: Axes, which: str, low: float, high: float) -> None:
    """A logarithmic scale from a little below `low` to a little above `high`, with ticks at round numbers."""
    margin = (high / low) ** 0.06 if high > low else 1.5
    low, high = low / margin, high * margin
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", nonpositive="clip")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis = axes.xaxis if which == "x" else axes.yaxis
    ticks = log_ticks(low, high)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(_log_label(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def log_ticks(low: float, high: float) -> list[float]:
    """Between two and seven round numbers in a range, as far as there are so many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for heads in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        ticks = [head * 10.0**exponent for exponent in range(first, last + 1) for head in heads]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: -(-len(ticks) // 7)] if ticks else [low, high]


def _log_label(ticks: Sequence[float]) -> Callable[[float, int], str]:
    """Plain numbers where all ticks of an axis can be such, else powers of ten, but for 1 and 10."""
    if all(1e-3 * 0.999 <= tick < 1e5 for tick in ticks):
        return lambda x, _: format_number(x, 1)
    return lambda x, _: format_number(x, 1) if 0.999 <= x < 10.001 else format_power(x, 1)


def count_ticks(axes: Axes, max_ticks: int = 6) -> None:
    """Steps along the x axis: 0, 5k, 10k."""
    axes.xaxis.set_major_locator(MaxNLocator(max_ticks, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short_count(x)))


def short_count(x: float) -> str:
    """12000 as 12k."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= unit and abs(x) >= 10_000:
            return f"{x / unit:g}{sign}"
    return f"{x:g}"


def time_unit(seconds: float) -> tuple[float, str]:
    """What to divide seconds by, and what it is called then."""
    if seconds >= 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 300 else (1.0, "seconds")


def logit_scale(axes: Axes, low: float, high: float) -> None:
    """Accuracies on a logistic scale, on which halving the errors is the same distance everywhere."""
    axes.set_yscale("logit")
    bottom, top = _logit(low), _logit(high)
    margin = max(0.06 * (top - bottom), 0.15)
    bottom, top = bottom - margin, top + margin
    ticks: list[float] = []
    for level in LOGIT_TICKS:
        if len(ticks) < 6:
            ticks = sorted([*ticks, *(tick for tick in level if bottom <= _logit(tick) <= top)])
    axes.set_yticks(ticks, [f"{100 * tick:g}" for tick in ticks])
    axes.set_ylim(*(1 / (1 + math.exp(-end)) for end in (bottom, top)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
