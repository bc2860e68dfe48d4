"""What BNP does in a model, for a person to read."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from trimtab.bnp import transform
from trimtab.bnp.observer import Observer
from trimtab.bnp.options import Options
from trimtab.bnp.statistics import RunningAverage
from trimtab.bnp.watch import Watch, clean_names


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One module that has parameters.

    Attributes:
        name: Its name in the model.
        type: Its class.
        left_alone: Why its gradients are not preconditioned; None if they are.
        bias: Whether it has a bias that is trained, and so is centred.
        steps: Steps whose rows are in the running averages.
        not_finite: Steps that were kept out of them.
        spread: The largest σ̃² over the smallest: κ(D)², what the scaling takes off the condition number of
            the layer's Hessian block at the most. None before the first step.
    """

    name: str
    type: str
    left_alone: str | None
    bias: bool = False
    steps: int = 0
    not_finite: int = 0
    spread: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All modules that have parameters, in the model's order. Printing it gives a table."""

    layers: tuple[LayerReport, ...]

    def __str__(self) -> str:
        """The table."""
        done = [layer for layer in self.layers if layer.left_alone is None]
        rows = [("layer", "type", "steps", "not finite", "max/min σ̃²", "")]
        for layer in self.layers:
            numbers = ("", "", "")
            if layer.left_alone is None or layer.steps or layer.not_finite:
                spread = "" if layer.spread is None else f"{layer.spread:.3g}"
                numbers = (str(layer.steps), str(layer.not_finite), spread)
            note = "scaled, not centred: no trained bias" if not layer.bias else "preconditioned"
            if layer.left_alone is not None:
                note = f"left alone: {layer.left_alone}"
            rows.append((layer.name or "(the model)", layer.type, *numbers, note))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.rjust(width) if column in (2, 3, 4) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        lines.append(f"BNP preconditions {len(done)} of {len(self.layers)} modules with parameters.")
        return "\n".join(lines)


def describe(
    watch: Watch,
    options: Options,
    parameters: set[int] | None,
    why_left_alone: Callable[[Observer, set[int] | None], str | None],
) -> Report:
    """The report on a watched model, of whose parameters these (None: all) are stepped."""
    watch.synchronize()
    layers = []
    for name, module in clean_names(watch.model):
        observer = watch.observers.get(name)
        if observer is not None and observer.module is module:
            layers.append(_describe(observer, options, parameters, why_left_alone(observer, parameters)))
        elif any(True for _ in module.parameters(recurse=False)):
            reason = "named in skip" if watch.skipped(name) else "not a type that BNP knows"
            layers.append(LayerReport(name, type(module).__name__, reason))
    return Report(tuple(layers))


def _describe(observer: Observer, options: Options, parameters: set[int] | None, left_alone: str | None) -> LayerReport:
    running = observer.running
    bias = observer.trained_bias(parameters) is not None
    if left_alone is None and observer.said_unheard and running is None:
        left_alone = "no input of it was seen"
    return LayerReport(
        name=observer.name,
        type=type(observer.module).__name__,
        left_alone=left_alone,
        bias=bias,
        steps=0 if running is None else int(running.steps),
        not_finite=0 if running is None else int(running.skipped),
        spread=None if running is None else _spread(observer, running, options, bias),
    )


def _spread(observer: Observer, running: RunningAverage, options: Options, bias: bool) -> float | None:
    """The largest max/min of σ̃² of all groups."""
    weight = observer.weight
    if weight is None or isinstance(weight, nn.UninitializedParameter):
        return None
    groups, _, inputs, _ = observer.units(weight.detach().contiguous()).shape
    mean, variance = (s.reshape(groups, 1, inputs, -1) for s in running.estimate())
    if not bias and options.no_bias == "second_moment":
        variance = transform.second_moment(mean, variance)
    scale = transform.regularized(variance, options.eps1, options.eps2).flatten(1)
    return float((scale.amax(1) / scale.amin(1)).max())
