"""Is the learning rate what holds the training back?"""

from collections.abc import Sequence
from statistics import median

from trimtab.doctor.cure import Cure
from trimtab.doctor.curves import (
    best_multiple,
    gain_curve,
    middle_of,
    path_gains,
    same_samples,
    settled,
    unfinished,
)
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import PATH, LayerLook, Record, Trial
from trimtab.doctor.rules.layers import FEW_ROWS, LITTLE_LEFT, MANY_DEAD, beginning, dead_from_the_start, died
from trimtab.doctor.schedule import WAY
from trimtab.doctor.trend import Trend, trend

LINEAR = 0.94
"""A step whose loss decreases by this share of what the gradient promises is short: digits, six networks, SGD, momentum
and Adam: 0.94 to 1.00 at a tenth to a thirtieth of the best rate, 0.1 to 0.91 at the best rate and at a third of it."""
VERY_LINEAR = 0.98
"""On hard data, of which little is learned yet, steps at good rates do up to 0.98 as well, and 2 times the step is
best by chance: then only this much is short, also where the loss does not fall."""
LONGER = 2.0
MUCH_LONGER = 8.0
"""So many times the step must at least be better on another batch: the larger number where steps do less than that.
Where the loss has sharp directions (GroupNorm's start) a single longer step gains less than many would: still larger
thresholds miss rates that are too low by 30."""
SLOW = 0.9
"""A loss above this share of what it was half the training ago goes down slowly or not at all."""
SOME_GAIN = 1e-3
"""What going on along the way of many steps is to lower another batch's loss by, as a share: less may be nothing."""
MISSED = 0.005
"""... and by so much it may raise it in the median, where steps are short: batches differ."""
ALWAYS, MOSTLY = 0.95, 0.75
"""The share of the trials in which it lowers the loss: all of them, or most where to go on twice as far lowers it too,
or where steps are nearly as good as the gradient promises. Of 288 healthy trainings that was so in 1, of 111 that ended
worse at a tenth or a thirtieth of the best rate in 93."""
NEARLY_LINEAR = 0.9
"""The share of what is promised that such steps do."""
HURT = 1.5
"""A leap to this multiple of the first loss that has left many of a layer's outputs dead is still felt: 79 to 85 % of
digits where 97 % are usual. Where no layer was hurt, trainings got over leaps to 4 times the first loss."""
FAR = 2.0
"""A leap to this multiple of the first loss: smaller ones were got over, under BatchNorm also with 100 times the rate
in one layer."""
RAISED = 0.5
"""The share of the tried steps that raised their own batch's loss: more than every second step goes too far."""
THROWN = 0.25
"""A first step that changes weights by so much of their length, in the median of the layers, leaves little of how they
were initialized: 0.02 to 0.15 at good rates, 0.27 at ten times the rate of Adam, with which most trainings end worse.
A schedule that lowers the rate makes up for it: 0.25 to 1.1 were the best of a sweep there."""
THROWN_UNDER_BATCHNORM = 0.5
"""Under BatchNorm the length of weights means less: at 0.24 no training ended worse, at 0.54 and more all did."""
LIKE_ITS_SIGN = ("Adam", "AdamW", "Adamax", "NAdam")
"""Optimizers whose steps hardly depend on the size of the gradient, so that the first one tells of the others."""
FEWEST = 3
"""Trials before a rate is judged by them: one or two differ by chance."""


def learning_rate_too_high(record: Record) -> Finding | None:
    """The loss broke or leapt and stays, or steps raise what they are to lower and shorter ones would not."""
    seen = trend(record)
    if seen.broken is not None:
        return _broken(record, seen)
    flat = not seen.done and seen.recent > SLOW * seen.middle
    if flat and seen.stuck and seen.leapt:
        return _killed(record, seen)
    if not seen.done and seen.peak > HURT * seen.start and dead_from_the_start(record) is None:
        dead = _most_dead(record)
        if dead >= MANY_DEAD:
            return _hurt(seen, dead)
    if flat and (layer := died(record)) is not None:
        return _deadly(seen, layer)
    trials = unfinished(settled(record), seen.start)
    if _thrown(record, seen, trials) >= 1:
        return _rewritten(seen, middle_of(layer.ratio for layer in record.looks[0].layers))
    if not flat or len(trials) < FEWEST:
        return None
    raised = sum(trial.after > trial.loss for trial in trials) / len(trials)
    best, gains = best_multiple(trials), gain_curve(trials)
    whole = gains[trials[0].multiples.index(1.0)]
    if raised > RAISED and best < 1 and max(gains) > max(whole, 0.0):
        return _finding(
            {"raised": raised, "best_multiple": best, "gain_of_step": whole, "gain_of_best": max(gains)},
            f"{100 * raised:.0f} % of the steps that were tried raised the loss of their own batch, and the loss no "
            f"longer falls; {best:g} of such a step lowers another batch's loss by {100 * max(gains):.2g} %, the whole "
            f"step changes it by {-100 * whole:+.2g} %.",
            factor=max(best, 1 / 8),
            certainty=0.9,
            severity=0.8,
        )
    return None


