"""Draws the distributions of activations along runs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trimtab.report.curves import Numbers
from trimtab.report.figure_layout import explain_empty, new_figure
from trimtab.report.formatting import format_exact
from trimtab.report.probe_drawing import NOTHING, finish, layer_name
from trimtab.report.probe_series import ProbeSeries

Histogram = tuple[Numbers, Numbers, int]
"""Edges and counts of bins, and how many values there were."""
POINTS = 200
"""Points of a ridge of several seeds, whose bins differ."""


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
                _ridges(axes, one, one.layer_names()[layer])
            else:
                explain_empty(axes, "this network has no such layer")
        row[0].set_ylabel(layer_name(runs, layer))
    return finish(figure, what, where, runs)


def _ridges(axes: Axes, one: ProbeSeries, layer: str) -> None:
    """At most eight of the steps, evenly chosen."""
    usable = [(step, found) for step, found in _by_step(one, layer) if found]
    if not usable:
        explain_empty(axes, NOTHING)
        return
    shown = [usable[i] for i in np.unique(np.linspace(0, len(usable) - 1, min(8, len(usable))).astype(int))]
    drawn = [histogram for _, found in shown for histogram in found]
    low, high = central([(edges, counts) for edges, counts, _ in drawn])
    ink = one.style.ink
    for height, (_, found) in enumerate(shown):
        if one.several:
            x, heights = seed_heights(found, np.linspace(low, high, POINTS))
            ends = heights.min(axis=0), heights.max(axis=0)
            axes.fill_between(x, height + ends[0], height + ends[1], color=ink, alpha=0.25, linewidth=0)
            axes.plot(x, height + np.median(heights, axis=0), color=ink, linewidth=1.0)
        else:
            x, heights = heights_of(found[0])
            within = (x >= low) & (x <= high)
            axes.fill_between(x[within], height, (height + heights)[within], color=ink, alpha=0.35, linewidth=0.6)
    inside = float(np.mean([_inside(histogram, low, high) for histogram in drawn]))
    axes.set_xlim(low, high)
    axes.set_ylim(-0.1, len(shown) + 1.6)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_exact(x)))
    steps = f"steps {shown[0][0]:g} to {shown[-1][0]:g}"
    axes.set_xlabel(steps + (f"\n{100 * (1 - inside):.2g} % outside" if inside < 1 - 1e-9 else ""), fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


def _by_step(one: ProbeSeries, layer: str) -> list[tuple[float, list[Histogram]]]:
    """What can be drawn of each step that all seeds have, seed by seed."""
    by_seed = [dict(zip(run.steps.tolist(), run.histograms(layer), strict=True)) for run in one.runs]
    found = []
    for step in one.steps.tolist():
        there = [histograms[step] for histograms in by_seed]
        found.append((step, [each for each in there if np.isfinite(each[0]).all() and each[1].any()]))
    return found


def heights_of(histogram: Histogram) -> tuple[Numbers, Numbers]:
    """Middles of the bins, and how high a ridge is drawn there."""
    edges, counts, _ = histogram
    density = counts / np.diff(edges)
    # One or two bins that tower above all others, as the zeros of a ReLU do, would flatten the rest.
    top = min(float(density.max()), 2 * float(np.sort(density)[-3:][0]) or np.inf)
    return (edges[1:] + edges[:-1]) / 2, 1.6 * np.minimum(density / top, 1.0)


def seed_heights(histograms: Sequence[Histogram], x: Numbers) -> tuple[Numbers, Numbers]:
    """How high the ridge of each seed is at some places, a row for each."""
    return x, np.array([np.interp(x, *heights_of(one), left=0.0, right=0.0) for one in histograms])


def _inside(histogram: Histogram, low: float, high: float) -> float:
    edges, counts, values = histogram
    middle = (edges[1:] + edges[:-1]) / 2
    return float(counts[(middle >= low) & (middle <= high)].sum() / max(values, 1))


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
