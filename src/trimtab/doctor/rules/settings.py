"""Inputs, weight decay and precision: settings of a training that are not its learning rate."""

import math
from statistics import median

from trimtab.doctor.cure import Cure
from trimtab.doctor.curves import middle_of, settled
from trimtab.doctor.finding import Finding
from trimtab.doctor.record import InputLook, Record
from trimtab.doctor.rules.rates import FEWEST, SLOW
from trimtab.doctor.trend import trend

LARGE_INPUTS = 5.0
SMALL_INPUTS = 0.15
OFFSET = 4.0
"""Root mean square and offset of inputs that are far from mean 0 and variance 1; [0, 1] images have 0.3 to 0.6 and 1 to
2. Not a finding by themselves: only where the training does not do well."""
SLOW_FOR_INPUTS = 0.02
"""A loss above this share of its beginning is not done yet."""
UNDONE = 0.008
"""The share of what the gradient's step promises that decay takes back: 0.01 to 0.13 where decay held the loss up,
0.002 where it did not."""
MUCH_UNDONE = 0.05
"""So much of it, with one of the other two signs: a loss that stands still, or falls where weights grow."""
GAINED = 0.1
"""With all weights a tenth larger the loss would be lower by this share."""
FORGETS = 0.003
"""The share of each weight that decay takes away in a step: what was learned is forgotten in some hundred steps. Usual
are 1e-6 (AdamW) to 1e-4 (SGD); with one of the other signs."""
SCALED_DECAY = ("Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta")
"""Optimizers that take decay for a part of the gradient and scale it: the product of rate and decay says little."""
COLLAPSED = 0.1
"""Weights that have shrunk to this share of their beginning, in the median of the layers."""
LOST_GRADIENT = 0.1
"""The share of gradient entries that are 0 in the training, and not if the loss is scaled up."""
SOME_ZEROS = 0.04
"""... where the median layer has this share of zeros along the training: 0.005 where gradients are not small."""
LIGHT_ZEROS = 0.5
"""The share of zeros in the median layer at which level light, which cannot scale the loss, speaks."""


def inputs_badly_scaled(record: Record) -> Finding | None:
    """The network's inputs are far from mean 0 and variance 1, and the training does badly."""
    seen = trend(record)
    looks = [entry for look in record.looks for entry in look.inputs]
    badly = seen.broken is not None or seen.recent > SLOW_FOR_INPUTS * min(seen.start, seen.peak)
    if not looks or not badly:
        return None
    first = looks[0]
    if not (first.rms >= LARGE_INPUTS or first.rms <= SMALL_INPUTS or first.offset >= OFFSET):
        return None
    return Finding(
        name="inputs-badly-scaled",
        layer=first.layer,
        evidence={"rms": first.rms, "offset": first.offset, "smallest": first.smallest, "largest": first.largest},
        sentence=f"Its inputs are {_described(first)}, where mean 0 and variance 1 suit the usual initialization, and "
        + (f"the loss broke at step {seen.broken}." if seen.broken is not None else f"the loss is {seen.recent:.3g}."),
        advice="Subtract the mean of the training data from the inputs and divide them by the standard deviation, "
        "channel "
        "by channel.",
        cure=Cure(setting="inputs", value="standardize", layer=first.layer, sentence="standardize the inputs"),
        certainty=0.7,
        severity=1.0 if seen.broken is not None or seen.stuck else 0.7,
    )


def decay_too_strong(record: Record) -> Finding | None:
    """Weight decay takes back what the gradient gains, and the loss stands still above where it could be."""
    decay, seen = record.facts.weight_decay, trend(record)
    if not decay or seen.done:
        return None
    flat = seen.recent > SLOW * seen.middle
    collapsed = _shrunk(record)
    late = settled(record)[-max(FEWEST, len(record.trials) // 2) :]
    undone = middle_of(trial.undone for trial in late)
    grown = middle_of((trial.other - trial.grown) / max(trial.other, 1e-12) for trial in late)
    rate = max((look.lr for look in record.looks), default=0.0)
    forgets = decay * rate if record.facts.optimizer not in SCALED_DECAY else math.nan
    if collapsed <= COLLAPSED and seen.stuck:
        sentence = (
            f"The weights have shrunk to {100 * collapsed:.2g} % of what they were, and the loss is {seen.recent:.3g}"
        )
    elif (undone >= MUCH_UNDONE) + (undone >= UNDONE and grown >= GAINED) + flat + (forgets >= FORGETS) >= 2:
        sentence = (
            f"Decay{_a_step(forgets)} takes back {100 * undone:.2g} % of what a step promises, the loss is "
            f"{seen.recent:.3g}, and with weights a tenth larger another batch's loss would change by "
            f"{-100 * grown:+.2g} %"
        )
    else:
        return None
    return Finding(
        name="decay-too-strong",
        evidence={
            "weight_decay": decay,
            "a_step": forgets,
            "undone": undone,
            "gain_of_growth": grown,
            "shrunk": collapsed,
        },
        sentence=f"{sentence}.",
        advice=f"Divide the weight decay, {decay:g}, by 10.",
        cure=Cure(setting="weight_decay", factor=0.1, sentence="divide the weight decay by 10"),
        certainty=0.9 if math.isfinite(grown) else 0.6,
        severity=1.0 if seen.stuck else 0.6,
    )


def precision_underflow(record: Record) -> Finding | None:
    """Gradients are lost below the smallest number of half precision."""
    if not any(look.half for look in record.looks):
        return None
    zeros = middle_of(median(layer.zeros for layer in look.layers) for look in record.looks if look.layers)
    lost = middle_of(trial.underflow for trial in record.trials)
    if record.trials and not (lost >= LOST_GRADIENT and zeros >= SOME_ZEROS):
        return None
    if not record.trials and not zeros >= LIGHT_ZEROS:
        return None
    measured = math.isfinite(lost)
    return Finding(
        name="precision-underflow",
        evidence={"zeros": zeros, "lost": lost},
        sentence=f"{100 * zeros:.0f} % of the entries of a layer's gradient are exactly 0"
        + (
            f", and {100 * lost:.0f} % would not be if the loss were scaled up first."
            if measured
            else " in half precision."
        ),
        advice="Scale the loss (torch.amp.GradScaler), or compute in bfloat16, whose smallest number is that of "
        "float32.",
        cure=Cure(setting="precision", value="bfloat16", sentence="compute in bfloat16 instead of float16"),
        certainty=0.9 if measured else 0.3,
        severity=0.8,
    )


def _a_step(forgets: float) -> str:
    return f" takes {100 * forgets:.2g} % off each weight in a step, and" if forgets >= FORGETS else ""


def _described(look: InputLook) -> str:
    parts = [f"{look.rms:.2g} in root mean square"]
    if look.offset >= OFFSET:
        parts.append(f"{look.offset:.2g} times as far from 0 as from each other")
    return " and ".join(parts)


def _shrunk(record: Record) -> float:
    """How large the weights are, in lengths of what they were, in the median of the layers; NaN without looks."""
    if len(record.looks) < 2:
        return math.nan
    first = {layer.layer: layer.weight for layer in record.looks[0].layers}
    shares = [layer.weight / first[layer.layer] for layer in record.looks[-1].layers if first.get(layer.layer, 0.0) > 0]
    return median(shares) if shares else math.nan
