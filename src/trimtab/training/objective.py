"""What a training run minimizes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
        loss: That of a classification.
    """

    classes: int
    zeta: float
    device: torch.device
    bf16: bool
    loss: Literal["cross_entropy", "squared"] = "cross_entropy"

    def output(self, model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """The model's output, in float32 at least; the forward pass runs in the precision of the run."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            output = model(inputs)
        return output.to(torch.promote_types(output.dtype, torch.float32))

    def data_loss(self, output: Tensor, targets: Tensor, of: int | None = None) -> Tensor:
        """The loss of a batch.

        In a classification the mean over samples of the cross-entropy, or of ½‖f − y‖² with y one-hot, to which the
        eigenvalues of the meanfield paper belong. In regression the squared error summed over outputs and samples
        (landscape, App. A).

        Args:
            output: The model's.
            targets: As many.
            of: How many samples the mean is over, if these are a part of them, or none: the losses of all parts then
                have to be added.
        """
        if not self.classes:
            return (output - targets).square().sum()
        if self.loss == "squared":
            # Not one_hot, which asks a CPU for the largest target and has no rule for vmap.
            wanted = targets.unsqueeze(-1) == torch.arange(self.classes, device=targets.device)
            distance = output - wanted.to(output.dtype)
            return distance.square().sum() / (2 * (len(targets) if of is None else of))
        if of is not None:
            return F.cross_entropy(output, targets, reduction="sum") / of
        return F.cross_entropy(output, targets)

    def with_decay(self, loss: Tensor, model: nn.Module) -> Tensor:
        """A data loss plus the explicit decay: what a training step differentiates."""
        return loss + gamma_decay(model, self.zeta) if self.zeta else loss

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """What a training step differentiates, computed from scratch; probes use this."""
        inputs, targets = batch
        return self.with_decay(self.data_loss(self.output(model, inputs), targets), model)
