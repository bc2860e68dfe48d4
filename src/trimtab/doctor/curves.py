"""What the trials of a training say together."""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from trimtab.doctor.record import PATH, Record, Trial
from trimtab.doctor.trend import DONE

SETTLED = 16
"""Trials from this step on count: the first steps of a random network are not like those that follow."""
AT_PEAK = 0.5
"""Trials at less than this share of the largest rate so far do not: in a warm-up or at the end of a schedule the rate
is low on purpose."""

SAME = 1e-5
"""Two losses that differ by less, as shares, are of the same samples."""


def settled(record: Record) -> list[Trial]:
    """The trials that tell what the learning rate does: at the rate's peak, after the first steps."""
    highest = max((trial.lr for trial in record.trials), default=0.0)
    return [trial for trial in record.trials if trial.step >= SETTLED and trial.lr >= AT_PEAK * highest]


def unfinished(trials: Sequence[Trial], start: float) -> list[Trial]:
    """Those at which there was something to be gained yet."""
    return [trial for trial in trials if trial.loss > DONE * start]


def gain_curve(trials: Sequence[Trial]) -> list[float]:
    """For each multiple of the step, the median over trials of the relative decrease of another batch's loss."""
    if not trials:
        return []
    return [
        median([_relative(trial.other, trial.others[index]) for trial in trials])
        for index in range(len(trials[0].multiples))
    ]


def path_gains(trials: Sequence[Trial]) -> list[list[float]]:
    """For each multiple of `PATH` the relative decreases of another batch's loss there, for trials that have them."""
    return [
        [_relative(trial.others[trial.multiples.index(1.0)], trial.path[index]) for trial in trials]
        for index in range(len(PATH))
    ]


def same_samples(trials: Sequence[Trial]) -> bool:
    """Whether all samples are in each batch, so that there is no other one to judge a step by."""
    pairs = [(trial.loss, trial.other) for trial in trials]
    pairs += [(trial.after, trial.others[trial.multiples.index(1.0)]) for trial in trials]
    return bool(pairs) and all(abs(own - other) <= SAME * abs(own) for own, other in pairs)


def best_multiple(trials: Sequence[Trial]) -> float:
    """The multiple of the step at which another batch gains most; NaN without trials."""
    gains = gain_curve(trials)
    if not gains:
        return math.nan
    return trials[0].multiples[max(range(len(gains)), key=gains.__getitem__)]


def middle_of(values: Iterable[float]) -> float:
    """The median of those that are numbers; NaN if none is."""
    finite = [value for value in values if not math.isnan(value)]
    return median(finite) if finite else math.nan


def _relative(before: float, after: float) -> float:
    """The decrease in units of the loss before; a loss that is not finite is an infinite increase."""
    return (before - after) / max(abs(before), 1e-12) if math.isfinite(after) else -math.inf
