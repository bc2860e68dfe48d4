"""Measures of runs that were probed along the way: medians over parts of a run, layer by layer, and of pairs of runs.

All are of one run, or of one layer of it; `probed_findings` enters them for several methods and seeds.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from trimtab.records import History

Result = dict[str, Any]
Number = Callable[[Result], float]
Share = tuple[float, float]
"""From where to where in a run, as shares of its steps."""

WHOLE: Share = (0.0, 1.0)
FIRST_TENTH: Share = (0.0, 0.1)
SECOND_HALF: Share = (0.5, 1.0)
THIRDS: dict[str, Share] = {
    "first third": (0.0, 1 / 3),
    "second third": (1 / 3, 2 / 3),
    "last third": (2 / 3, 1.0),
}


def _range(result: Result) -> float:
    low, high = result["loss_range"]
    return high - low if math.isfinite(high) else math.inf


LINE: dict[str, Number] = {
    "range": _range,
    "change": lambda result: float(result["predictiveness_range"][1]),
    "β": lambda result: float(result["smoothness"]),
}
"""What is measured along a line: of the loss, of the gradient, and its largest change for a distance."""
RELATIVE: dict[str, Number] = {
    "range over loss": lambda result: _range(result) / result["loss"],
    "change over gradient norm": lambda result: result["predictiveness_range"][1] / result["gradient_norm"],
}


def steps_of(run: History) -> int:
    """How many steps a run was to take."""
    return int(run.started.settings["steps"])


def diverged(run: History) -> bool:
    """Whether a run ended since its loss was not finite, or a hundred times the first one."""
    return run.ended is not None and run.ended.verdict == "diverged"


def results(run: History, probe: str, part: Share = WHOLE) -> list[tuple[int, Result]]:
    """A probe's results in a part of a run, with their steps, without those that could not be measured."""
    low, high = (share * steps_of(run) for share in part)
    inside = [event for event in run.probed if event.probe == probe and low <= event.step <= high]
    return [(event.step, event.result) for event in inside if not event.result.get("problem")]


def middle(run: History, probe: str, number: Number, part: Share = WHOLE) -> float:
    """The median of a number over a part of a run; infinite where the run has diverged before.

    Raises:
        ValueError: If nothing was measured there though the run went on.
    """
    values = [value for _, result in results(run, probe, part) if not math.isnan(value := number(result))]
    if values:
        return median(values)
    if diverged(run):
        return math.inf
    raise ValueError(
        f"{run.folder} has no result of the probe {probe!r} from {part[0]:.0%} to {part[1]:.0%} of the run"
    )


def at_multiples(run: History, name: str, probe: str = "landscape", part: Share = WHOLE) -> dict[float, float]:
    """The median of a list of numbers along the line, at each multiple of the step."""
    found = [result for _, result in results(run, probe, part)]
    if not found:
        return {}
    multiples = found[0]["multiples"]
    columns = zip(*([_or_infinite(value) for value in result[name]] for result in found), strict=True)
    return {float(s): median(column) for s, column in zip(multiples, columns, strict=True)}


def share_at_edge(run: History) -> float:
    """In how many of the measurements the largest β is at an end of the range; NaN without any."""
    edges = [float(result["smoothness_at_edge"]) for _, result in results(run, "landscape")]
    return fmean(edges) if edges else math.nan


def advantage(left: float, right: float) -> float:
    """How many times larger the left number is; 1 if both are infinite."""
    if left == right:
        return 1.0
    return left / right if right else math.inf


# ---- Layers ----------------------------------------------------------------------------------------------------------


@cache
def _weight_layers(network: str, norm: str, depth: int | None) -> tuple[int, ...]:
    """The places in a row of modules at which dense layers and convolutions stand."""
    import torch
    from torch import nn

    from trimtab.networks import build, input_shape
    from trimtab.norms import Norm

    shape = input_shape(network)
    classes = shape[0] if network == "dln25" else 10
    with torch.device("meta"):
        found = build(network, Norm.parse(norm), input_shape=shape, classes=classes, depth=depth)
    return tuple(
        int(name.split(".")[0]) for name, module in found.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    )


def layer_number(run: History, layer: str) -> int:
    """Which of the dense layers and convolutions, counted from 0, a module is or belongs to.

    Networks with and without norms have other names for their layers; a norm belongs to the layer before it.
    """
    settings = run.started.settings
    method = str(settings["method"])
    norm = "none" if method == "vanilla" else method
    places = _weight_layers(settings["network"], norm, settings.get("depth"))
    place = int(layer.split(".")[0])
    return max(number for number, each in enumerate(places) if each <= place)


def by_layer(run: History, probe: str, number: Number, part: Share = WHOLE) -> dict[int, float]:
    """The median of a number of each layer over a part of a run; layers without one are left out."""
    found: dict[int, list[float]] = {}
    for _, result in results(run, probe, part):
        for place, layer in _layers(run, result).items():
            value = number(layer)
            if not math.isnan(value):
                found.setdefault(place, []).append(value)
    return {place: median(values) for place, values in found.items()}


def share_of_layers(met: Callable[..., bool], *several: Mapping[int, float]) -> float:
    """For which share of the layers that all have a statement is true; NaN if there is no such layer."""
    common = set(several[0]).intersection(*several[1:])
    return fmean(float(met(*(each[layer] for each in several))) for layer in common) if common else math.nan


def successive(run: History) -> Iterator[tuple[Result, Result]]:
    """The results of the probe `activations` at steps that follow each other directly."""
    for (step, before), (next_step, after) in pairwise(results(run, "activations")):
        if next_step == step + 1:
            yield before, after