def learning_rate_too_low(record: Record) -> Finding | None:
    """To go on along the way of many steps would lower another batch's loss, and there is much left to be done.

    Of what a step does with its own batch alone, this cannot be seen where the loss has a few sharp directions.
    """
    seen = trend(record)
    trials = [trial for trial in unfinished(settled(record), seen.start) if trial.path]
    gains = path_gains(trials)
    on, further = gains[PATH.index(1.0)], gains[PATH.index(2.0)]
    if seen.done or seen.leapt or len(on) < FEWEST or same_samples(trials) or median(on) < -MISSED:
        return None
    linear, best = middle_of(trial.linearity for trial in trials), best_multiple(trials)
    better = sum(gain > 0 for gain in on) / len(on)
    sure = better >= ALWAYS or (better >= MOSTLY and (median(further) > 0 or linear >= NEARLY_LINEAR))
    goes_on = median(on) >= SOME_GAIN and sure
    if not goes_on and not (better >= 0.5 and _is_short(linear, best) and (seen.falls or linear >= VERY_LINEAR)):
        return None
    medians = [median(each) for each in gains]
    farthest = PATH[max(range(len(PATH)), key=medians.__getitem__)]
    factor = min(10.0, max(3.0, 1 + farthest))
    return Finding(
        name="learning-rate-too-low",
        evidence={
            "better": better,
            "gain": median(on),
            "farthest": farthest,
            "gain_of_farthest": max(medians),
            "linearity": linear,
            "best_multiple": best,
            "loss": seen.recent,
        },
        sentence=f"The way that was gone in {WAY} steps or more, gone once more at once, would have lowered another "
        f"batch's loss in {100 * better:.0f} % of {len(on)} trials, by {100 * median(on):.2g} % in the median: longer "
        f"steps would do; the loss is still {seen.recent:.3g}.",
        advice=f"Multiply the learning rate by {factor:g}.",
        cure=Cure(setting="lr", factor=factor, sentence=f"multiply the learning rate by {factor:g}"),
        certainty=0.9 if goes_on else 0.6,
        severity=0.6 if seen.recent > 0.5 * seen.start else 0.4,
    )


def _is_short(linear: float, best: float) -> bool:
    """Whether steps do so much of what is promised, and longer ones so much more, that a step is short."""
    return (linear >= LINEAR and best >= MUCH_LONGER) or (linear >= VERY_LINEAR and best >= LONGER)


def _most_dead(record: Record) -> float:
    """The largest share of dead outputs of a layer."""
    if not record.looks:
        return 0.0
    return max((layer.dead for layer in record.looks[-1].layers if layer.rows >= FEW_ROWS), default=0.0)


def _broken(record: Record, seen: Trend) -> Finding:
    return _finding(
        {"broken_at": float(seen.broken or 0), "start": seen.start},
        f"The loss stopped being a number at step {seen.broken}; it began at {seen.start:.3g}.",
        factor=0.1,
        certainty=0.6,
        severity=1.0,
    )


def _killed(record: Record, seen: Trend) -> Finding:
    return _finding(
        {"peak": seen.peak, "start": seen.start, "loss": seen.recent},
        f"The loss leapt from {seen.start:.3g} to {seen.peak:.3g} and stays at {seen.recent:.3g}, where a network is "
        "that has learned nothing.",
        factor=0.1,
        certainty=0.7,
        severity=1.0,
    )


def _hurt(seen: Trend, dead: float) -> Finding:
    return _finding(
        {"peak": seen.peak, "start": seen.start, "loss": seen.recent, "dead": dead},
        f"The loss leapt from {seen.start:.3g} to {seen.peak:.3g} and is {seen.recent:.3g} now; {100 * dead:.0f} % of "
        "a "
        "layer's outputs have been dead since.",
        factor=0.3,
        certainty=0.6,
        severity=0.6,
    )


def _deadly(seen: Trend, layer: LayerLook) -> Finding:
    return _finding(
        {"dead": layer.dead, "start": seen.start, "peak": seen.peak, "loss": seen.recent},
        f"{100 * layer.dead:.0f} % of the outputs of {layer.layer} are dead that were not at the first step: too long "
        f"steps took them where they have no gradient; the loss stays at {seen.recent:.3g}.",
        factor=0.1,
        certainty=0.6,
        severity=0.8,
    )


def _thrown(record: Record, seen: Trend, trials: Sequence[Trial]) -> float:
    """How far the first step went if that says something, in units of what is too far; 0 if it does not.

    It does where steps stay as long, or where the loss leapt after it; not where the loss is done, or the rate comes
    down by a schedule, or longer steps would help.
    """
    first = beginning(record)
    if first is None or seen.recent < LITTLE_LEFT * seen.start or record.looks[-1].lr < 0.95 * first.lr:
        return 0.0
    if len(trials) >= FEWEST and best_multiple(trials) > LONGER:
        return 0.0
    if record.facts.optimizer not in LIKE_ITS_SIGN and not (seen.leapt and seen.peak > FAR * seen.start):
        return 0.0
    too_far = THROWN_UNDER_BATCHNORM if record.facts.batchnorms else THROWN
    return middle_of(layer.ratio for layer in first.layers) / too_far


def _rewritten(seen: Trend, share: float) -> Finding:
    return _finding(
        {"first_step": share, "start": seen.start, "loss": seen.recent},
        f"The first step was {share:.2g} times as long as the weights, in the median of the layers, so that little is "
        f"left of how they were initialized; the loss is {seen.recent:.3g}.",
        factor=0.1,
        certainty=0.6,
        severity=0.6,
    )


def _finding(evidence: dict[str, float], sentence: str, *, factor: float, certainty: float, severity: float) -> Finding:
    words = f"divide the learning rate by {1 / factor:.3g}"
    return Finding(
        name="learning-rate-too-high",
        evidence=evidence,
        sentence=sentence,
        advice=f"{words[0].upper()}{words[1:]}, and begin anew if the network no longer learns.",
        cure=Cure(setting="lr", factor=factor, sentence=words),
        certainty=certainty,
        severity=severity,
    )
