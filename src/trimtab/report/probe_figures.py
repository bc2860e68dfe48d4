"""The figures of each probe of `trimtab.probe_registry`: a function by the probe's name.

They are the landscape paper's, the BNP paper's Fig. 8, and others of their kind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from trimtab.probe_registry import PROBES
from trimtab.report import findings
from trimtab.report.probe_drawing import Group, draw_by_distance, draw_landscape, draw_layers, draw_numbers
from trimtab.report.probe_histograms import draw_histograms
from trimtab.report.probe_series import ProbeSeries, Table, any_several, probe_series
from trimtab.report.probe_tables import distance_table, landscape_table, layer_table, network_table
from trimtab.report.report_data import Panel
from trimtab.report.seed_notes import about_seeds
from trimtab.report.styles import Style

EDGE = "An open circle: it is largest at an edge of the range of distances, and a wider range may have a larger one."
EDGE_OF_SEEDS = EDGE.replace("it is", "with most seeds it is")
BANDS = (
    "Of {} a band goes from the median of its lower ends to the median of its upper ends, and a fainter one from the "
    "least to the largest of any seed; the line of β is the median, its shade the range."
)
BY_DISTANCE = "medians over the steps measured, shades between the quartiles."
BY_DISTANCE_OF_SEEDS = "of each seed the median over the steps measured."
RIDGES = (
    "The distribution of an activation over training, the first step at the bottom (landscape paper, Figs. 2 and 9). "
    "Values far out are left out, a spike is cut off at twice the third highest bin."
)
QUANTILES = (
    "The distribution of an activation over training (landscape paper, Figs. 2 and 9): its median (solid), and its 5 % "
    "and 95 % quantiles (dashed). It is the activation of a unit that differs from seed to seed."
)
MAX_LAYERS = 4
"""Rows of a figure that has one for each layer."""


@dataclass(frozen=True, slots=True)
class ProbeFigure:
    """A figure of what a probe measured along some runs.

    Attributes:
        name: A name for its file.
        caption: What is seen in it, and where the papers have it.
        draw: Draws it.
        values: Gives the header and the rows of a table of its numbers.
        finding: What they show, in a sentence; empty if the figure says nothing that another does not.
    """

    name: str
    caption: str
    draw: Callable[[], Figure]
    values: Callable[[], Table]
    finding: str = ""


def probe_figures(panel: Panel, styles: Mapping[str, Style]) -> list[ProbeFigure]:
    """The figures of all probes of `trimtab.probe_registry` that the runs of a panel have results of."""
    figures: list[ProbeFigure] = []
    for name, entry in PROBES.items():
        series = (probe_series(curve, name, styles[curve.label]) for curve in panel.curves)
        runs = [one for one in series if one is not None]
        if runs:
            figures += entry.load_figures()(panel, runs)
    return figures


def problems(panel: Panel) -> list[str]:
    """What could not be measured, and why."""
    counts: dict[str, int] = {}
    for curve in panel.curves:
        for event in (event for run in curve.runs for event in run.probed if event.result.get("problem")):
            words = f"{curve.label}, {event.probe}: {event.result['problem']}"
            counts[words] = counts.get(words, 0) + 1
    return [words if count == 1 else f"{words} ({count} times)" for words, count in counts.items()]


def landscape(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """The loss along the gradient, and how far the gradient can be trusted."""
    yield ProbeFigure(
        f"landscape-{panel.name}",
        "Along the gradient: the range of the loss, the range of the change of the gradient, and the effective "
        f"β-smoothness, the largest change of the gradient over the distance (landscape paper, Figs. 4 and 10). "
        f"{_edge(runs)} {about_seeds(runs, BANDS)}",
        partial(draw_landscape, "Loss and its gradient along the gradient", panel.title, runs),
        partial(landscape_table, runs),
        findings.smoothness(runs, "the gradient"),
    )
    yield ProbeFigure(
        f"predictiveness-{panel.name}",
        "How far the gradient has changed at some distance along itself (landscape paper, Fig. 11), and β, this "
        f"change over the distance: {_by_distance(runs)}",
        partial(draw_by_distance, "Change of the gradient by distance", panel.title, runs, "the gradient"),
        partial(distance_table, runs),
        findings.smoothness_far_away(runs, "the gradient"),
    )


def random(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """The loss along a random direction."""
    yield ProbeFigure(
        f"random-{panel.name}",
        "The same along a random direction whose filters are as long as those of the weights (landscape paper, "
        f"Sec. 3.2). {_edge(runs)} {about_seeds(runs, BANDS)}",
        partial(draw_landscape, "Loss and its gradient along a random direction", panel.title, runs),
        partial(landscape_table, runs),
        findings.smoothness(runs, "a random direction"),
    )
    yield ProbeFigure(
        f"random-predictiveness-{panel.name}",
        "How far the gradient has changed at some distance along a random direction, and β, this change over the "
        f"distance: {_by_distance(runs)}",
        partial(draw_by_distance, "Change along a random direction", panel.title, runs, "a random direction"),
        partial(distance_table, runs),
        findings.smoothness_far_away(runs, "a random direction"),
    )


def step(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """The loss along the optimizer's own step, and how smooth it is in the metric of that step."""
    yield ProbeFigure(
        f"step-{panel.name}",
        "The same along the step that the optimizer takes (with momentum, BNP, Adam's scaling): the range of the loss, "
        "the range of the change of the gradient, and the effective β-smoothness, all Euclidean. "
        f"{_edge(runs)} {about_seeds(runs, BANDS)}",
        partial(draw_landscape, "Loss and its gradient along the optimizer's step", panel.title, runs),
        partial(landscape_table, runs),
        findings.smoothness(runs, "the optimizer's step"),
    )
    rows: list[Group] = [
        ("change / gradient", [("relative_change", "-")]),
        ("ηβ", [("relative_smoothness", "-")]),
    ]
    names = [name for _, group in rows for name, _ in group]
    yield ProbeFigure(
        f"step-metric-{panel.name}",
        "Along the optimizer's step in the metric in which that step is steepest descent (for BNP PPᵀ/q²): the largest "
        "change of the gradient over the gradient, and the learning rate times the effective β. Both are without unit, "
        "so that methods with different metrics can be compared; plain descent on a quadratic is stable below ηβ = 2. "
        f"{findings.gaps(runs, names)} {about_seeds(runs)}",
        partial(draw_numbers, "Smoothness in the step's own metric", panel.title, runs, rows),
        partial(network_table, runs, names),
        findings.step_metric(runs),
    )


