"""The pictures of a diagnosis: what each finding rests on."""

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from trimtab.doctor.curves import SETTLED, gain_curve, settled
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import LayerLook, Look, Record, Trial
from trimtab.doctor.suspicion import OUT_OF_PROPORTION
from trimtab.report.axes import count_ticks, log_scale
from trimtab.report.figure_layout import add_title_and_legend, explain_empty, new_figure
from trimtab.report.styles import LIGHT

HEIGHT = 2.5
OTHERS = 12
"""So many other layers are drawn beside the one that is meant."""
VAST = 1e30
"""What is beyond it no picture has to tell apart, and some cannot be drawn."""
LONGEST = 40
"""So many letters of a layer's name fit into a legend."""

Draw = Callable[[], Figure]
Line = tuple[str, str, Callable[[Trial], float]]

IN_TRIALS: dict[str, tuple[str, tuple[Line, Line], str]] = {
    "batchnorm-batch-too-small": (
        "What a step gains",
        (
            ("on its own batch", "blue", lambda trial: trial.loss - trial.after),
            ("on another batch", "vermillion", lambda trial: trial.other - trial.others[trial.multiples.index(1.0)]),
        ),
        "The decrease of the loss by each step that was tried.",
    ),
    "train-eval-gap": (
        "Loss of the same batch",
        (
            ("training mode", "blue", lambda trial: trial.loss),
            ("evaluation mode", "vermillion", lambda trial: trial.evaluated),
        ),
        "The loss of training batches, in both modes.",
    ),
    "labels-not-learnable": (
        "Loss",
        (
            ("training", "blue", lambda trial: trial.loss),
            ("validation", "vermillion", lambda trial: trial.validation),
        ),
        "The loss of training batches and of validation data.",
    ),
}
"""Findings that trials show: title, lines (label, color, value), and what is to be seen."""
IN_LAYERS: dict[str, tuple[str, Callable[[LayerLook], float]]] = {
    "dead-units": ("Share of dead outputs", lambda look: look.dead),
    "step-out-of-proportion": ("Step in lengths of the weights", lambda look: look.ratio),
    "decay-too-strong": ("Norm of the weights", lambda look: look.weight),
    "precision-underflow": ("Share of zeros in the gradient", lambda look: look.zeros),
    "ill-conditioned-layer": ("Upper over lower quartile of input sizes", lambda look: look.columns),
}
"""Findings that looks at layers show: title and value."""


def loss_figure(record: Record) -> Figure:
    """The training loss, and the steps that were tried."""
    figure, axes = _begin("step", "loss")
    finite = [(step, loss) for step, loss in enumerate(record.losses) if math.isfinite(loss)]
    _line(axes, finite, "grey", "each batch", width=0.7)
    _line(axes, _smooth(finite), "blue", "smoothed")
    tried = [(trial.step, trial.loss) for trial in record.trials if math.isfinite(trial.loss)]
    if tried:
        axes.plot(*zip(*tried, strict=True), "o", color=LIGHT["vermillion"], markersize=4, label="step tried")
    return _finish(figure, axes, "Training loss", [loss for _, loss in finite])


def picture(finding: Finding, record: Record) -> tuple[Draw, str]:
    """What draws the picture of a finding, and what is to be seen in it."""
    name = finding.name
    if name in ("learning-rate-too-high", "learning-rate-too-low"):
        return lambda: _steps(record), (
            "How much another batch's loss changes by multiples of a step, the median over the steps that were tried; "
            "1 is the step that was taken."
        )
    if name in IN_TRIALS:
        return lambda: _trials(record, *IN_TRIALS[name][:2]), IN_TRIALS[name][2]
    # Where the size of the signal is made up for, the length of steps tells.
    shown = "step-out-of-proportion" if "kept" in finding.evidence else name
    if shown in IN_LAYERS:
        return lambda: _layers(record, finding, *IN_LAYERS[shown]), _each(finding)
    return lambda: _first_look(record, finding), (
        "The root mean square of each layer's output at the first look, from the input on the left to the output."
    )


def _each(finding: Finding) -> str:
    return "One line for each layer" + (f"; the thick one is layer {finding.layer}." if finding.layer else ".")


def _steps(record: Record) -> Figure:
    figure, axes = _begin("multiple of the step", "change in %")
    trials = settled(record)
    points = [(s, gain) for s, gain in zip(trials[0].multiples, gain_curve(trials), strict=False)] if trials else []
    points = [(s, gain) for s, gain in points if math.isfinite(gain)]  # where the loss is no number nothing is drawn
    gains = [gain for _, gain in points]
    if gains:
        worst = 2 * max(abs(gain) for gain in gains[:4])  # what is far beyond the step is far beyond the picture
        worst = worst if 0 < worst < VAST else 1.0
        drawn = [(s, -100 * max(gain, -VAST)) for s, gain in points]
        axes.plot(*zip(*drawn, strict=True), "o-", color=LIGHT["blue"], markersize=4)
        axes.axhline(0, color=LIGHT["muted"], linewidth=0.8)
        axes.axvline(1, color=LIGHT["vermillion"], linewidth=0.8, linestyle="--", label="the step")
        log_scale(axes, "x", trials[0].multiples[0], trials[0].multiples[-1])
        axes.set_ylim(-100 * max(worst, min(max(gains), VAST)) * 1.1, 100 * worst * 1.1)
    else:
        early = f"None of the steps tried counts: those before step {SETTLED} do not, nor those whose loss broke."
        none = "No step was tried: level light does not, and a loss that broke cannot be."
        _empty(axes, early if record.trials else none)
    return _titled(figure, axes, "Another batch's loss after multiples of a step")


