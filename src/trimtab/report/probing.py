"""Figures of what was measured along runs: the landscape paper's, BNP's Fig. 8, and others of their kind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from trimtab.report import findings
from trimtab.report.material import Panel
from trimtab.report.measured import Measured, measured
from trimtab.report.probed import (
    Group,
    draw_histograms,
    draw_landscape,
    draw_layers,
    draw_numbers,
    draw_predictiveness,
    quartiles,
)
from trimtab.report.styles import Style
from trimtab.report.words import number

MOST_LAYERS = 4
"""Rows of a figure that has one for each layer."""
Table = tuple[list[str], list[list[object]]]


@dataclass(frozen=True, slots=True)
class Probing:
    """A figure that can be drawn.

    Attributes:
        name: For a file.
        caption: What is seen in it, and where the papers have it.
        draw: Draws it.
        values: The head and the lines of a table of its numbers.
        finding: What they show, in a sentence; empty if the figure says nothing that another does not.
    """

    name: str
    caption: str
    draw: Callable[[], Figure]
    values: Callable[[], Table]
    finding: str = ""


def probings(panel: Panel, looks: Mapping[str, Style]) -> list[Probing]:
    """All figures of what was measured in the runs of a panel."""
    found: list[Probing] = []
    for probe, make in MAKERS.items():
        runs = [one for curve in panel.curves if (one := measured(curve, probe, looks[curve.label])) is not None]
        if runs:
            found += make(panel, runs)
    return found


def problems(panel: Panel) -> list[str]:
    """What could not be measured, and why."""
    counts: dict[str, int] = {}
    for curve in panel.curves:
        for event in (event for run in curve.runs for event in run.probed if event.result.get("problem")):
            words = f"{curve.label}, {event.probe}: {event.result['problem']}"
            counts[words] = counts.get(words, 0) + 1
    return [words if count == 1 else f"{words} ({count} times)" for words, count in counts.items()]


def _landscape(panel: Panel, runs: Sequence[Measured]) -> Iterator[Probing]:
    yield Probing(
        f"landscape-{panel.name}",
        "Along the gradient: the range of the loss, the range of the change of the gradient, and the effective "
        "β-smoothness, the largest change of the gradient over the distance (landscape paper, Figs. 4 and 10).",
        partial(draw_landscape, "Loss and its gradient along the gradient", panel.title, runs),
        partial(_along, runs),
        findings.smoothness(runs, "the gradient"),
    )
    yield Probing(
        f"predictiveness-{panel.name}",
        "How far the gradient has changed at some distance along itself: medians over the steps measured, shades "
        "between the quartiles (landscape paper, Fig. 11).",
        partial(draw_predictiveness, "Change of the gradient by distance", panel.title, runs),
        partial(_predictiveness, runs),
    )


def _random(panel: Panel, runs: Sequence[Measured]) -> Iterator[Probing]:
    yield Probing(
        f"random-{panel.name}",
        "The same along a random direction whose filters are as long as those of the weights (landscape paper, "
        "Sec. 3.2).",
        partial(draw_landscape, "Loss and its gradient along a random direction", panel.title, runs),
        partial(_along, runs),
        findings.smoothness(runs, "a random direction"),
    )


def _shift(panel: Panel, runs: Sequence[Measured]) -> Iterator[Probing]:
    columns: list[Group] = [("distance", [("distance", "-")]), ("cosine", [("cosine", "-")])]
    yield _layered(
        f"shift-{panel.name}",
        "Internal covariate shift by layer",
        "Internal covariate shift: a layer's gradient before and after the layers below it took their step, as "
        "distance and cosine (landscape paper, Fig. 3).",
        panel,
        runs,
        columns,
        findings.shift(runs),
    )


def _activations(panel: Panel, runs: Sequence[Measured]) -> Iterator[Probing]:
    changing = [one for one in (run.changes() for run in runs) if len(one.steps)]
    if changing:
        columns: list[Group] = [("change of mean", [("mean", "-")]), ("change of variance", [("variance", "-")])]
        yield _layered(
            f"moments-{panel.name}",
            "Change of an activation in a step, by layer",
            "How far mean and variance of an activation move from one step to the next (landscape paper, Fig. 8).",
            panel,
            changing,
            columns,
            findings.moments(changing),
        )
    layers = _evenly(_most(runs), 3)
    if layers:
        yield Probing(
            f"histograms-{panel.name}",
            "The distribution of an activation over training, the first step at the bottom (landscape paper, Figs. 2 "
            "and 9). Values far out are left out, a spike is cut off at twice the third highest bin.",
            partial(draw_histograms, "Distribution of an activation, by layer", panel.title, runs, layers),
            partial(_numbers, runs, ["mean", "variance", "skewness", "kurtosis"]),
        )


def _conditioning(panel: Panel, runs: Sequence[Measured]) -> Iterator[Probing]:
    columns: list[Group] = [
        ("κ of the Hessian", [("hessian", "-"), ("preconditioned", "--")]),
        ("κ of the inputs", [("inputs", "-"), ("normalized", "--")]),
    ]
    yield _layered(
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
    yield _layered(
        f"scaling-{panel.name}",
        "Condition number of D by layer",
        "The condition number of D, by which BNP scales a layer's inputs (BNP paper, Fig. 8).",
        panel,
        runs,
        [("κ of D", [("scaling", "-")])],
        last=True,
    )


def _spectrum(panel: Panel, runs: Sequence[Measured]) -> Iterator[Probing]:
    rows: list[Group] = [("learning rate", [("learning_rate", "-"), ("stable_learning_rate", "--")])]
    names = [name for _, group in rows for name, _ in group]
    yield Probing(
        f"spectrum-{panel.name}",
        "The learning rate in use (solid) and the largest stable one, 2/λ of the largest eigenvalue at that step "
        f"(dashed). {findings.gaps(runs, names)}",
        partial(draw_numbers, "Learning rate, used and stable", panel.title, runs, rows),
        partial(_whole, runs, names),
        findings.stability(runs),
    )


def _noise(panel: Panel, runs: Sequence[Measured]) -> Iterator[Probing]:
    rows: list[Group] = [("gradient noise scale", [("noise_scale", "-")])]
    yield Probing(
        f"noise-{panel.name}",
        "The gradient noise scale: the batch size at which noise and signal of the gradient are equally large. "
        f"{findings.gaps(runs, ['noise_scale'])}",
        partial(draw_numbers, "Gradient noise scale", panel.title, runs, rows),
        partial(_whole, runs, ["noise_scale"]),
        findings.noise(runs),
    )
    with_norms = [run for run in runs if run.layers()]
    if with_norms:
        columns: list[Group] = [
            ("ζ", [("zeta", "-"), ("zeta_measured", "--")]),
            ("measured / predicted", [("mu_ratio", "-"), ("sigma_ratio", "--")]),
        ]
        yield _layered(
            f"decay-{panel.name}",
            "Decay that batch noise amounts to, by layer",
            "The decay ζ that a BatchNorm's noise amounts to, predicted (solid) and measured (dashed), and the "
            "variances of the batch means (solid) and deviations (dashed) over those predicted for independent values.",
            panel,
            with_norms,
            columns,
            findings.decay(with_norms),
        )


MAKERS: dict[str, Callable[[Panel, Sequence[Measured]], Iterator[Probing]]] = {
    "landscape": _landscape,
    "random": _random,
    "shift": _shift,
    "activations": _activations,
    "conditioning": _conditioning,
    "spectrum": _spectrum,
    "noise": _noise,
}
"""By the probe's name."""


