"""How a network of a sweep has ended: one test for both engines."""

import math

import torch

from trimtab.data import Split
from trimtab.records import Restart

DEVIATIONS = 3.0
"""Standard deviations above the share of the largest class within which an accuracy is that of chance."""


def chance_accuracy(held_out: Split, classes: int) -> float | None:
    """The largest accuracy that is no better than always answering with the most frequent class; None in regression."""
    if not classes:
        return None
    share = float(torch.bincount(held_out.targets, minlength=classes).max()) / len(held_out)
    return share + DEVIATIONS * math.sqrt(share * (1 - share) / len(held_out))


def restart_of(
    seed: int, loss: float | None, accuracy: float | None, exploded_at: int | None, chance: float | None
) -> Restart:
    """The record of a network: exploded if it has no loss, dead if its accuracy is that of chance, else trained."""
    if loss is None or exploded_at is not None:
        return Restart(seed, "exploded", None, None, exploded_at)
    dead = chance is not None and accuracy is not None and accuracy <= chance
    return Restart(seed, "dead" if dead else "trained", loss, accuracy, None)