def _trials(record: Record, title: str, lines: Sequence[Line]) -> Figure:
    figure, axes = _begin("step", "")
    values: list[float] = []
    for label, color, value in lines:
        points = [(trial.step, value(trial)) for trial in record.trials if math.isfinite(value(trial))]
        _line(axes, points, color, label, marker="o")
        values += [y for _, y in points]
    return _finish(figure, axes, title, values)


def _layers(record: Record, finding: Finding, title: str, value: Callable[[LayerLook], float]) -> Figure:
    figure, axes = _begin("step", "")
    values: list[float] = []
    names = [layer.layer for layer in record.looks[-1].layers] if record.looks else []
    others = [name for name in names if name != finding.layer][:OTHERS]
    for name in [*others, *([finding.layer] if finding.layer in names else [])]:
        mine = name == finding.layer
        points = [
            (look.step, value(layer))
            for look in record.looks
            for layer in look.layers
            if layer.layer == name and math.isfinite(value(layer))
        ]
        label = _named(name) if mine else ""
        _line(axes, points, "vermillion" if mine else "grey", label, width=2.0 if mine else 0.9)
        values += [y for _, y in points]
    return _finish(figure, axes, title, values)


def _first_look(record: Record, finding: Finding) -> Figure:
    figure, axes = _begin("layer", "root mean square")
    look: Look | None = record.looks[0] if record.looks else None
    seen = [layer for layer in look.layers if 0 < layer.output_rms < math.inf] if look else []
    heights = [seen[0].input_rms, *(layer.output_rms for layer in seen)] if seen else []
    points = [(place, height) for place, height in enumerate(heights) if math.isfinite(height)]
    if points:
        axes.plot(*zip(*points, strict=True), "o-", color=LIGHT["blue"], markersize=4)
    for place, layer in enumerate(seen, start=1):
        if layer.layer == finding.layer:
            label = _named(layer.layer)
            axes.plot([place], [layer.output_rms], "o", color=LIGHT["vermillion"], markersize=9, label=label)
    return _finish(figure, axes, "Signals at the first look", [height for _, height in points])


def _begin(x: str, y: str) -> tuple[Figure, Axes]:
    figure = new_figure(HEIGHT, ["one line of a legend"])
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y")
    return figure, axes


def _finish(figure: Figure, axes: Axes, title: str, values: Sequence[float]) -> Figure:
    """Logarithmic where values spread over more than a factor of ten; steps and layers are whole numbers."""
    left, right = axes.get_xlim()
    if right - left < 1:  # a single step has whole numbers beside it, too
        axes.set_xlim(left - 1, right + 1)
    count_ticks(axes)
    positive = [value for value in values if value > 0]
    if positive and max(positive) > OUT_OF_PROPORTION * min(positive) and len(positive) == len(values):
        log_scale(axes, "y", min(positive), max(positive))
    if not values:
        _empty(axes, "Nothing was measured.")
    return _titled(figure, axes, title)


def _empty(axes: Axes, why: str) -> None:
    axes.set_xticks([])
    explain_empty(axes, why)


def _titled(figure: Figure, axes: Axes, title: str) -> Figure:
    """With a title, and a legend above the axes of the lines that have names."""
    handles = [handle for handle in axes.get_legend_handles_labels()[0] if isinstance(handle, Line2D)]
    add_title_and_legend(figure, title, "", handles)
    return figure


def _named(layer: str) -> str:
    """For a legend, which has no room for a long name; the end of it tells more than the beginning."""
    return "layer " + (layer if len(layer) <= LONGEST else "…" + layer[1 - LONGEST :])


def _line(
    axes: Axes, points: Sequence[tuple[int, float]], color: str, label: str, *, width: float = 1.6, marker: str = ""
) -> None:
    if points:
        xs, ys = zip(*points, strict=True)
        marker = marker or ("o" if len(points) == 1 else "")  # one point makes no line
        axes.plot(xs, ys, color=LIGHT[color], linewidth=width, label=label or None, marker=marker, markersize=4)


def _smooth(points: Sequence[tuple[int, float]], share: float = 0.05) -> list[tuple[int, float]]:
    """Means of a twentieth of the steps each."""
    several = max(1, int(share * len(points)))
    groups = [points[at : at + several] for at in range(0, len(points), several)]
    return [(group[len(group) // 2][0], sum(loss for _, loss in group) / len(group)) for group in groups]
