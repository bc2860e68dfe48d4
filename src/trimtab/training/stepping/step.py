"""One training step: forward, backward, update."""

import torch
from torch import Tensor, nn

from trimtab.bnp import BNP
from trimtab.training.objective import Objective
from trimtab.training.processes import ALONE, Processes
from trimtab.training.stepping.compiling import compiled
from trimtab.training.totals import Totals


class TrainingStep:
    """Everything that a step does on the device, and nothing that Python counts: a CUDA graph can replay all of it.

    Attributes:
        totals: Where the loss and the correct answers of each step are added.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        bnp: BNP | None,
        objective: Objective,
        totals: Totals,
        *,
        compile: bool,
        batch_size: int,
        processes: Processes = ALONE,
    ) -> None:
        """Prepare the step.

        Args:
            model: What is trained.
            optimizer: Updates its parameters.
            bnp: What is attached to the optimizer, if something is.
            objective: The loss.
            totals: Where loss and accuracy are summed.
            compile: Whether the forward pass is compiled, when the first step is taken.
            batch_size: Samples per step, of all processes together.
            processes: Those that train the model together, each with its share of the samples.
        """
        self.totals = totals
        self._model, self._optimizer, self._bnp, self._objective = model, optimizer, bnp, objective
        self._forward = compiled(model) if compile else model
        self._processes, self._batch_size = processes, batch_size if processes.several else None
        if processes.several:
            from trimtab.training.stepping.parallel import parallel

            self._forward = parallel(self._forward, objective.device)

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        """Take a step."""
        self._optimizer.zero_grad()
        output = self._objective.output(self._forward, inputs)
        loss = self._objective.data_loss(output, targets, self._batch_size)
        # DistributedDataParallel takes the mean over the processes of what has to be the sum.
        whole = loss * self._processes.size if self._processes.several else loss
        self._objective.with_decay(whole, self._model).backward()
        self._optimizer.step()
        self.totals.add(loss, output, targets)

    def discard(self) -> None:
        """Drop all gradients, and the rows that BNP has seen, of a step that was not finished."""
        self._optimizer.zero_grad()
        if self._bnp is not None:
            self._bnp.discard()
