"""What a training run minimizes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.norms import gamma_decay


@dataclass(frozen=True, slots=True)
class Objective:
    """The loss of a run, for its steps, its evaluations and its probes.

    Attributes:
        classes: How many there are; 0 in regression.
        zeta: The strength of the explicit decay of γ; 0 for none.
        device: Where the model is.
        bf16: Whether the forward pass runs under autocast in bfloat16.
    """

    classes: int
    zeta: float
    device: torch.device
    bf16: bool

    def output(self, model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """The model's output in float32; the forward pass runs in the precision of the run."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            output = model(inputs)
        return output.float()

    def data_loss(self, output: Tensor, targets: Tensor, of: int | None = None) -> Tensor:
        """Cross-entropy; in regression the squared error summed over outputs and samples (landscape, App. A).

        Args:
            output: The model's.
            targets: As many.
            of: How many samples the mean is over, if these are a part of them, or none: the losses of all parts then
                have to be added.
        """
        if self.classes and of is not None:
            return F.cross_entropy(output, targets, reduction="sum") / of
        if self.classes:
            return F.cross_entropy(output, targets)
        return (output - targets).square().sum()

    def with_decay(self, loss: Tensor, model: nn.Module) -> Tensor:
        """A data loss plus the explicit decay: what a training step differentiates."""
        return loss + gamma_decay(model, self.zeta) if self.zeta else loss

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """What a training step differentiates, computed from scratch; probes use this."""
        inputs, targets = batch
        return self.with_decay(self.data_loss(self.output(model, inputs), targets), model)
