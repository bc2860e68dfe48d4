"""Training loss and accuracy, summed on the device between two records."""

import torch
from torch import Tensor

from trimtab.training.explosion import LossWatch
from trimtab.training.processes import ALONE, Processes


class Totals:
    """Sums over training steps. Only reading them waits for the device, and adds up those of several processes.

    Attributes:
        steps: How many steps the sums are over; whoever takes a step counts it here, since a replayed CUDA graph runs
            no Python.
        watch: Is shown the loss of each step.
    """

    def __init__(self, device: torch.device, *, classes: int, batch_size: int, processes: Processes = ALONE) -> None:
        """Start at zero.

        Args:
            device: Where the sums are.
            classes: How many there are; 0 in regression, which has no accuracy.
            batch_size: Samples per step.
            processes: Those that each add a part of the loss.
        """
        self.steps = 0
        self.watch = LossWatch(device)
        self._classes, self._batch_size, self._processes = classes, batch_size, processes
        self._loss = torch.zeros((), device=device)
        self._correct = torch.zeros((), device=device)

    def add(self, loss: Tensor, output: Tensor, targets: Tensor) -> None:
        """Add the loss and the number of correct answers of a step, by operations that a CUDA graph can replay."""
        self._loss += loss.detach()
        self.watch.add(loss * self._processes.size if self._processes.several else loss)  # one process has a part of it
        if self._classes:
            self._correct += (output.detach().argmax(1) == targets).sum()

    def loss(self) -> float:
        """The sum of the losses."""
        return self._everywhere()[0]

    def means(self) -> tuple[float, float | None]:
        """Mean loss and accuracy; the accuracy is None in regression."""
        steps = max(self.steps, 1)
        loss, correct = self._everywhere()
        return loss / steps, correct / (steps * self._batch_size) if self._classes else None

    def _everywhere(self) -> list[float]:
        """The sums of all processes: the losses, the correct answers."""
        return self._processes.added(torch.stack([self._loss, self._correct])).tolist()

    def reset(self) -> None:
        """Reset to zero in place: a CUDA graph adds to these tensors."""
        self.clear_sums()
        self.steps = 0

    def clear_sums(self) -> None:
        """Begin to add to nothing, since another process has the sums of these steps."""
        self._loss.zero_()
        self._correct.zero_()

    def state(self) -> tuple[Tensor, Tensor, int]:
        """The sums, for a checkpoint."""
        return self._loss, self._correct, self.steps

    def restore(self, state: tuple[Tensor, Tensor, int]) -> None:
        """Copy the sums of a checkpoint."""
        loss, correct, self.steps = state
        self._loss.copy_(loss)
        self._correct.copy_(correct)
