"""Which learning rates explode, slice by slice, and the largest ones that mean field predicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trimtab.claims.experiments.registry import Context
from trimtab.data import load
from trimtab.records import Restart

STEP = 0.125
"""Between two learning rates of a slice, in decades."""
FURTHER, WIDENINGS = 4, 4
"""So many rates are added where the boundary is not within a slice, and so often."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Networks that differ in learning rate and seed.

    Attributes:
        value: Of the setting that slices differ in.
        cells: By rate, rising: how each restart has ended.
        predicted: η* by theory: `paper` as printed, `exact`, and with BatchNorm `train`.
    """

    value: float
    cells: Mapping[float, tuple[Restart, ...]]
    predicted: Mapping[str, float]

    @property
    def boundary(self) -> float | None:
        """η_c: the smallest rate at which a restart explodes; None if none does."""
        return next((rate for rate, restarts in self.cells.items() if exploded(restarts)), None)

    @property
    def monotone(self) -> bool:
        """Whether no rate at which all restarts stay finite is above one at which a restart explodes."""
        states = [exploded(restarts) for restarts in self.cells.values()]
        return states == sorted(states)

    @property
    def best(self) -> tuple[float, tuple[Restart, ...]] | None:
        """The rate with the lowest mean test loss, and its restarts; None if a restart explodes at every rate."""
        finite = {rate: restarts for rate, restarts in self.cells.items() if not exploded(restarts)}
        if not finite:
            return None
        best = min(finite, key=lambda rate: mean_loss(finite[rate]))
        return best, finite[best]

    def lowest_loss(self, seed: int) -> float:
        """The lowest test loss of the restarts with a seed; infinite if all of them explode."""
        losses = [one.loss for restarts in self.cells.values() for one in restarts if one.seed == seed]
        return min((loss for loss in losses if loss is not None), default=math.inf)


def exploded(restarts: Sequence[Restart]) -> bool:
    """Whether any of them has exploded."""
    return any(one.state == "exploded" for one in restarts)


def mean_loss(restarts: Sequence[Restart]) -> float:
    """The mean test loss; infinite if one has exploded."""
    return fmean(math.inf if one.loss is None else one.loss for one in restarts)


def explore(
    context: Context,
    given: Mapping[str, Any],
    setting: str,
    value: float,
    *,
    rates: int,
    restarts: int,
    step: float = STEP,
    widen: bool = True,
) -> Slice:
    """Train networks at learning rates around η*, and at more of them until the boundary is among these.

    The rates are those of a lattice that all slices share, so that they can be compared. They begin around the η* that
    has the gradient through the batch's statistics, as training has it, or the exact one without BatchNorm: for
    convolutions the printed one is off by orders of magnitude. The verdicts are about the printed one
    all the same.

    Args:
        context: Of the experiment.
        given: Settings of all networks.
        setting: What slices differ in.
        value: Its value here.
        rates: How many learning rates at first.
        restarts: Networks at each of them.
        step: Between two rates, in decades.
        widen: Whether to look for the boundary beyond the first rates.
    """
    predicted = predictions(context, {**given, setting: value})
    middle = round(math.log10(predicted.get("train", predicted["exact"])) / step)
    wanted = list(range(middle - rates // 2, middle - rates // 2 + rates))
    cells: dict[int, tuple[Restart, ...]] = {}
    for widening in range(1 + WIDENINGS):
        found = _train(context, given, setting, value, wanted, step, restarts)
        cells |= dict(zip(wanted, found, strict=True))
        states = [exploded(cells[number]) for number in sorted(cells)]
        if not widen or widening == WIDENINGS or (any(states) and not states[0]):
            break
        first = min(cells) - FURTHER if states[0] else max(cells) + 1
        wanted = list(range(first, first + FURTHER))
        context.show(f"{setting} {value:g}: the boundary is {'below' if states[0] else 'above'}")
    return Slice(value, {_rate(number, step): cells[number] for number in sorted(cells)}, predicted)


def predictions(context: Context, given: Mapping[str, Any]) -> dict[str, float]:
    """η* by theory for a network of the registry: for ½‖f − y‖², one output and white inputs, as the paper has it."""
    from trimtab.theory.from_model.prediction import mean_field_prediction, paper_lambda_max
    from trimtab.theory.mean_field import max_learning_rate
    from trimtab.training.recipes import resolve
    from trimtab.training.settings import Settings, resolved
    from trimtab.training.sweep.plan import example_network

    settings = resolve(Settings(**given))
    dataset = load(settings.data, context.data_root)
    model, shape = example_network(settings, dataset), dataset.input_shape
    values = {
        "paper": paper_lambda_max(model, shape),
        "exact": mean_field_prediction(model, shape, statistics="frozen").lambda_max,
    }
    if settings.parsed_method.norm != "none":
        values["train"] = mean_field_prediction(model, shape, statistics="batch").lambda_max
    return {name: max_learning_rate(value, resolved(settings.momentum)) for name, value in values.items()}


def _rate(number: int, step: float) -> float:
    return float(f"{10 ** (number * step):.6g}")


def _train(
    context: Context,
    given: Mapping[str, Any],
    setting: str,
    value: float,
    numbers: Sequence[int],
    step: float,
    restarts: int,
) -> list[tuple[Restart, ...]]:
    """How the networks at some rates of the lattice end; what was trained before is found again."""
    from trimtab.training.sweep.axes import Axis
    from trimtab.training.sweep.plan import Grid
    from trimtab.training.sweep.runner import SweepRunner

    axes = Axis("lr", tuple(_rate(number, step) for number in numbers)), Axis(setting, (value,))
    grid = Grid({**given, "seed": context.seeds(1)[0]}, axes, len(context.seeds(restarts)))
    name = "-".join([*_words(given), f"{setting}{value:g}", f"{step:g}x{numbers[0]}", f"{len(numbers)}x{restarts}"])
    sweep = SweepRunner(
        grid,
        context.work / name,
        command=context.command,
        device=context.device,
        data_root=context.data_root,
        workers=context.engine,
        jobs=context.jobs,
        predict=False,
    ).run()
    context.show(name)
    return [cell.restarts for cell in sweep.cells]


def _words(given: Mapping[str, Any]) -> list[str]:
    """What tells sweeps of an experiment apart."""
    names = ("network", "method", "loss", "momentum", "steps", "epochs")
    return [
        str(given[name]) if isinstance(given[name], str) else f"{name}{given[name]:g}"
        for name in names
        if name in given
    ]
