"""The training batches in the order of the steps, also from the middle of an epoch on."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trimtab.data import Batches


class BatchStream:
    """The batch of each step.

    The generator draws the order of an epoch and its augmentation. Its state at the beginning of the epoch is kept, so
    that a run that was stopped within an epoch draws the same epoch again and skips the batches it has had.
    """

    def __init__(self, batches: Batches, generator: torch.Generator, memory_format: torch.memory_format) -> None:
        """Start before the first step.

        Args:
            batches: The training data, which draw from this generator.
            generator: Decides order and augmentation.
            memory_format: The layout in memory that inputs shall have.
        """
        self._batches, self._generator, self._memory_format = batches, generator, memory_format
        self._at_epoch_start = generator.get_state()
        self._epoch: Iterator[tuple[Tensor, Tensor]] | None = None

    def batch_of(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step. Steps must be asked for in order, each once."""
        position = step % len(self._batches)
        if position == 0:
            self._at_epoch_start = self._generator.get_state()
            self._epoch = self._batches.epoch(self._batches.plan())
        elif self._epoch is None:
            self._generator.set_state(self._at_epoch_start)
            self._epoch = self._batches.epoch(self._batches.plan(), position)
        assert self._epoch is not None
        inputs, targets = next(self._epoch)
        return inputs.contiguous(memory_format=self._memory_format), targets

    def state(self) -> dict[str, Tensor]:
        """The generator's state now and at the beginning of the epoch, for a checkpoint."""
        return {"before_epoch": self._at_epoch_start, "order_generator": self._generator.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where a checkpoint was saved."""
        self._at_epoch_start = state["before_epoch"].cpu()
        self._generator.set_state(state["order_generator"].cpu())
        self._epoch = None
