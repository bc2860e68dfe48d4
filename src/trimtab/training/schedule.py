"""The learning rate as a function of the step."""

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["constant", "step", "cosine", "decay"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Warm-up, then one of four schedules.

    Attributes:
        lr: The learning rate after the warm-up.
        kind: `constant`; `step`: times `factor` at each milestone; `cosine`: to zero at the end; `decay`: times
            1 − `factor` at each step.
        total: All steps.
        milestones: In steps.
        factor: See `kind`.
        warmup: How many steps the warm-up takes.
        warmup_from: The learning rate it begins with.
        warmup_linear: Whether it rises linearly, or stays and then jumps.
    """

    lr: float
    kind: Kind
    total: int
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup: int = 0
    warmup_from: float = 0.0
    warmup_linear: bool = True

    def at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            share = step / self.warmup if self.warmup_linear else 0.0
            return self.warmup_from + share * (self.lr - self.warmup_from)
        if self.kind == "step":
            return self.lr * self.factor ** sum(step >= milestone for milestone in self.milestones)
        if self.kind == "cosine":
            share = (step - self.warmup) / max(self.total - self.warmup, 1)
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
        if self.kind == "decay":
            return float(self.lr * (1 - self.factor) ** (step - self.warmup))
        return self.lr
