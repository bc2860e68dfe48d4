"""The doctor as a callback for Lightning 2."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.bnp.attachment import innermost
from trimtab.doctor import Diagnosis, Doctor
from trimtab.doctor.schedule import TRY_EVERY, Level
from trimtab.integrations.examining import Examination
from trimtab.integrations.lightning_steps import Callback, muted, training_loss
from trimtab.probes.result import LossFunction


class DoctorCallback(Callback):  # type: ignore[misc]
    """Has a doctor look along at a training, and changes nothing: `print(callback.diagnosis)` afterwards, or meanwhile.

    It looks at each step after the backward, before Lightning clips.

    Args:
        level: As in `trimtab.Doctor`.
        validation: As there.
        every: As there.
        report: The file of the page that is written when the fit ends; None writes none.
        loss_fn: Called as `loss_fn(module, batch)`. Without it `training_step` is called, with `log` muted, at the
            levels that compute a loss; give one if that does more than compute the loss, and in manual optimization.

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
        self._loss_fn = loss_fn
        self._seen: tuple[Any, int] | None = None
        self._loss: Tensor | None = None

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What the doctor has to say by now; None before the first fit."""
        return self._examination.diagnosis

    @property
    def doctor(self) -> Doctor | None:
        """The doctor of the last fit."""
        return self._examination.doctor

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the doctor.

        Raises:
            ValueError: If there is no way to compute a loss.
        """
        if self._loss_fn is None and not pl_module.automatic_optimization:
            raise ValueError("DoctorCallback needs a loss_fn in manual optimization, where training_step takes steps.")

        def loss_fn(module: Any, batch: Any) -> Tensor:
            return training_loss(trainer, 0 if self._seen is None else self._seen[1])(module, batch)

        self._examination.begin(pl_module, trainer.optimizers[0], self._loss_fn or loss_fn)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Remember the batch; its loss is not known yet, and will not be if `training_step` skips it."""
        self._seen, self._loss = (batch, batch_idx), None

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Remember the loss, of which Lightning has taken a share where gradients are accumulated."""
        self._loss = loss.detach() * trainer.accumulate_grad_batches

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Look at the step; Lightning calls this after the backward and before it clips."""
        if self._seen is not None and innermost(optimizer) is innermost(trainer.optimizers[0]):
            with muted(pl_module):
                self._examination.step(self._seen[0], self._loss)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the page."""
        if trainer.is_global_zero:
            self._examination.write()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take the hooks away."""
        self._examination.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take the hooks away: an interrupted fit has no teardown."""
        self._examination.end()