def shift(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """Internal covariate shift."""
    columns: list[Group] = [("distance", [("distance", "-")]), ("cosine", [("cosine", "-")])]
    yield layer_figure(
        f"shift-{panel.name}",
        "Internal covariate shift by layer",
        "Internal covariate shift: a layer's gradient before and after the layers below it took their step, as "
        "distance and cosine (landscape paper, Fig. 3).",
        panel,
        runs,
        columns,
        findings.shift(runs),
    )


def activations(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """How far activations move, and how they are distributed."""
    changing = [one for one in (run.changes() for run in runs) if one is not None]
    if changing:
        columns: list[Group] = [("change of mean", [("mean", "-")]), ("change of variance", [("variance", "-")])]
        yield layer_figure(
            f"moments-{panel.name}",
            "Change of an activation in a step, by layer",
            "How far mean and variance of an activation move from one step to the next (landscape paper, Fig. 8).",
            panel,
            changing,
            columns,
            findings.moments(changing),
        )
    layers = _evenly_spaced(_layer_count(runs), 3)
    if layers:
        yield ProbeFigure(
            f"histograms-{panel.name}",
            f"{QUANTILES} {about_seeds(runs)}" if any_several(runs) else f"{RIDGES} {about_seeds(runs)}",
            partial(draw_histograms, "Distribution of an activation, by layer", panel.title, runs, layers),
            partial(layer_table, runs, ["mean", "variance", "skewness", "kurtosis"]),
        )
    if any(np.isfinite(findings.over_layers(run, "stable_rank")) for one in runs for run in one.runs):
        yield layer_figure(
            f"rank-{panel.name}",
            "Stable rank of activations, by layer",
            "The stable rank ‖A‖_F²/‖A‖₂² of a layer's outputs A, a row for each sample and position (BNP paper, "
            "Sec. 2, on Daneshmand et al.).",
            panel,
            runs,
            [("stable rank", [("stable_rank", "-")])],
            findings.rank(runs),
        )
    bounded = [one for one in runs if np.isfinite(one.values("saturated").median).any()]
    if bounded:
        yield ProbeFigure(
            f"saturation-{panel.name}",
            "The share of outputs of bounded activations near an end of their range, as |tanh| > 0.95 (landscape "
            f"paper, Sec. 3). {about_seeds(bounded)}",
            partial(draw_numbers, "Saturated activations", panel.title, bounded, [("share", [("saturated", "-")])]),
            partial(network_table, bounded, ["saturated"]),
            findings.saturation(bounded),
        )


def conditioning(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """Condition numbers of the layers."""
    columns: list[Group] = [
        ("κ of the Hessian", [("hessian", "-"), ("preconditioned", "--")]),
        ("κ of the inputs", [("inputs", "-"), ("normalized", "--")]),
    ]
    yield layer_figure(
        f"conditioning-{panel.name}",
        "Condition numbers by layer",
        "Condition numbers of a unit's Hessian block as it is (solid) and preconditioned by BNP (dashed), and of the "
        "layer's inputs likewise (BNP paper, Fig. 8).",
        panel,
        runs,
        columns,
        findings.conditioning(runs),
        last=True,
    )
    yield layer_figure(
        f"scaling-{panel.name}",
        "Condition number of D by layer",
        "The condition number of D, by which BNP scales a layer's inputs (BNP paper, Fig. 8).",
        panel,
        runs,
        [("κ of D", [("scaling", "-")])],
        last=True,
    )


def spectrum(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """The learning rate beside the largest stable one."""
    rows: list[Group] = [("learning rate", [("learning_rate", "-"), ("stable_learning_rate", "--")])]
    names = [name for _, group in rows for name, _ in group]
    yield ProbeFigure(
        f"spectrum-{panel.name}",
        "The learning rate in use (solid) and the largest stable one, 2/λ of the largest eigenvalue at that step "
        f"(dashed). {findings.gaps(runs, names)} {about_seeds(runs)}",
        partial(draw_numbers, "Learning rate, used and stable", panel.title, runs, rows),
        partial(network_table, runs, names),
        findings.stability(runs),
    )


def noise(panel: Panel, runs: Sequence[ProbeSeries]) -> Iterator[ProbeFigure]:
    """The noise of the gradient, and the decay that batch noise amounts to."""
    rows: list[Group] = [("gradient noise scale", [("noise_scale", "-")])]
    yield ProbeFigure(
        f"noise-{panel.name}",
        "The gradient noise scale: the batch size at which noise and signal of the gradient are equally large. "
        f"{findings.gaps(runs, ['noise_scale'])} {about_seeds(runs)}",
        partial(draw_numbers, "Gradient noise scale", panel.title, runs, rows),
        partial(network_table, runs, ["noise_scale"]),
        findings.noise(runs),
    )
    with_norms = [run for run in runs if run.layer_names()]
    if with_norms:
        columns: list[Group] = [
            ("ζ", [("zeta", "-"), ("zeta_measured", "--")]),
            ("measured / predicted", [("mu_ratio", "-"), ("sigma_ratio", "--")]),
        ]
        yield layer_figure(
            f"decay-{panel.name}",
            "Decay that batch noise amounts to, by layer",
            "The decay ζ that a BatchNorm's noise amounts to, predicted (solid) and measured (dashed), and the "
            "variances of the batch means (solid) and deviations (dashed) over those predicted for independent values.",
            panel,
            with_norms,
            columns,
            findings.decay(with_norms),
        )


def layer_figure(
    name: str,
    title: str,
    caption: str,
    panel: Panel,
    runs: Sequence[ProbeSeries],
    columns: Sequence[Group],
    finding: str = "",
    *,
    last: bool = False,
    more: Sequence[str] = (),
) -> ProbeFigure:
    """A figure with a row for each of a few layers: evenly chosen, or the last; `more` numbers are in its table."""
    count = _layer_count(runs)
    chosen = list(range(max(0, count - MAX_LAYERS), count)) if last else _evenly_spaced(count, MAX_LAYERS)
    numbers = [*(one for _, group in columns for one, _ in group), *more]
    draw = partial(draw_layers, title, panel.title, runs, chosen, columns)
    return ProbeFigure(name, f"{caption} {about_seeds(runs)}", draw, partial(layer_table, runs, numbers), finding)


def _edge(runs: Sequence[ProbeSeries]) -> str:
    return EDGE_OF_SEEDS if any_several(runs) else EDGE


def _by_distance(runs: Sequence[ProbeSeries]) -> str:
    return f"{BY_DISTANCE_OF_SEEDS} {about_seeds(runs, by_step=False)}" if any_several(runs) else BY_DISTANCE


def _layer_count(runs: Sequence[ProbeSeries]) -> int:
    return max(len(run.layer_names()) for run in runs)


def _evenly_spaced(count: int, wanted: int) -> list[int]:
    """At most so many of the indices below a count."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(wanted, count))})
