"""How closely is looked, and when."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["light", "standard", "full"]

LOOK_EVERY = 32
TRY_EVERY = 64
"""Steps between two looks, and between two steps that are tried: what both cost is in docs/doctor.md."""
EARLY_LOOKS = (0, 4, 8, 16)
"""At a training's beginning more is to be seen, and a short one is to have been looked at."""
EARLY_TRIALS = (0, 16)
OFTEN = 1024
"""After so many steps there is one look for each trial and not two, and hooks are half as frequent: what goes wrong at
the beginning has done so, and in a training that is still going on costs count."""
WAY = 48
"""A way between two trials has at least so many steps; a shorter one has more of the noise of its batches in it."""
HOOKS_EVERY = 256
"""Activations cost more than the rest of a look, and are judged at the beginning."""
PROBES = {"noise": (7, 32), "spectrum": (15, 128)}
"""The first trial, counted from 0, at which a probe is called, and how many there are from one call to the next. These
cost as much as many steps, and what they tell changes slowly."""


@dataclass(frozen=True)
class Schedule:
    """When what is due.

    Attributes:
        level: How closely is looked.
        every: Steps between two trials; looks are twice as frequent at first.
    """

    level: Level
    every: int = TRY_EVERY

    def look(self, step: int) -> bool:
        """Whether a step is looked at."""
        apart = self.every if self._is_late(step) else max(self.every // 2, 1)
        return step % apart == 0 or step in EARLY_LOOKS or self.trial(step)

    def hooks(self, step: int) -> bool:
        """Whether a look is at activations too."""
        return step in EARLY_LOOKS or step % (HOOKS_EVERY * (2 if self._is_late(step) else 1)) == 0

    def _is_late(self, step: int) -> bool:
        return step > OFTEN * self.every // TRY_EVERY

    def trial(self, step: int) -> bool:
        """Whether it is tried out."""
        return self.level != "light" and (step % self.every == 0 or step in EARLY_TRIALS)

    def before_trial(self, step: int, steps: int) -> bool:
        """Whether one of the next steps, or this one, is tried."""
        return any(self.trial(step + ahead) for ahead in range(steps))

    def probes(self, trials: int) -> tuple[str, ...]:
        """The probes that are called with the trial of this number."""
        if self.level == "full":
            return "landscape", "spectrum", "noise", "conditioning", "activations"
        if self.level == "standard":
            return tuple(name for name, (first, every) in PROBES.items() if trials % every == first)
        return ()
