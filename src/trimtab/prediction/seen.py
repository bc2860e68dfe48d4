"""At which multiples of the largest stable learning rate trainings were seen to rise and to fail.

The numbers are in seen_in_training.json, which benchmarks/divergence.py writes.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from trimtab.prediction.losses import NAMES, describe

Mode = Literal["batch", "none"]
NOT_SEEN = (
    "At which multiples of the largest learning rate the loss begins to rise, or training fails, was looked at only "
    "for ½‖f − y‖² and cross-entropy with all outputs, in train mode."
)
_MODES = {"batch": "BatchNorm in train mode", "none": "no BatchNorm"}


@dataclass(frozen=True)
class Spread:
    """Multiples of η* in several trainings. 0 is below all that were tried, None above.

    Attributes:
        p10: The 10th percentile.
        median: The median.
        p90: The 90th percentile.
        min: The smallest.
        max: The largest.
        never: In how many it was above all that were tried.
        always: In how many it was below.
    """

    p10: float | None
    median: float | None
    p90: float | None
    min: float | None
    max: float | None
    never: int
    always: int

    def between(self, tried: tuple[float, float]) -> str:
        """The 10th to the 90th percentile in words, of what was tried between two multiples."""
        return " to ".join(
            f"more than {tried[1]:,g}" if end is None else f"{float(f'{end or tried[0]:.2g}'):g}"
            for end in (self.p10, self.p90)
        )


@dataclass(frozen=True)
class SeenInTraining:
    """What was seen in trainings with a loss, an optimizer and a mode; print it.

    Attributes:
        loss: `squared` or `cross_entropy`.
        optimizer: `sgd` or `momentum`.
        mode: `batch`, BatchNorm in train mode, or `none`, no BatchNorm.
        trainings: How many.
        networks: Of so many networks.
        data: On these data sets.
        momentum: Of `momentum`.
        tried: The smallest and the largest multiple that were tried.
        rise: Where the loss began to be above its first value within ten steps.
        fail: Where training failed.
        others: Where it failed with `bnp` and `adam`, as multiples of the largest rate of plain SGD.
    """

    loss: str
    optimizer: str
    mode: str
    trainings: int
    networks: int
    data: tuple[str, ...]
    momentum: float
    tried: tuple[float, float]
    rise: Spread
    fail: Spread
    others: dict[str, Spread]

    def __str__(self) -> str:
        """In sentences."""
        optimizer = f"SGD with momentum {self.momentum:g}" if self.optimizer == "momentum" else "SGD"
        sentences = [
            f"In {self.trainings} trainings with {describe(self.loss)} and {_MODES[self.mode]} ({self.networks} small "  # type: ignore[arg-type]
            f"networks, {', '.join(self.data)}, full batches, {optimizer}) the loss began to rise at "
            f"{self.rise.between(self.tried)} times the largest learning rate, measured before the first step, and "
            f"training failed at {self.fail.between(self.tried)} times (10th to 90th percentile)."
        ]
        if self.fail.never:
            sentences.append(f"{self.fail.never} of them did not fail at up to {self.tried[1]:,g} times.")
        if self.optimizer == "momentum":
            sentences.append(
                f"With momentum the loss can overshoot: on a quadratic it rises above {1 / (1 + self.momentum):.2g} "
                "times that rate, and recovers up to it."
            )
        if self.others:
            named = {"bnp": "BNP", "adam": "Adam"}
            ranges = (f"with {named[name]} at {found.between(self.tried)}" for name, found in self.others.items())
            sentences.append(
                f"The rate is not that of other optimizers: trainings failed {' and '.join(ranges)} times the "
                "largest of SGD without momentum."
            )
        return " ".join(sentences)


def seen_in_training(loss: str, momentum: float, mode: Mode) -> SeenInTraining | None:
    """What was seen, for a loss by its description; None if there were no such trainings."""
    names = {describe(name): name for name in NAMES}  # type: ignore[arg-type]
    return find(_kept(), names.get(loss, ""), "momentum" if momentum else "sgd", mode)


def find(kept: dict[str, Any], loss: str, optimizer: str, mode: str) -> SeenInTraining | None:
    """One group of a summary."""
    groups = {(group["loss"], group["optimizer"], group["mode"]): group for group in kept["groups"]}
    group = groups.get((loss, optimizer, mode))
    if group is None:
        return None
    others = {name: groups[loss, name, mode]["fail"] for name in ("bnp", "adam") if (loss, name, mode) in groups}
    return SeenInTraining(
        loss=loss,
        optimizer=optimizer,
        mode=mode,
        trainings=group["trainings"],
        networks=group["networks"],
        data=tuple(kept["data"]),
        momentum=kept["momentum"],
        tried=(kept["tried"][0], kept["tried"][1]),
        rise=Spread(**group["rise"]),
        fail=Spread(**group["fail"]),
        others={name: Spread(**found) for name, found in others.items()},
    )


@cache
def _kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (files("trimtab.prediction") / "seen_in_training.json").read_text(encoding="utf-8")
    )
    return found
