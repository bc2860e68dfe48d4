"""The doctor as a callback for the Trainer of transformers."""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.attachment import innermost
from trimtab.doctor import Diagnosis, Doctor
from trimtab.doctor.schedule import TRY_EVERY, Level
from trimtab.integrations.examining import Examination
from trimtab.integrations.transformers_steps import TrainerCallback, own_loss
from trimtab.probes.result import LossFunction


class DoctorCallback(TrainerCallback):  # type: ignore[misc]
    """Has a doctor look along at a training, and changes nothing: `print(callback.diagnosis)` afterwards, or meanwhile.

    It looks at each step before the optimizer's, with the last batch of the step; the loss is that which the model
    computes itself, from `labels`.

    Args:
        level: As in `trimtab.Doctor`.
        validation: As there.
        every: As there.
        report: The file of the page that is written when the training ends; None writes none.
        loss_fn: Called as `loss_fn(model, inputs)` with a dictionary of what the model is called with. Without it the
            loss is that which the model computes itself.

    Raises:
        ValueError: If one of these is something else.
    """

    def __init__(
        self,
        level: Level = "light",
        *,
        validation: Iterable[Any] | None = None,
        every: int = TRY_EVERY,
        report: str | Path | None = None,
        loss_fn: LossFunction | None = None,
    ) -> None:
        self._examination = Examination(level, validation, every, report)
        self._loss_fn = loss_fn or own_loss
        self._hook: RemovableHandle | None = None
        self._seen: tuple[Any, Tensor] | None = None
        self._looking = False

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What the doctor has to say by now; None before the first training."""
        return self._examination.diagnosis

    @property
    def doctor(self) -> Doctor | None:
        """The doctor of the last training."""
        return self._examination.doctor

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Any, **_: Any
    ) -> None:
        """Make the doctor."""
        self._end()
        compiled = cast(nn.Module, torch.compile(model)) if args.torch_compile else model  # as the Trainer will have it
        self._examination.begin(compiled, innermost(optimizer), self._loss_fn)
        self._hook = model.register_forward_hook(self._see, with_kwargs=True)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look at the step."""
        seen, self._seen = self._seen, None
        if seen is None:
            return
        self._looking = True
        try:
            self._examination.step(*seen)
        finally:
            self._looking = False

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the hooks away, and write the page."""
        self._end()
        if state.is_world_process_zero:
            self._examination.write()

    def _see(self, model: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any], outputs: Any) -> None:
        """Keep what the model was called with, and its loss: callbacks are told of neither."""
        if self._looking or not model.training or not torch.is_grad_enabled():
            return
        if args:
            inputs = {**inspect.signature(model.forward).bind_partial(*args).arguments, **inputs}
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        self._seen = (inputs, loss.detach()) if isinstance(loss, Tensor) else None

    def _end(self) -> None:
        self._examination.end()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
