"""A run from beginning to end: steps, records, checkpoints, interruptions, verdict."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.probes.result import Result
from trimtab.records import EVENTS, Evaluated, Event, EventLog, Resumed, RunEnded, RunStarted, Trained, Verdict
from trimtab.training import checkpoint, saved_state
from trimtab.training.cadence import evaluation_is_due, record_every
from trimtab.training.clock import Clock
from trimtab.training.device import hardware
from trimtab.training.extending import OtherSettings, changes
from trimtab.training.interruption import interruptible
from trimtab.training.last_epoch import LastEpoch
from trimtab.training.probe_factories import make_monitor
from trimtab.training.recipes import defaults
from trimtab.training.session import Session

CHECKPOINT = "checkpoint.pt"
ANEW = "begin the run anew with --force"
SHOW_SECONDS = 5.0
"""Seconds between two updates of the progress display, where records are further apart."""
Observer = Callable[[Event, Result | None], None]
"""Called with an event of a run, and with the result of the probe if it is one's."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run, for a display."""

    step: int
    total: int
    epoch: float
    loss: float | None
    accuracy: float | None
    part: str
    evaluated: float | None
    images_per_second: float


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        verdict: `finished`, `diverged` or `interrupted`.
        evaluations: Step, loss and accuracy of each evaluation.
        seconds: Training time.
        images_per_second: The mean over the training time.
        exploded_at: The first step whose loss was not finite or a hundred times the first one, if it has diverged so.
        signal: The number of the signal that interrupted it; 0 if none did.
        last_epoch: Mean training loss and accuracy over the steps of the last epoch; None as in `RunEnded`.
    """

    verdict: Verdict
    evaluations: tuple[Evaluated, ...]
    seconds: float
    images_per_second: float
    exploded_at: int | None = None
    signal: int = 0
    last_epoch: tuple[float | None, float | None] = (None, None)


class Run:
    """Trains a session to its end, with records and checkpoints.

    Without a folder nothing is written.
    """

    def __init__(
        self,
        session: Session,
        folder: Path | None = None,
        show: Callable[[Progress], None] | None = None,
        *,
        observe: Observer | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> None:
        """Prepare the run; `begin` or `resume` comes next.

        Args:
            session: What is trained.
            folder: For records and checkpoints.
            show: Called from time to time with the progress.
            observe: Called with each event that is recorded.
            checkpoint_seconds: Time between two checkpoints.
        """
        self.session = session
        self._checkpoint_seconds = checkpoint_seconds
        self._folder = folder
        self._show = show
        self._observe = observe
        self._log: EventLog | None = None
        self._clock = Clock(session.wait)
        self._first_loss: float | None = None
        self._evaluations: list[Evaluated] = []
        self._last: tuple[float | None, float | None] = (None, None)
        self._shown = time.monotonic()
        self._signal = 0
        self._monitor = make_monitor(session)
        self._last_epoch = LastEpoch(session)

    @property
    def begun(self) -> bool:
        """Whether its records are open."""
        return self._log is not None

    def begin(self, command: str, versions: dict[str, str], settings: dict[str, Any]) -> None:
        """Start the records."""
        if self._folder is not None:
            self._log = EventLog(self._folder / EVENTS)
        parameters = sum(p.numel() for p in self.session.model.parameters())
        where, how = hardware(self.session.device), self.session.execution
        usual = defaults(self.session.settings)
        self._record(RunStarted(settings, command, where, versions, parameters, how, usual, self.session.initial))

    def resume(self) -> dict[str, Any]:
        """Continue from the checkpoint; records of later steps are removed.

        Returns:
            The settings that changed, since the run was extended.

        Raises:
            ValueError: If the checkpoint belongs to another run, or does not fit these settings.
        """
        assert self._folder is not None
        changed, keep = self.restore()
        try:
            self._log = EventLog(self._folder / EVENTS, keep=keep)
        except ValueError as error:
            raise ValueError(f"{error}; put back the file that belongs to {CHECKPOINT}, or {ANEW}") from error
        self._record(Resumed(self.session.step, hardware(self.session.device), self.session.execution, changed))
        return changed

    def restore(self) -> tuple[dict[str, Any], int]:
        """The part of `resume` that writes nothing; also returns how many bytes of the records are kept."""
        assert self._folder is not None
        path = self._folder / CHECKPOINT
        session = self.session
        several = session.processes.several
        try:
            state = checkpoint.load(path, torch.device("cpu") if several else session.device)
        except checkpoint.Damaged as error:
            raise ValueError(f"{error}; {ANEW}") from error
        try:
            saved = saved_state.saved_settings(state)
            changed = changes(saved, session.settings, session.steps_per_epoch, str(self._folder))
            saved_state.check(state, session)
            self._continue(state)
        except OtherSettings:
            raise
        except (ValueError, RuntimeError) as error:  # a generator's state, say, of which only torch knows
            why = str(error).splitlines()[0].rstrip(".")
            raise ValueError(f"{path} does not belong to this run: {why}; {ANEW}") from error
        session.processes.from_first(state)
        return changed, state["log"]

    def follow(self) -> None:
        """In a process other than the first, continue from the checkpoint that the first has restored, if any."""
        state: dict[str, Any] | None = self.session.processes.from_first(None)
        if state is not None:
            self._continue(state)

    def _continue(self, state: dict[str, Any]) -> None:
        self.session.restore(state["session"])
        self._clock.seconds, self._first_loss = state["seconds"], state["first_loss"]
        self.session.set_loss_limit(state["first_loss"])
        self._evaluations = [Evaluated(**evaluation) for evaluation in state["evaluations"]]
        self._last_epoch.restore(state.get("last_epoch"))

    def train(self) -> Ending:
        """Take all the steps that are left, unless the run diverges or is interrupted."""
        if self.session.step == 0 and self.session.settings.init_from is not None and self.session.initial is None:
            raise ValueError("init_from has no effect yet: call trimtab.training.initial.take_over_weights(session)")
        # The signal that one of several processes has reported comes to the others while they are saving.
        with interruptible(once=False) if self.session.processes.several else nullcontext():
            return self._train()

    def _train(self) -> Ending:
        try:
            verdict = self._take_steps()
            self._clock.stop()
            exploded_at = self.session.exploded_at() if verdict == "diverged" else None
            if verdict != "diverged":
                self._save()
            seconds = self._clock.seconds
            rate = self.session.step * self.session.batch_size / seconds if seconds else 0.0
            how, tail = self.session.execution, self._last_epoch.means() if verdict == "finished" else (None, None)
            ended = RunEnded(verdict, self.session.step, seconds, rate, how, exploded_at, *tail)
            self._record(ended)
        finally:
            self.close()
        self.session.processes.largest(0)  # until the first process has written all
        return Ending(verdict, tuple(self._evaluations), seconds, rate, exploded_at, self._signal, tail)

    def close(self) -> None:
        """Close the records. `train` does that itself; call this if it is not called."""
        if self._log is not None:
            self._log.close()

    def _take_steps(self) -> Verdict:
        session, settings, processes = self.session, self.session.settings, self.session.processes
        every = record_every(session.total, settings)
        saved = time.monotonic()
        with interruptible(once=not processes.several) as interrupted:
            while session.step < session.total:
                self._clock.start()
                batch = session.next_batch()
                self._probe(batch)
                session.advance(batch)
                if self._first_loss is None:
                    self._first_loss = session.loss_so_far()
                    session.set_loss_limit(self._first_loss)
                last = session.step == session.total
                self._last_epoch.look()
                lost = not math.isfinite(self._first_loss)
                if (session.step % every == 0 or last or lost) and not self._record_training():
                    return "diverged"
                due = evaluation_is_due(session.step, session.total, settings, session.steps_per_epoch)
                if due and not self._record_evaluation():
                    return "diverged"
                waited = time.monotonic() - saved > self._checkpoint_seconds
                number, save = processes.largest(interrupted(), self._folder is not None and waited)
                if number and not last:
                    self._signal = number
                    return "interrupted"
                if self._show is not None and time.monotonic() - self._shown > SHOW_SECONDS:
                    self._clock.stop()
                    self._show_progress()
                if save:
                    if session.exploded_at() is not None:
                        return "diverged"
                    self._save()
                    saved = time.monotonic()
        return "finished"

    def _probe(self, batch: tuple[Tensor, Tensor]) -> None:
        """Run the probes that are due before the next step; this does not count as training time."""
        session, due = self.session, self._monitor
        if due is None or not any(due.due(session.step, probe) for probe in due.probes):
            return
        self._clock.stop()
        whole_batch = session.processes.whole_batch(batch)
        if whole_batch is not None:
            for event, result in due.measure(session.step, session.model, session.loss_fn, whole_batch):
                self._record(event, result)
        self._clock.start()

    def _epoch(self) -> float:
        return self.session.step / self.session.steps_per_epoch

    def _record_training(self) -> bool:
        """Record the last steps; False if the training has diverged."""
        self._clock.stop()
        # At an end between two records the sums are kept, for a run that will be longer.
        between = self.session.step % record_every(self.session.total, self.session.settings) != 0
        if not between:
            self._last_epoch.add()
        loss, accuracy = self.session.means() if between else self.session.take_means()
        lr = self.session.schedule.at(self.session.step - 1)
        self._record(Trained(self.session.step, self._epoch(), loss, accuracy, lr, self._clock.seconds))
        self._last = loss, accuracy
        self._show_progress()
        return self.session.exploded_at() is None

    def _record_evaluation(self) -> bool:
        self._clock.stop()
        session = self.session
        loss, accuracy = session.evaluate()
        on_train = (None, None) if session.evaluate_train is None else session.evaluate_train()
        seconds = self._clock.seconds
        event = Evaluated(session.step, self._epoch(), session.part, loss, accuracy, seconds, *on_train)
        self._evaluations.append(event)
        self._record(event)
        self._show_progress()
        return math.isfinite(loss)

    def _show_progress(self) -> None:
        if self._show is not None:
            self._shown = time.monotonic()
            evaluated = self._evaluations[-1].accuracy if self._evaluations else None
            rate = self.session.step * self.session.batch_size / max(self._clock.seconds, 1e-9)
            where = self.session.step, self.session.total, self._epoch()
            self._show(Progress(*where, *self._last, self.session.part, evaluated, rate))

    def _record(self, event: Event, result: Result | None = None) -> None:
        if self._log is not None:
            self._log.write(event)
        if self._observe is not None:
            self._observe(event, result)

    def _save(self) -> None:
        alone = not self.session.processes.several
        if alone and (self._folder is None or self._log is None):
            return
        self._clock.stop()
        session_state = self.session.state_of_all()
        if self._folder is None or self._log is None:
            return
        state = {
            "settings": asdict(self.session.settings),
            "interface": asdict(self.session.interface),
            "session": session_state,
            "seconds": self._clock.seconds,
            "first_loss": self._first_loss,
            "evaluations": [asdict(evaluation) for evaluation in self._evaluations],
            "last_epoch": self._last_epoch.state(),
            "log": self._log.position(),
        }
        checkpoint.save(self._folder / CHECKPOINT, state)
