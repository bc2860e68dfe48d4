"""Noticing that a model is trained by another optimizer than the one that BNP is attached to."""

import weakref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.bnp.attachment import parameter_ids
from trimtab.notice import warn_user

MAX_UNUSED = 3  # gradients


class UnusedSteps:
    """Counts gradients that were used and dropped, one after the other, without a step of BNP's.

    That a gradient is dropped says little: a GradScaler skips steps, a GAN throws gradients away. But if the weight is
    another one at the next, somebody trains it. One weight, the first whose gradient was dropped, stands for all.

    Attributes:
        count: How many, since BNP's last step.
    """

    def __init__(self) -> None:
        """Nothing is expected yet."""
        self.count = 0
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._optimizer_type = ""
        self._weight: Tensor | None = None
        self._before: Tensor | None = None  # its values when its gradient was last dropped
        self._warned = False

    def expect(self, optimizer: Optimizer | None) -> None:
        """Steps of this optimizer are BNP's; None: it is attached to none."""
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._optimizer_type = type(optimizer).__name__
        self.stepped()

    def stepped(self) -> None:
        """BNP has made a step."""
        self.count, self._weight, self._before = 0, None, None

    def dropped(self, weight: nn.Parameter) -> None:
        """The gradient of this weight was dropped."""
        optimizer = None if self._optimizer is None else self._optimizer()
        if optimizer is None or self.count == MAX_UNUSED or (self._weight is not None and self._weight is not weight):
            return
        if weight.is_meta or (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        now, before = weight.detach(), self._before
        if self._weight is None:
            if id(weight) not in parameter_ids(optimizer):
                return
            self._weight = weight
        elif before is not None and _same(now, before):
            return
        self.count += 1
        self._before = now.clone() if self.count < MAX_UNUSED else None
        if self.count == MAX_UNUSED:
            self._warn()

    def gone(self) -> None:
        """BNP was let go, and perhaps its optimizer with it: there will be no more gradients to count."""
        if self._optimizer is not None and self.count > 1:
            self._warn()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warn_user(
                f"The model is trained without BNP: {self.count} gradients in a row were used and dropped with no step "
                f"of the {self._optimizer_type} that BNP is attached to; if you have made a new optimizer since, "
                "detach() BNP and attach() it to that one."
            )


def _same(now: Tensor, before: Tensor) -> bool:
    if now.shape != before.shape or now.dtype != before.dtype or now.device != before.device:
        return True  # the model was moved, which is no training; what comes next will tell
    return torch.allclose(now, before, rtol=0, atol=0, equal_nan=True)
