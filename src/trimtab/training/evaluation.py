"""Loss and accuracy on the data that are not trained on."""

import math
from itertools import islice

import torch
from torch import nn

from trimtab.data import Batches, Dataset
from trimtab.training.objective import Objective
from trimtab.training.processes import ALONE, Processes
from trimtab.training.stepping.compiling import uncompiled

BATCH_SIZE, CPU_BATCH_SIZE = 1000, 128
"""Samples that are evaluated at once on a GPU and on a CPU. On one core of an AMD EPYC `cnn5` takes 0.48 ms for each of
1000 images of 32x32 and 0.21 ms for each of 128, whose activations fit into the cache; small images take as long."""
SMALL_INPUT, SMALL_INPUT_BATCH_SIZE = 4096, 5000
"""Inputs with at most 4096 numbers are evaluated 5000 at once on a GPU, where launching kernels takes most time."""


class Evaluator:
    """Evaluates a model.

    Attributes:
        batches: The data.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        *,
        run_uncompiled: bool,
        processes: Processes = ALONE,
    ) -> None:
        """Prepare the evaluation.

        Args:
            model: The network.
            objective: Its loss.
            batches: The data that it is evaluated on.
            run_uncompiled: Whether to run the original code of a model that was compiled in place.
            processes: Those that each evaluate a part of every batch, all with the buffers of the first one.
        """
        self.batches = batches
        self._model, self._objective, self._run_uncompiled = model, objective, run_uncompiled
        self._processes = processes

    @torch.no_grad()
    def __call__(self, max_batches: int | None = None) -> tuple[float, float | None]:
        """Mean loss and accuracy in eval mode; in regression the summed loss, and None.

        Args:
            max_batches: How many batches at most; None for all.
        """
        objective, device = self._objective, self._objective.device
        self._processes.share_buffers(self._model)
        self._model.eval()
        loss = torch.zeros((), device=device)
        correct = torch.zeros((), device=device)
        count = 0
        with uncompiled(self._run_uncompiled):
            for inputs, targets in islice(self.batches, max_batches):
                if not len(targets):  # too few for so many processes
                    continue
                output = objective.output(self._model, inputs)
                loss += objective.data_loss(output, targets) * (len(targets) if objective.classes else 1)
                count += len(targets)
                if objective.classes:
                    correct += (output.argmax(1) == targets).sum()
        self._model.train()
        total_loss, total_correct = self._processes.added(torch.stack([loss, correct])).tolist()
        if not objective.classes:
            return total_loss, None
        count = int(self._processes.added(torch.tensor(count, device=device)))
        return total_loss / count, total_correct / count


def evaluation_batch_size(dataset: Dataset, device: torch.device) -> int:
    """How many samples are evaluated at once."""
    if device.type == "cpu":
        return CPU_BATCH_SIZE
    small = math.prod(dataset.input_shape) <= SMALL_INPUT
    return SMALL_INPUT_BATCH_SIZE if small and device.type == "cuda" else BATCH_SIZE
