"""Draws the distributions of activations along runs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from trimtab.report.curves import Numbers
from trimtab.report.figure_layout import explain_empty, new_figure
from trimtab.report.formatting import format_exact
from trimtab.report.probe_drawing import NOTHING, draw_spread, finish, layer_name, step_axis
from trimtab.report.probe_series import ProbeSeries, any_several
from trimtab.report.styles import Dashes

QUANTILES: tuple[tuple[float, Dashes], ...] = ((0.95, "--"), (0.5, "-"), (0.05, "--"))
"""What is drawn of the distributions of several seeds, from above."""


def draw_histograms(what: str, where: str, runs: Sequence[ProbeSeries], layers: Sequence[int]) -> Figure:
    """Distributions over training, a column for each run.

    Those of one run are drawn one above the other, the first step at the bottom. Those of several seeds have their
    values at other places, so that a median of their heights would be a distribution of nothing: their quantiles are
    drawn against the steps.
    """
    several = any_several(runs)
    figure = new_figure(0.6 + (1.6 if several else 2.1) * len(layers), [one.label for one in runs])
    grid = figure.subplots(len(layers), len(runs), sharex=several, squeeze=False)
    for row, layer in zip(grid, layers, strict=True):
        for axes, one in zip(row, runs, strict=True):
            if not several:
                axes.set_yticks([])
            if axes in grid[0]:
                axes.set_title(one.label, fontsize=9)
            if layer >= len(one.layer_names()):
                explain_empty(axes, "this network has no such layer")
            elif several:
                _quantiles(axes, one, one.layer_names()[layer])
            else:
                _ridges(axes, one, one.layer_names()[layer])
        row[0].set_ylabel(layer_name(runs, layer))
    if several:
        for axes in grid[-1]:
            step_axis(axes, ticks=6 if len(runs) == 1 else 3)
    return finish(figure, what, where, runs)


def _quantiles(axes: Axes, one: ProbeSeries, layer: str) -> None:
    spreads = [one.spread(lambda run, share=share: run.quantiles(layer, share)) for share, _ in QUANTILES]  # type: ignore[misc]
    if not any(np.isfinite(line.y).any() for spread in spreads for line in spread.lines):
        explain_empty(axes, NOTHING)
        return
    for spread, (_, dashes) in zip(spreads, QUANTILES, strict=True):
        draw_spread(axes, spread, one.style, dashes)
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: format_exact(y)))


def _ridges(axes: Axes, one: ProbeSeries, layer: str) -> None:
    """At most eight of the steps, evenly chosen."""
    histograms = one.runs[0].histograms(layer)
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
