"""The pictures of a diagnosis: what each finding rests on."""

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trimtab.doctor.curves import gain_curve, settled
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import LayerLook, Look, Record
from trimtab.doctor.suspicion import OUT_OF_PROPORTION
from trimtab.report.axes import count_ticks, log_scale
from trimtab.report.figure_layout import explain_empty, new_figure
from trimtab.report.styles import LIGHT

HEIGHT = 2.5
OTHERS = 12
"""So many other layers are drawn beside the one that is meant."""

Draw = Callable[[], Figure]


def loss_figure(record: Record) -> Figure:
    """The training loss, and the steps that were tried."""
    figure, axes = _begin("Training loss", "step", "loss")
    finite = [(step, loss) for step, loss in enumerate(record.losses) if math.isfinite(loss)]
    _line(axes, finite, "grey", "each batch", width=0.7)
    _line(axes, _smooth(finite), "blue", "smoothed")
    tried = [(trial.step, trial.loss) for trial in record.trials if math.isfinite(trial.loss)]
    if tried:
        axes.plot(*zip(*tried, strict=True), "o", color=LIGHT["vermillion"], markersize=4, label="step tried")
    return _finish(figure, axes, [loss for _, loss in finite])


def picture(finding: Finding, record: Record) -> tuple[Draw, str]:
    """What draws the picture of a finding, and what is to be seen in it."""
    if finding.name in ("learning-rate-too-high", "learning-rate-too-low"):
        return lambda: _steps(record), (
            "How much another batch's loss changes by multiples of a step, the median over the steps that were tried; "
            "1 "
            "is the step that was taken."
        )
    if finding.name in ("batchnorm-batch-too-small",):
        pairs = [
            ("on its own batch", "blue", lambda t: t.loss - t.after),
            ("on another batch", "vermillion", lambda t: t.other - t.others[t.multiples.index(1.0)]),
        ]
        return lambda: _trials(
            record, "What a step gains", pairs
        ), "The decrease of the loss by each step that was tried."
    if finding.name == "train-eval-gap":
        pairs = [
            ("training mode", "blue", lambda t: t.loss),
            ("evaluation mode", "vermillion", lambda t: t.evaluated),
        ]
        return lambda: _trials(record, "Loss of the same batch", pairs), "The loss of training batches, in both modes."
    if finding.name == "labels-not-learnable":
        pairs = [("training", "blue", lambda t: t.loss), ("validation", "vermillion", lambda t: t.validation)]
        return lambda: _trials(record, "Loss", pairs), "The loss of training batches and of validation data."
    if finding.name == "dead-units":
        return lambda: _layers(record, finding, "Share of dead outputs", lambda each: each.dead), _each(finding)
    if finding.name == "step-out-of-proportion":
        return lambda: _layers(record, finding, "Step in lengths of the weights", lambda each: each.ratio), _each(
            finding
        )
    if finding.name == "decay-too-strong":
        return lambda: _layers(record, finding, "Norm of the weights", lambda each: each.weight), _each(finding)
    if finding.name == "precision-underflow":
        return lambda: _layers(record, finding, "Share of zeros in the gradient", lambda each: each.zeros), _each(
            finding
        )
    if finding.name == "ill-conditioned-layer":
        return lambda: _layers(
            record, finding, "Upper over lower quartile of input sizes", lambda each: each.columns
        ), (_each(finding))
    if "kept" in finding.evidence:  # the size of the signal is made up for, the length of steps tells
        return lambda: _layers(record, finding, "Step in lengths of the weights", lambda each: each.ratio), _each(
            finding
        )
    return lambda: _first_look(record, finding), (
        "The root mean square of each layer's output at the first look, from the input on the left to the output."
    )


def _each(finding: Finding) -> str:
    return "One line for each layer" + (f"; {finding.layer} is the thick one." if finding.layer else ".")


def _steps(record: Record) -> Figure:
    figure, axes = _begin("Another batch's loss after multiples of a step", "multiple of the step", "change in %")
    trials = settled(record)
    gains = gain_curve(trials)
    if not gains:
        explain_empty(axes, "No step was tried: level light does not, and a loss that broke cannot be.")
        return figure
    worst = 2 * max(abs(gain) for gain in gains[:4])  # what is far beyond the step is far beyond the picture
    axes.plot(trials[0].multiples, [-100 * gain for gain in gains], "o-", color=LIGHT["blue"], markersize=4)
    axes.axhline(0, color=LIGHT["muted"], linewidth=0.8)
    axes.axvline(1, color=LIGHT["vermillion"], linewidth=0.8, linestyle="--", label="the step")
    log_scale(axes, "x", trials[0].multiples[0], trials[0].multiples[-1])
    axes.set_ylim(-100 * max(worst, max(gains)) * 1.1, 100 * worst * 1.1)
    axes.legend(frameon=False)
    return figure


def _trials(record: Record, title: str, lines: Sequence[tuple[str, str, Callable[..., float]]]) -> Figure:
    figure, axes = _begin(title, "step", "")
    values: list[float] = []
    for label, color, value in lines:
        points = [(trial.step, value(trial)) for trial in record.trials if math.isfinite(value(trial))]
        _line(axes, points, color, label, marker="o")
        values += [y for _, y in points]
    return _finish(figure, axes, values)


def _layers(record: Record, finding: Finding, title: str, value: Callable[[LayerLook], float]) -> Figure:
    figure, axes = _begin(title, "step", "")
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
        _line(axes, points, "vermillion" if mine else "grey", name if mine else "", width=2.0 if mine else 0.9)
        values += [y for _, y in points]
    return _finish(figure, axes, values)


def _first_look(record: Record, finding: Finding) -> Figure:
    figure, axes = _begin("Signals at the first look", "layer", "root mean square")
    look: Look | None = record.looks[0] if record.looks else None
    seen = [layer for layer in look.layers if layer.output_rms > 0] if look else []
    if not seen:
        explain_empty(axes, "No activation was seen.")
        return figure
    heights = [seen[0].input_rms, *(layer.output_rms for layer in seen)]
    axes.plot(range(len(heights)), heights, "o-", color=LIGHT["blue"], markersize=4)
    for place, layer in enumerate(seen, start=1):
        if layer.layer == finding.layer:
            axes.plot([place], [layer.output_rms], "o", color=LIGHT["vermillion"], markersize=9, label=layer.layer)
    count_ticks(axes)
    return _finish(figure, axes, heights)


def _begin(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = new_figure(HEIGHT, [])
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y")
    return figure, axes


def _finish(figure: Figure, axes: Axes, values: Sequence[float]) -> Figure:
    """Logarithmic where values spread over more than a factor of ten, and a legend where lines have names."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > OUT_OF_PROPORTION * min(positive) and len(positive) == len(values):
        log_scale(axes, "y", min(positive), max(positive))
    if not values:
        explain_empty(axes, "Nothing was measured.")
    elif axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)
    return figure


def _line(
    axes: Axes, points: Sequence[tuple[int, float]], color: str, label: str, *, width: float = 1.6, marker: str = ""
) -> None:
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=LIGHT[color], linewidth=width, label=label or None, marker=marker, markersize=4)


def _smooth(points: Sequence[tuple[int, float]], share: float = 0.05) -> list[tuple[int, float]]:
    """Means of a twentieth of the steps each."""
    several = max(1, int(share * len(points)))
    groups = [points[at : at + several] for at in range(0, len(points), several)]
    return [(group[len(group) // 2][0], sum(loss for _, loss in group) / len(group)) for group in groups]
