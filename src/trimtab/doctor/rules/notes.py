"""What is worth knowing of a training, and no illness."""

import math
from collections import Counter

from trimtab.doctor.curves import middle_of
from trimtab.doctor.finding import Note
from trimtab.doctor.record import Record
from trimtab.doctor.trend import trend
from trimtab.doctor.watch import DEAD_LOOKS

EDGE = (0.7, 1.5)
"""λ_max in units of 2 / rate at which full-batch training settles by itself (Cohen et al. 2021)."""
APART = 8.0
"""A batch so many times smaller or larger than the noise scale is worth a note."""
SHORT = 50
"""Fewer steps say little."""


def edge_of_stability(record: Record) -> Note | None:
    """Full-batch training at the edge is healthy."""
    found = [result.stable_learning_rate for _, result in record.probed.get("spectrum", [])]
    limit, rate = middle_of(found), record.looks[-1].lr if record.looks else math.nan
    if not limit > 0 or not EDGE[0] <= rate / limit <= EDGE[1]:
        return None
    return Note(
        name="edge-of-stability",
        sentence=f"The learning rate is {rate / limit:.2g} times what a quadratic loss of this curvature would bear; "
        "many "
        "healthy trainings settle there.",
        evidence={"rate_over_limit": rate / limit},
    )


def decay_of_scale_invariant(record: Record) -> Note | None:
    """Under BatchNorm decay sets the effective learning rate."""
    if not record.facts.weight_decay or not record.facts.batchnorms:
        return None
    return Note(
        name="decay-sets-effective-rate",
        sentence="The output does not depend on the length of weights that BatchNorm follows: weight decay does not "
        "regularize those, it raises their effective learning rate.",
        evidence={"weight_decay": record.facts.weight_decay},
    )


def batch_and_noise_scale(record: Record) -> Note | None:
    """A batch far from the gradient noise scale."""
    scale, batch = middle_of(r.noise_scale for _, r in record.probed.get("noise", [])), record.facts.batch_size
    if not scale > 0 or not batch or trend(record).stuck:
        return None
    if batch > APART * scale:
        words = f"many times the gradient noise scale, {scale:.2g}: smaller ones would learn as much from each step"
    elif batch * APART < scale:
        words = (
            f"far below the gradient noise scale, {scale:.2g}: twice as large ones would allow almost twice the rate"
        )
    else:
        return None
    return Note(
        name="batch-and-noise-scale",
        sentence=f"Batches of {batch} are {words}.",
        evidence={"batch_size": float(batch), "noise_scale": scale},
    )


def few_steps(record: Record) -> Note | None:
    """A short look."""
    if len(record.losses) >= SHORT and len(record.looks) >= DEAD_LOOKS:
        return None
    return Note(
        name="few-steps",
        sentence=f"{len(record.losses)} steps were seen; most findings need {SHORT} or more.",
        evidence={"steps": float(len(record.losses))},
    )


def problems(record: Record) -> list[Note]:
    """What could not be measured, each once."""
    counted = Counter((problem.what, problem.sentence) for problem in record.problems)
    return [
        Note(
            name="not-measured",
            sentence=f"{what} could not be measured{f', {times} times' if times > 1 else ''}: "
            f"{(sentence.splitlines() or [''])[0]}",
            evidence={"times": float(times)},
        )
        for (what, sentence), times in counted.items()
    ]
