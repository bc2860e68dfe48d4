"""Whether a training has exploded: the test that every step's loss is put to."""

import torch
from torch import Tensor

EXPLOSION = 100.0
"""A loss so many times the first one is an explosion."""


class LossWatch:
    """Counts on the device the steps up to the first one whose loss is not finite or above a limit.

    It watches one network, or several at once. A CUDA graph can replay what `add` does.

    Attributes:
        limit: The largest loss that is no explosion.
        steps: How many steps there were up to the first explosion.
    """

    def __init__(self, device: torch.device, networks: int | None = None) -> None:
        """No step was taken, and any finite loss is within the limit.

        Args:
            device: Where the losses are.
            networks: How many losses there are for each step; None: one, without dimensions.
        """
        shape = () if networks is None else (networks,)
        self.limit = torch.full(shape, torch.finfo(torch.float32).max, device=device)
        self.steps = torch.zeros(shape, dtype=torch.int64, device=device)
        self._within = torch.ones_like(self.steps)

    def set_limit(self, first_loss: float | Tensor) -> None:
        """Set the limit that belongs to the loss of the first step; a first loss below 1 counts as 1."""
        first = torch.as_tensor(first_loss, dtype=self.limit.dtype, device=self.limit.device)
        self.limit.copy_(torch.where(first.isfinite(), EXPLOSION * first.clamp(min=1), self.limit))

    def resume(self, taken: int, steps: Tensor | None = None) -> None:
        """Go on after so many steps; `steps` are those up to an explosion, by default all."""
        self.steps.fill_(taken)
        if steps is not None:
            self.steps.copy_(steps)
        self._within.copy_(self.steps == taken)

    def add(self, loss: Tensor) -> None:
        """Look at the loss of a step."""
        self._within *= loss.detach() <= self.limit
        self.steps += self._within

    def keep(self, networks: Tensor) -> None:
        """Go on with these networks only."""
        self.limit, self.steps, self._within = self.limit[networks], self.steps[networks], self._within[networks]

    def exploded_at(self, steps: int) -> int | None:
        """Which of so many steps of one network, counted from 1, was the first explosion; None if there is none."""
        within = int(self.steps)
        return within + 1 if within < steps else None
