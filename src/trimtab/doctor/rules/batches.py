"""Batches: too small for BatchNorm, other in training than in evaluation, or with labels that nothing can learn."""

import math

from trimtab.doctor.cure import Cure
from trimtab.doctor.curves import gain_curve, middle_of, settled
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import Record, Trial
from trimtab.doctor.rules.rates import FEWEST
from trimtab.doctor.trend import trend

FEW_VALUES = 6
"""So few values of a channel, samples times positions, have a mean and a variance that are mostly noise."""
TRANSFER = 0.1
"""The share of what a step gains on its own batch that it gains on another."""
GAP = 1.5
"""In evaluation mode the loss of training data is so many times what it is in training mode."""
GAP_OF_START = 0.02
"""... and larger by this share of the loss at the start, so that tiny losses are no matter."""
NO_BETTER = 0.98
"""A validation loss that has never been below this share of its beginning has not been learned."""
LEARNED = 0.97
"""A training loss below this share of its beginning has been learned: fitted, if not understood."""


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
    late = trials[len(trials) // 2 :]
    if not record.facts.batchnorms or len(trials) < FEWEST:
        return None
    training, evaluated = middle_of(t.loss for t in late), middle_of(t.evaluated for t in late)
    if not evaluated > GAP * training + GAP_OF_START * seen.start:
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


def labels_not_learnable(record: Record) -> Finding | None:
    """Training data are fitted and validation data are not, from the beginning on."""
    seen = trend(record)
    judged = [trial for trial in record.trials if math.isfinite(trial.validation)]
    if len(judged) < FEWEST or seen.broken is not None or seen.leapt:
        return None
    first = judged[0].validation
    lowest = min(trial.validation for trial in judged[1:])
    trials = settled(record)
    own, _ = _mean_gains(trials)
    fitted = seen.recent < LEARNED * seen.start
    if lowest < NO_BETTER * first or not fitted or not own > 0:
        return None
    return Finding(
        name="labels-not-learnable",
        evidence={
            "loss": seen.recent,
            "validation": judged[-1].validation,
            "validation_first": first,
            "gain_elsewhere": max(gain_curve(trials), default=math.nan),
        },
        sentence=f"The training loss has come from {seen.start:.3g} to {seen.recent:.3g}, but that of validation data "
        "has "
        f"never been below its first value, {first:.3g}, and is {judged[-1].validation:.3g} now: what is learned holds "
        "for the training batches only.",
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