def _layered(
    name: str,
    title: str,
    caption: str,
    panel: Panel,
    runs: Sequence[Measured],
    columns: Sequence[Group],
    finding: str = "",
    *,
    last: bool = False,
) -> Probing:
    """A figure with a row for each of a few layers: evenly chosen, or the last."""
    most = _most(runs)
    few = list(range(max(0, most - MOST_LAYERS), most)) if last else _evenly(most, MOST_LAYERS)
    numbers = [one for _, group in columns for one, _ in group]
    draw = partial(draw_layers, title, panel.title, runs, few, columns)
    return Probing(name, caption, draw, partial(_numbers, runs, numbers), finding)


def _most(runs: Sequence[Measured]) -> int:
    return max(len(run.layers()) for run in runs)


def _evenly(count: int, most: int) -> list[int]:
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count))})


def _along(runs: Sequence[Measured]) -> Table:
    head = ["run", "step", "loss", "least along it", "largest", "least change of gradient", "largest", "β-smoothness"]
    lines: list[list[object]] = []
    for run in runs:
        for step, result in zip(run.steps, run.results, strict=True):
            ends = (*result["loss_range"], *result["predictiveness_range"])
            lines.append([run.label, f"{step:.0f}", *map(number, (result["loss"], *ends, result["smoothness"]))])
    return head, lines


def _predictiveness(runs: Sequence[Measured]) -> Table:
    lines: list[list[object]] = []
    for run in runs:
        low, middle, high = quartiles(run.rows("gradient_changes"))
        for x, a, b, c in zip(run.rows("multiples")[0], low, middle, high, strict=True):
            lines.append([run.label, number(x), number(b), f"{number(a)} to {number(c)}"])
    return ["run", "steps away", "median change of gradient", "quartiles"], lines


def _numbers(runs: Sequence[Measured], names: Sequence[str]) -> Table:
    lines: list[list[object]] = []
    for run in runs:
        for which, layer in enumerate(run.layers()):
            values = [run.layer(which, name) for name in names]
            for place, step in enumerate(run.steps):
                lines.append([run.label, layer, f"{step:.0f}", *(number(column[place]) for column in values)])
    return ["run", "layer", "step", *(name.replace("_", " ") for name in names)], lines


def _whole(runs: Sequence[Measured], names: Sequence[str]) -> Table:
    lines: list[list[object]] = []
    for run in runs:
        values = [run.of(name) for name in names]
        for place, step in enumerate(run.steps):
            lines.append([run.label, f"{step:.0f}", *(number(column[place]) for column in values)])
    return ["run", "step", *(name.replace("_", " ") for name in names)], lines
