"""The doctor: looks along at a training, and says what holds it back."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import _torch
from trimtab.bnp.attachment import innermost
from trimtab.doctor import suspicion
from trimtab.doctor.checks import check_doctor, check_step
from trimtab.doctor.facts import facts_of, kept_batches
from trimtab.doctor.finding import Diagnosis
from trimtab.doctor.measures import Packed
from trimtab.doctor.parts import compiled_layers
from trimtab.doctor.pooling import joined
from trimtab.doctor.probing import probe_model
from trimtab.doctor.record import Look, Problem, Record, Trial
from trimtab.doctor.rules import judge
from trimtab.doctor.schedule import TRY_EVERY, WAY, Level, Schedule
from trimtab.doctor.trying import Question, try_step
from trimtab.doctor.watch import Followed, Taken, Watch
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.isolation.random_state import RandomState
from trimtab.probes.result import CannotMeasure, LossFunction
from trimtab.probes.surface import copied_batch

POOL = 8
POOLED_UP_TO = 32
"""Batches of at most so many samples are joined, eight to one, where a batch alone is too small to tell."""


class Doctor:
    """Looks along at a training, changes nothing of it, and says what holds it back.

    Call `step` between backward and `optimizer.step()`; the rest of the loop stays as it is. What cannot be measured
    is a note of the diagnosis; it never ends a training.

    Args:
        model: The model in training.
        optimizer: Its optimizer; a BNP may be attached.
        loss_fn: `loss_fn(model, batch)` returns the loss of a batch, a tensor of one number. Level `light` does not
            call it.
        level: `light` looks at what the training computes anyway; `standard` also tries steps of the training out,
            every 64 steps; `full` calls the probes each time too.
        validation: Held-out batches, such as a loader; the first 4 are read once, and kept. Level `light` does not use
            them.
        every: Steps between two trials, and at first twice those between two looks (up to step 16 · `every`, as with
            64 up to step 1,024); for short trainings.

    Attributes:
        record: All that was measured by now; on a GPU it is waited for. One that was had before is brought up to date.

    Raises:
        TypeError: If one of these is something else.
        ValueError: If model and optimizer do not belong together, the model is on several devices, there is no such
            level, or `validation` has no batch.

    Example:
        >>> import torch, trimtab
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(20, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        >>> loss_fn = lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        >>> doctor = trimtab.Doctor(model, optimizer, loss_fn, level="standard")
        >>> x = torch.randn(1000, 20)
        >>> y = (x[:, 0] > 0).long()
        >>> for rows in torch.randint(1000, (300, 32)):
        ...     batch = x[rows], y[rows]
        ...     loss = loss_fn(model, batch)
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     doctor.step(batch, loss)
        ...     optimizer.step()
        >>> print([finding.name for finding in doctor.diagnosis().findings])
        ['learning-rate-too-low']
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss_fn: LossFunction,
        *,
        level: Level = "light",
        validation: Iterable[Any] | None = None,
        every: int = TRY_EVERY,
    ) -> None:
        optimizer = innermost(optimizer)
        check_doctor(model, optimizer, loss_fn, level, validation)
        if not isinstance(every, int) or isinstance(every, bool) or every < 2:
            raise ValueError(f"every must be a whole number of steps, 2 or larger, not {every!r}.")
        self._record = Record(level=level)
        self._model = IsolatedModel(model).model
        self._optimizer, self._loss_fn = optimizer, loss_fn
        self._schedule = Schedule(level, every)
        self._validation = kept_batches(self._model, validation) if validation is not None and level != "light" else []
        compiled = self._model in compiled_layers(model)  # it may be compiled by what it is wrapped in
        self._watch = Watch(self._model, optimizer, hooks=not compiled)
        self._losses: list[Tensor] = []  # on their device still
        self._sent: list[Packed[int]] = []  # losses that are on their way to the host
        self._taken: tuple[Taken, Any] | None = None
        self._followed: Followed | None = None
        self._pool: deque[Any] = deque(maxlen=POOL)
        self._way_from: tuple[int, dict[str, Tensor]] = 0, {}  # an earlier trial's step, and the parameters there
        self._step = 0
        self._attempt("hooks", self._arm)
        if compiled:
            self._problem("activations", "The model is compiled, and hooks would have it compiled anew.")

    def step(self, batch: Any, loss: Tensor) -> None:
        """Look at a step, between backward and `optimizer.step()`.

        Args:
            batch: What `loss_fn` takes.
            loss: The loss of the batch.

        Raises:
            TypeError: At the first call, if the loss is no tensor of one number.
            ValueError: At the first call, if there is no gradient, or the optimizer has taken its step already.
        """
        if not self._step:
            check_step(self._model, loss, stepped=self._watch.stepped)
            self._record.facts = facts_of(self._model, self._optimizer, batch)
        self._attempt("loss", lambda: self._losses.append(loss.detach().reshape(()).clone()))
        self._finish_look()
        if self._taken is not None:
            (taken, own), self._taken = self._taken, None
            self._attempt("look", lambda: self._follow(taken, own, batch))
        if self._pooling(self._step):
            self._attempt("noise", lambda: self._pool.append(copied_batch(batch)))
        if self._schedule.look(self._step):
            self._attempt("look", lambda: self._look(batch))
        self._step += 1
        if self._schedule.look(self._step):
            self._attempt("hooks", self._arm)

    @property
    def record(self) -> Record:  # noqa: D102 - see the class
        self._finish_look()
        self._attempt("loss", self._send_losses)
        self._attempt("loss", self._receive_losses)
        return self._record

    def diagnosis(self) -> Diagnosis:
        """What the doctor has to say by now."""
        return judge(self.record)

    def report(self, path: str | Path) -> None:
        """Write a page with the diagnosis, and what it rests on, to one file that needs no other.

        Raises:
            ModuleNotFoundError: If matplotlib is not installed.
        """
        diagnosis = self.diagnosis()
        kept = RandomState(self._model.modules(), [])  # importing what draws takes a number from Python's generator
        try:
            from trimtab.doctor.page import write_page

            write_page(diagnosis, self.record, Path(path))
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"the page needs {error.name}; pip install '.[lab]' in trimtab's source folder gets it", name=error.name
            ) from error
        finally:
            kept.restore()

    def close(self) -> None:
        """Take the hooks away that wait for the next forward; step() would put them on again."""
        self._watch.disarm()
        self._taken = None

    def __enter__(self) -> Self:
        """For `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """A doctor that nobody has any more looks at nothing."""
        if "_watch" in vars(self):  # it is not there if the doctor could not be made
            self._watch.disarm()

    def _arm(self) -> None:
        known = self._watch.compiled
        self._watch.arm(hooks=self._schedule.hooks(self._step))
        if self._watch.compiled and not known:
            self._problem("activations", "Layers are compiled, and hooks would have them compiled anew.")

    def _look(self, batch: Any) -> None:
        keep = copied_batch(batch) if self._schedule.trial(self._step) else None
        self._taken = self._watch.look(self._step), keep
        for layer, why in self._watch.failures.items():
            self._problem("activations", f"{layer}: {why}")
        self._watch.failures.clear()

    def _follow(self, taken: Taken, own: Any, batch: Any) -> None:
        """The look at the step before, now that it is known where that has led, and its trial."""
        self._receive_losses()  # what was sent at an earlier look
        self._send_losses()
        self._followed, moved = self._watch.follow(taken)
        if not self._schedule.trial(taken.step) or (look := self._finish_look()) is None:
            return
        if self._attempt("trial", lambda: self._try(look, moved, own, batch, self._way_to(taken))):
            for name in self._schedule.probes(len(self._record.trials) - 1):
                probed = self._pooled(own) if name == "noise" else own
                result = probe_model(name, self._model, self._optimizer, self._loss_fn, probed, self._schedule.level)
                if result.problem is not None:
                    self._problem(name, result.problem, taken.step)
                else:
                    self._record.probed.setdefault(name, []).append((taken.step, result))

    def _finish_look(self) -> Look | None:
        """Enter the look that is left, whose numbers were sent to the host at the last step; None if there is none."""
        followed, self._followed = self._followed, None
        looks: list[Look] = []
        if followed is not None:
            self._attempt("look", lambda: looks.append(self._watch.result(followed)), followed.taken.step)
        self._record.looks += looks
        return looks[0] if looks else None

    def _try(self, look: Look, moved: dict[str, Tensor], own: Any, other: Any, path: dict[str, Tensor] | None) -> None:
        rescaled = {**suspicion.large_signals(look), **suspicion.small_signals(look)}
        question = Question(
            path=path,
            without=tuple(suspicion.out_of_proportion(look)),
            rescaled={name: 1 / gain for name, gain in rescaled.items()},
            running=bool(self._record.facts.batchnorms),
            decay=self._record.facts.weight_decay,
            half=look.half,
            validation=self._validation,
        )
        step, lr = look.step, look.lr

        def trial() -> Trial:
            return try_step(self._model, self._loss_fn, moved, own, other, step=step, lr=lr, question=question)

        try:
            self._record.trials.append(trial())
        except CannotMeasure:
            raise
        except Exception as error:
            if not self._validation:
                raise
            question = replace(question, validation=())
            self._record.trials.append(trial())
            self._validation = []  # the rest does not fail
            self._problem("validation", f"{type(error).__name__}: {error}", step)

    def _way_to(self, taken: Taken) -> dict[str, Tensor] | None:
        """The way from an earlier trial to this one, if there is one that is long enough; the next begins here."""
        step, before = self._way_from
        far = before.keys() == taken.before.keys() and taken.step - step >= WAY
        if far or taken.step < WAY:
            self._way_from = taken.step, taken.before
        if not far:
            return None
        moved = _torch.subtract_all(list(taken.before.values()), list(before.values()))
        return dict(zip(taken.before, moved, strict=True))

    def _pooling(self, step: int) -> bool:
        small = 0 < self._record.facts.batch_size <= POOLED_UP_TO
        return small and self._schedule.before_trial(step, POOL)

    def _pooled(self, own: Any) -> Any:
        """A batch that is large enough for noise to be measured in its parts."""
        pool = list(self._pool)
        if len(pool) < 2:
            return own
        try:
            return joined(pool)
        except CannotMeasure:
            return own

    def _send_losses(self) -> None:
        if self._losses:
            self._sent.append(Packed(dict(enumerate(self._losses))))
            self._losses = []

    def _receive_losses(self) -> None:
        while self._sent:
            losses = self._sent.pop(0).arrays()
            self._record.losses += [losses[number].item() for number in range(len(losses))]

    def _attempt(self, what: str, do: Any, step: int | None = None) -> bool:
        """Do something; whether it went well. A training of days must not end because of a measurement."""
        try:
            do()
        except CannotMeasure as error:
            self._problem(what, str(error), step)
        except Exception as error:
            self._problem(what, f"{type(error).__name__}: {error}", step)
        else:
            return True
        return False

    def _problem(self, what: str, sentence: str, step: int | None = None) -> None:
        self._record.problems.append(Problem(step=self._step if step is None else step, what=what, sentence=sentence))
