"""Batches: too small for BatchNorm, other in training than in evaluation, or with labels that nothing can learn."""

import math
from collections.abc import Sequence
from math import ceil
from statistics import fmean

from trimtab.doctor.cure import Cure
from trimtab.doctor.curves import gain_curve, middle_of, same_samples, settled
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import Record, Trial
from trimtab.doctor.rules.rates import FEWEST
from trimtab.doctor.trend import Trend, trend

FEW_VALUES = 6
"""So few values of a channel, samples times positions, have a mean and a variance that are mostly noise."""
TRANSFER = 0.2
"""The share of what a step gains on its own batch that it gains on another."""
GAP = 1.4
"""In evaluation mode the loss of training data is so many times what it is in training mode, in the mean of the trials
after the first quarter: 1.1 at most in healthy trainings, in which both are nearly the same."""
STILL = 1.15
"""... and so many times in the last one: running statistics that lagged behind may have arrived."""
FORGOTTEN = 0.4
"""... or so much of what the loss has come down by is lost in evaluation mode, and half as much in the last one: where
little is learned, losses in both modes are alike."""
GAP_OF_START = 0.01
"""... and larger by this share of the loss at the start, so that tiny losses are no matter."""
NO_BETTER = 0.98
"""A validation loss that has never been below this share of its beginning has not been learned."""
LEARNED = 0.97
"""A training loss below this share of its beginning has been learned: fitted, if not understood."""
HARDLY_BETTER = 0.94
"""With four of five labels random, validation loss came to 0.96 of its beginning at best; with half of them to 0.7."""
IN_VAIN = 0.05
"""What validation loss has come down by, over what all steps have taken off their own batches' losses together: up to
0.03 with four of five labels random or all, 0.2 to 0.6 where the rate is too low to have come down."""
FITTED = 5e-4
"""A step takes at least this share of the first loss off that of its own batch: less where nothing is fitted at all,
since signals are lost on the way."""
ENOUGH = 4096
"""Samples that a training has seen before it is judged by what it has learned of them."""
BURST = 2.0
"""A loss that went up to this multiple of its beginning is another matter."""


def batchnorm_batch_too_small(record: Record) -> Finding | None:
    """A layer normalizes by so few values that a step for one batch does little for another."""
    seen = trend(record)
    layers = record.facts.batchnorms
    trials = settled(record)
    if not layers or seen.done or len(trials) < FEWEST:
        return None
    values = {
        name: middle_of(norm.values for look in record.looks for norm in look.norms if norm.layer == name)
        for name in layers
    }
    noisy = {name: count for name, count in values.items() if count <= FEW_VALUES}
    own, other = _mean_gains(trials)
    if not noisy or not own > 0 or other > TRANSFER * own:
        return None
    layer = min(noisy, key=noisy.__getitem__)
    return Finding(
        name="batchnorm-batch-too-small",
        layer=layer,
        evidence={"values": noisy[layer], "own_gain": own, "other_gain": other, "batch_size": record.facts.batch_size},
        sentence=f"It normalizes each channel by {noisy[layer]:g} values, and a step that lowers "
        f"its own batch's loss by {own:.2g} changes another batch's by {-other:+.2g}.",
        advice="Take batches of 16 or more, GroupNorm or LayerNorm in place of BatchNorm, or no norm and trimtab.BNP.",
        cure=Cure(setting="norm", value="ln", sentence="replace BatchNorm by a norm that does not use the batch"),
        certainty=0.6,
        severity=0.9 if seen.stuck else 0.6,
    )


