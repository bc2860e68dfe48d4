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

FEW_VALUES = 3
"""So few values of a channel leave hardly anything of how far apart they are: of 2 BatchNorm makes +1 and -1. With 2
all trainings of dense networks ended worse than with GroupNorm, with 4 none, nor did most convolutions with 8."""
GAP = 1.4
"""In evaluation mode the loss of training data is so many times what it is in training mode, in the mean of the trials
after the first quarter: 1.1 at most in healthy trainings, in which both are nearly the same."""
STILL = 1.15
"""... and so many times in the last one: running statistics that lagged behind may have arrived."""
FORGOTTEN = 0.4
"""... or so much of what the loss has come down by is lost in evaluation mode, and half as much in the last one: where
little is learned, losses in both modes are alike."""
LOST_OF_START = 0.03
GAP_OF_START = 0.01
"""... and larger by this share of the loss at the start, so that tiny losses are no matter."""
NO_BETTER = 0.98
"""A validation loss that has never been below this share of its beginning has not been learned."""
LEARNED = 0.97
"""A training loss below this share of its beginning has been learned: fitted, if not understood."""
HARDLY_BETTER = 0.92
"""With four of five labels random, validation loss came to 0.91 to 0.99 of its beginning at best; with half of them to
0.7; where labels are right and inputs in [0, 1], to 0.90 within 10,000 samples of CIFAR-10."""
IN_VAIN = 0.05
"""What validation loss has come down by, over what all steps have taken off their own batches' losses together: up to
0.03 with four of five labels random or all, 0.2 to 0.6 where the rate is too low to have come down."""
FITTED = 5e-4
"""A step takes at least this share of the first loss off that of its own batch: less where nothing is fitted at all,
since signals are lost on the way."""
ENOUGH = 4096
"""So many samples a training has seen before it is judged by what it has learned of them, and it has had more than
`FEWEST` trials: what can be learned of hard data had not begun after 3500 samples, or in batches of 2 to 8."""
SILENT = 0.98
"""Through a layer with so many dead outputs nothing of the labels comes."""
BURST = 2.0
"""A loss that went up to this multiple of its beginning is another matter."""


def batchnorm_batch_too_small(record: Record) -> Finding | None:
    """A layer normalizes by two or three values, which leaves hardly more of them than their signs."""
    seen = trend(record)
    layers = record.facts.batchnorms
    if not layers or seen.done or len(record.looks) < FEWEST:
        return None
    values = {
        name: middle_of(norm.values for look in record.looks for norm in look.norms if norm.layer == name)
        for name in layers
    }
    noisy = {name: count for name, count in values.items() if count <= FEW_VALUES}
    if not noisy:
        return None
    layer = min(noisy, key=noisy.__getitem__)
    apart = middle_of(norm.ratio for look in record.looks for norm in look.norms if norm.layer == layer)
    return Finding(
        name="batchnorm-batch-too-small",
        layer=layer,
        evidence={"values": noisy[layer], "variance_ratio": apart, "batch_size": record.facts.batch_size},
        sentence=f"It normalizes each channel by {noisy[layer]:g} values, which leaves hardly more than their signs "
        f"(their variance is {apart:.2g} of the running one, in the median), and the loss is {seen.recent:.3g}.",
        advice="Take batches of 16 or more, GroupNorm or LayerNorm in place of BatchNorm, or no norm and trimtab.BNP.",
        cure=Cure(setting="norm", value="ln", sentence="replace BatchNorm by a norm that does not use the batch"),
        certainty=0.9,
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
    return lost >= FORGOTTEN * learned and lost >= LOST_OF_START * seen.start and still


def labels_not_learnable(record: Record) -> Finding | None:
    """Training data are fitted and validation data are not, from the beginning on."""
    seen = trend(record)
    judged = [trial for trial in record.trials if math.isfinite(trial.validation)]
    if len(judged) < FEWEST or seen.broken is not None or seen.peak > BURST * seen.start:
        return None
    trials = settled(record)
    if len(record.losses) * record.facts.batch_size < ENOUGH or len(trials) <= FEWEST or same_samples(trials):
        return None
    if any(layer.dead >= SILENT for look in record.looks[-1:] for layer in look.layers):
        return None
    first = judged[0].validation
    lowest = min(trial.validation for trial in judged[1:])
    own = _own_gain(trials)
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


def _own_gain(trials: list[Trial]) -> float:
    """What a step gains on its own batch, in the mean over the trials that stay finite; NaN if there is none."""
    gains = [
        trial.loss - trial.after
        for trial in trials
        if math.isfinite(trial.after) and math.isfinite(trial.others[trial.multiples.index(1.0)])
    ]
    return fmean(gains) if gains else math.nan