def stability(run: History) -> tuple[dict[int, float], dict[int, float]]:
    """Of each layer's example activations: the change of the mean from a step to the next, and that of the variance.

    The former is over the deviation, the latter abs(log(ratio of the variances)); both are medians over the run.
    """
    return _changes(run, _shift_of_mean), _changes(run, _log_ratio)


def moment_changes(run: History) -> tuple[dict[int, float], dict[int, float]]:
    """The same, as absolute changes of the mean and of the variance."""
    return (
        _changes(run, lambda before, after: abs(after["mean"] - before["mean"])),
        _changes(run, lambda before, after: abs(after["variance"] - before["variance"])),
    )


def _changes(run: History, change: Callable[[Result, Result], float]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for before, after in successive(run):
        earlier = _layers(run, before)
        for place, layer in _layers(run, after).items():
            pairs = zip(earlier[place]["examples"], layer["examples"], strict=True) if place in earlier else ()
            values = [value for a, b in pairs if not math.isnan(value := change(a, b))]
            if values:
                found.setdefault(place, []).append(fmean(values))
    return {place: median(values) for place, values in found.items()}


def _shift_of_mean(before: Result, after: Result) -> float:
    change, variance = float(abs(after["mean"] - before["mean"])), float(before["variance"])
    if variance > 0:
        return change / math.sqrt(variance)
    return math.inf if change else math.nan


def _log_ratio(before: Result, after: Result) -> float:
    if before["variance"] > 0 and after["variance"] > 0:
        return abs(math.log(after["variance"] / before["variance"]))
    return math.nan if before["variance"] == after["variance"] else math.inf


def _layers(run: History, result: Result) -> dict[int, Result]:
    """The layers of a result by their numbers; of a norm that is measured twice, as with its noise, the last one."""
    return {layer_number(run, layer["layer"]): layer for layer in result["layers"]}


# ---- Internal covariate shift ----------------------------------------------------------------------------------------


def cosines(run: History, part: Share = WHOLE) -> dict[int, float]:
    """The median cosine of each layer's gradient before and after the layers below are updated."""
    return by_layer(run, "shift", lambda layer: float(layer["cosine"]), part)


def relative_distances(run: History, part: Share = WHOLE) -> dict[int, float]:
    """The median distance of these gradients, over the norm of the first."""
    return by_layer(run, "shift", lambda layer: advantage(layer["distance"], layer["gradient_norm"]), part)


def cosines_above(run: History, other: History, bins: int = 10) -> dict[int, float]:
    """By how much a run's cosines are above another's at equal training loss, layer by layer: median over the bins.

    The bins are of equal width and divide the losses at which both were measured; those that one of them has no
    measurement in are passed over.
    """
    first, second = ([(result["loss"], result) for _, result in results(each, "shift")] for each in (run, other))
    if not first or not second:
        return {}
    low = max(min(loss for loss, _ in each) for each in (first, second))
    high = min(max(loss for loss, _ in each) for each in (first, second))
    if not low < high:
        return {}
    left, right = _binned(run, first, low, high, bins), _binned(other, second, low, high, bins)
    found: dict[int, list[float]] = {}
    for key in left.keys() & right.keys():
        found.setdefault(key[0], []).append(median(left[key]) - median(right[key]))
    return {layer: median(values) for layer, values in found.items()}


def _binned(
    run: History, measured: Iterable[tuple[float, Result]], low: float, high: float, bins: int
) -> dict[tuple[int, int], list[float]]:
    """The cosines by layer and bin of the loss."""
    found: dict[tuple[int, int], list[float]] = {}
    for loss, result in measured:
        if low <= loss <= high:
            number = min(int(bins * (loss - low) / (high - low)), bins - 1)
            for place, layer in _layers(run, result).items():
                if not math.isnan(layer["cosine"]):
                    found.setdefault((place, number), []).append(layer["cosine"])
    return found


# ---- Evaluations -----------------------------------------------------------------------------------------------------


def training_accuracy(run: History) -> list[tuple[int, float]]:
    """Accuracy on training data, in evaluation mode and points, at each evaluation."""
    return [(event.step, 100 * event.train_accuracy) for event in run.evaluated if event.train_accuracy is not None]


def training_loss(run: History) -> list[tuple[int, float]]:
    """Loss on training data in evaluation mode at each evaluation."""
    return [(event.step, event.train_loss) for event in run.evaluated if event.train_loss is not None]


def final_training_loss(run: History) -> float:
    """At the last step; infinite if the run has diverged or has no number there."""
    last = training_loss(run)[-1][1] if not diverged(run) else math.inf
    return last if math.isfinite(last) else math.inf


def steps_to(points: Sequence[tuple[int, float]], level: float) -> float:
    """The step at which an accuracy is reached, on straight lines between evaluations; infinite if it never is."""
    if points and points[0][1] >= level:
        return float(points[0][0])
    for (before, low), (after, high) in pairwise(points):
        if low < level <= high:
            return before + (after - before) * (level - low) / (high - low)
    return math.inf


def value_at(points: Sequence[tuple[int, float]], step: float) -> float:
    """A value at a step, on straight lines between evaluations; before the first and after the last it is theirs."""
    for (before, low), (after, high) in pairwise(points):
        if before <= step <= after:
            return low + (high - low) * (step - before) / (after - before)
    return points[0][1] if step < points[0][0] else points[-1][1]


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf
