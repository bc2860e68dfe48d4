"""What the callbacks with a doctor have in common."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from trimtab.doctor import Diagnosis, Doctor
from trimtab.doctor.schedule import Level
from trimtab.probes.result import LossFunction


class Examination:
    """A doctor that is made when the optimizer of a training is there.

    Args:
        level: As in `trimtab.Doctor`.
        validation: As there.
        every: As there.
        report: The file of the page that is written at the end; None writes none.

    Attributes:
        doctor: The doctor, since the training has begun.
    """

    def __init__(self, level: Level, validation: Iterable[Any] | None, every: int, report: str | Path | None) -> None:
        self._options: dict[str, Any] = {"level": level, "validation": validation, "every": every}
        self._report = report
        self.doctor: Doctor | None = None
        layer = nn.Linear(1, 1)  # what is wrong with the options is said now, not when the training begins
        options = {**self._options, "validation": None}
        Doctor(layer, SGD(layer.parameters(), lr=0.1), lambda model, batch: batch, **options).close()

    def begin(self, model: nn.Module, optimizer: Optimizer, loss_fn: LossFunction) -> None:
        """Make the doctor."""
        self.end()
        self.doctor = Doctor(model, optimizer, loss_fn, **self._options)

    def step(self, batch: Any, loss: Tensor | None) -> None:
        """Look at a step, if its batch and its loss are known."""
        if self.doctor is not None and loss is not None:
            self.doctor.step(batch, loss)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What the doctor has to say by now; None before the training."""
        return None if self.doctor is None else self.doctor.diagnosis()

    def end(self) -> None:
        """Take the hooks away, and write the page."""
        if self.doctor is not None:
            self.doctor.close()

    def write(self) -> None:
        """Write the page, if there is to be one."""
        if self.doctor is not None and self._report is not None:
            self.doctor.report(self._report)
