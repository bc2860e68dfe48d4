"""Is the learning rate what holds the training back?"""

from collections.abc import Sequence

from trimtab.doctor.cure import Cure
from trimtab.doctor.curves import best_multiple, gain_curve, middle_of, settled, unfinished
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import LayerLook, Record, Trial
from trimtab.doctor.rules.layers import FEW_ROWS, LITTLE_LEFT, beginning, dead_from_the_start, died
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
SOME_GAIN = 3e-4
"""What the best multiple of a step is to lower another batch's loss by, in its units, where the loss itself does not
show yet that it falls, unless the longest step that is tried is the best: 1e-3 and more at a 300th of the best rate,
below 2e-4 where signals are lost on the way."""
MOSTLY_DEAD = 0.5
"""A layer with so many dead outputs is another reason for a loss that does not fall. (97 % of digits are learned with
90 % of a layer dead at a tuned rate, so that this is no finding by itself.)"""
HURT = 1.5
"""A leap to this multiple of the first loss that has left half of a layer dead is still felt: 79 to 85 % of digits
where 97 % are usual. Where no layer was hurt, trainings got over leaps to 4 times the first loss."""
RAISED = 0.5
"""The share of the tried steps that raised their own batch's loss: more than every second step goes too far."""
THROWN = 0.25
"""A first step that changes weights by so much of their length, in the median of the layers, leaves little of how they
were initialized: 0.02 to 0.15 at good rates, 0.27 at ten times the rate of Adam, with which most trainings end worse.
Under BatchNorm the length of weights means nothing, and long first steps do no harm."""
SAME = 1e-5
"""Two losses that differ by less, as shares, are of the same samples: all are in each batch, and there is no other one
to judge a longer step by. Along a narrow valley each single one would gain, and many would not."""
HIGH = 0.8
"""Of such a training only a loss above this share of its beginning is slow."""
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
        if dead >= MOSTLY_DEAD:
            return _hurt(seen, dead)
    if flat and (layer := died(record)) is not None:
        return _deadly(seen, layer)
    trials = unfinished(settled(record), seen.start)
    if (share := _thrown(record, seen, trials)) >= THROWN:
        return _rewritten(seen, share)
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
    """Steps do what the gradient promises, longer ones would do more, and there is much left to be done."""
    seen = trend(record)
    trials = unfinished(settled(record), seen.start)
    if seen.done or seen.leapt or len(trials) < FEWEST:
        return None
    linear, best = middle_of(trial.linearity for trial in trials), best_multiple(trials)
    gains = gain_curve(trials)
    moving = seen.falls or (
        linear >= VERY_LINEAR and _barely_moves(record, best == trials[0].multiples[-1] or max(gains) >= SOME_GAIN)
    )
    if not _is_short(linear, best) or not moving or (_same_samples(trials) and seen.recent < HIGH * seen.start):
        return None
    index = trials[0].multiples.index(best)
    return Finding(
        name="learning-rate-too-low",
        evidence={
            "linearity": linear,
            "best_multiple": best,
            "gain_of_step": gains[trials[0].multiples.index(1.0)],
            "gain_of_best": gains[index],
            "loss": seen.recent,
        },
        sentence=f"A step lowers its batch's loss by {100 * linear:.0f} % of what the gradient promises, so it is "
        "short; "
        f"{best:g} times the step would lower another batch's loss most, and the loss is still {seen.recent:.3g}.",
        advice=f"Multiply the learning rate by {_factor(best):g}.",
        cure=Cure(setting="lr", factor=_factor(best), sentence=f"multiply the learning rate by {_factor(best):g}"),
        certainty=0.9 if best >= 8 else 0.6,
        severity=0.6 if seen.recent > 0.5 * seen.start else 0.4,
    )


def _is_short(linear: float, best: float) -> bool:
    """Whether steps do so much of what is promised, and longer ones so much more, that a step is short."""
    return (linear >= LINEAR and best >= MUCH_LONGER) or (linear >= VERY_LINEAR and best >= LONGER)


def _same_samples(trials: Sequence[Trial]) -> bool:
    pairs = [(trial.loss, trial.other) for trial in trials]
    pairs += [(trial.after, trial.others[trial.multiples.index(1.0)]) for trial in trials]
    return all(abs(own - other) <= SAME * abs(own) for own, other in pairs)


def _barely_moves(record: Record, better: bool) -> bool:
    """Whether a loss that does not fall would with longer steps, and no layer has died."""
    return better and (_most_dead(record) < MOSTLY_DEAD or dead_from_the_start(record) is not None)


def _most_dead(record: Record) -> float:
    """The largest share of dead outputs of a layer."""
    if not record.looks:
        return 0.0
    return max((layer.dead for layer in record.looks[-1].layers if layer.rows >= FEW_ROWS), default=0.0)


def _factor(best: float) -> float:
    """The step that is best alone is too long for every step: half of it, and at least 3, at most 10 at a time."""
    return min(10.0, max(3.0, best / 2))


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
    """How far the first step went, where the loss is not done; 0 where it is, or where longer steps would help."""
    first = beginning(record)
    if first is None or record.facts.batchnorms or seen.recent < LITTLE_LEFT * seen.start:
        return 0.0
    if len(trials) >= FEWEST and best_multiple(trials) > LONGER:
        return 0.0
    return middle_of(layer.ratio for layer in first.layers)


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
    words = f"divide the learning rate by {1 / factor:g}"
    return Finding(
        name="learning-rate-too-high",
        evidence=evidence,
        sentence=sentence,
        advice=f"{words[0].upper()}{words[1:]}, and begin anew if the network no longer learns.",
        cure=Cure(setting="lr", factor=factor, sentence=words),
        certainty=certainty,
        severity=severity,
    )