def train_eval_gap(record: Record) -> Finding | None:
    """The same training data have a much larger loss in evaluation mode, where running statistics are used."""
    trials = settled(record)
    seen = trend(record)
    late = [trial for trial in trials[ceil(len(trials) / 4) :] if math.isfinite(trial.evaluated)]
    if not record.facts.batchnorms or len(trials) < FEWEST or not late:
        return None
    training, evaluated = fmean(trial.loss for trial in late), fmean(trial.evaluated for trial in late)
    apart = evaluated > GAP * training and late[-1].evaluated >= STILL * late[-1].loss
    if not evaluated > training + GAP_OF_START * seen.start or not (apart or _forgotten(late, seen)):
        return None
    shifts = {
        name: middle_of(norm.shift for look in record.looks[-FEWEST:] for norm in look.norms if norm.layer == name)
        for name in record.facts.batchnorms
    }
    layer = max(shifts, key=lambda name: shifts[name] if shifts[name] >= 0 else -1.0)
    return Finding(
        name="train-eval-gap",
        layer=layer,
        evidence={"training": training, "evaluated": evaluated, "shift": shifts[layer]},
        sentence=f"In evaluation mode, with running statistics, the loss of training batches is {evaluated:.3g}, in "
        f"training mode {training:.3g}; farthest from its batches is the running mean of {layer}.",
        advice="Give BatchNorm's running statistics a momentum of 0.1 or more, or compute them anew before evaluation; "
        "with batches below 16 replace BatchNorm.",
        cure=Cure(
            setting="statistics", factor=0.1, sentence="set the momentum of BatchNorm's running statistics to 0.1"
        ),
        certainty=0.9,
        severity=0.7,
    )


def _forgotten(trials: Sequence[Trial], seen: Trend) -> bool:
    """Whether much of what was learned is not there in evaluation mode, in the mean of the trials and in the last."""
    learned = fmean(seen.start - trial.loss for trial in trials)
    lost = fmean(trial.evaluated - trial.loss for trial in trials)
    last = trials[-1]
    still = last.evaluated - last.loss >= FORGOTTEN / 2 * (seen.start - last.loss)
    return lost >= FORGOTTEN * learned and lost >= 0.03 * seen.start and still


def labels_not_learnable(record: Record) -> Finding | None:
    """Training data are fitted and validation data are not, from the beginning on."""
    seen = trend(record)
    judged = [trial for trial in record.trials if math.isfinite(trial.validation)]
    if len(judged) < FEWEST or seen.broken is not None or seen.peak > BURST * seen.start:
        return None
    if (
        len(record.losses) * record.facts.batch_size < ENOUGH
        or len(settled(record)) < 4
        or same_samples(settled(record))
    ):
        return None
    if any(layer.dead >= 0.98 for layer in record.looks[-1].layers):
        return None
    first = judged[0].validation
    lowest = min(trial.validation for trial in judged[1:])
    trials = settled(record)
    own, _ = _mean_gains(trials)
    unlearned = lowest >= NO_BETTER * first and seen.recent < LEARNED * seen.start and not seen.leapt and own > 0
    in_vain = lowest >= HARDLY_BETTER * first and own >= FITTED * seen.start
    if not unlearned and not (in_vain and first - lowest <= IN_VAIN * own * len(record.losses)):
        return None
    return Finding(
        name="labels-not-learnable",
        evidence={
            "loss": seen.recent,
            "validation": judged[-1].validation,
            "validation_first": first,
            "validation_lowest": lowest,
            "own_gain": own,
            "gain_elsewhere": max(gain_curve(trials), default=math.nan),
        },
        sentence=f"Each step takes {own:.2g} off the loss of its own batch, and the training loss has come from "
        f"{seen.start:.3g} to {seen.recent:.3g}; but that of validation data was {first:.3g} at first, never below "
        f"{lowest:.3g}, and is {judged[-1].validation:.3g} now: what is learned holds for the training batches only.",
        advice="Look at the labels: whether they are in the order of the inputs, and training and validation data "
        "alike.",
        cure=Cure(setting="labels", value="check", sentence="look at the labels of some samples"),
        certainty=0.9,
        severity=0.9,
    )


def _mean_gains(trials: list[Trial]) -> tuple[float, float]:
    """What a step gains on its own batch and on another, in the mean over trials."""
    finite = [
        (trial.loss - trial.after, trial.other - trial.others[trial.multiples.index(1.0)])
        for trial in trials
        if math.isfinite(trial.after) and math.isfinite(trial.others[trial.multiples.index(1.0)])
    ]
    if not finite:
        return math.nan, math.nan
    return sum(own for own, _ in finite) / len(finite), sum(other for _, other in finite) / len(finite)
