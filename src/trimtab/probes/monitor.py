"""Runs probes in a training loop, every so many steps, and records their results."""

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn

from trimtab.notice import warn_user
from trimtab.probes.options import check_call, described
from trimtab.probes.result import LossFunction, Probe, Result
from trimtab.records import EventLog, Probed


class Monitor:
    """Calls probes every so many steps. Nothing that goes wrong in a probe reaches the training, except a warning.

    Call it before each step, with the batch of that step: the gradient that is measured is then the one that the step
    takes.

    Args:
        probes: What to measure.
        every: Steps between two measurements, beginning with the first.
        at: Measure at these steps instead, counted from 0.
        log: A file of records, one line of JSON for each measurement; an existing one is continued.
            `trimtab.records.read_events` reads it.

    Attributes:
        step: The step that comes next.

    Example:
        >>> import torch
        >>> from trimtab.probes import Landscape, Monitor
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loss_fn = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
        >>> monitor = Monitor([Landscape(optimizer=optimizer)], every=2)
        >>> for _ in range(4):
        ...     batch = torch.randn(8, 3), torch.randn(8, 1)
        ...     for name, result in monitor(model, loss_fn, batch).items():
        ...         print(name, len(result.losses))
        ...     optimizer.zero_grad()
        ...     loss_fn(model, batch).backward()
        ...     optimizer.step()
        landscape 8
        landscape 8
    """

    def __init__(
        self,
        probes: Iterable[Probe[Any]],
        *,
        every: int = 64,
        at: Collection[int] = (),
        log: str | Path | None = None,
    ) -> None:
        self.probes = tuple(probes) if isinstance(probes, Iterable) else (probes,)
        for probe in self.probes:
            if not isinstance(probe, Probe):
                raise ValueError(f"probes must be probes, such as [Landscape(step_size=0.1)], not {described(probe)}.")
        if not _is_step(every, least=1):
            raise ValueError(f"every must be a whole number of steps, 1 or larger, not {every!r}.")
        names = [probe.name for probe in self.probes]
        if len({*names}) < len(names):
            raise ValueError(f"probes must have different names, not {', '.join(names)}.")
        self.every = every
        if not isinstance(at, Collection) or not all(_is_step(step, least=0) for step in at):
            raise ValueError(f"at must be a list of whole numbers of steps, 0 or larger, not {at!r}.")
        self.at = frozenset(at)
        self.step = 0
        self._log = None if log is None else _opened(log)
        self._called = False
        self._failed: set[str] = set()

    def __call__(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> dict[str, Result]:
        """Measure what is due at this step.

        Returns:
            Results by the probes' names, of those that were due: at most steps there is none. A result whose `problem`
            is not None has no numbers; the first such result of each probe is also warned of.

        Raises:
            TypeError: At the first call, if `loss_fn` cannot be called with a model and a batch.
        """
        events = self.measure(self.step, model, loss_fn, batch)
        self.step += 1
        try:
            for event, _ in events:
                if self._log is not None:
                    self._log.write(event)
        except (OSError, TypeError, ValueError) as error:
            with suppress(OSError):
                self.close()
            self._log = None
            warn_user(f"Measurements are no longer written down: {error}")
        return {event.probe: result for event, result in events}

    def measure(self, step: int, model: nn.Module, loss_fn: LossFunction, batch: Any) -> list[tuple[Probed, Result]]:
        """The same for a step that is named, as records; nothing is written."""
        if not self._called:  # a mistake of every step, found before there is a training to be spared
            check_call(model, loss_fn)
            self._called = True
        measured = []
        for probe in self.probes:
            if self.due(step, probe):
                started = time.monotonic()
                result, record = _attempt(probe, model, loss_fn, batch)
                measured.append((Probed(step, probe.name, record, time.monotonic() - started), result))
                if result.problem is not None and probe.name not in self._failed:
                    self._failed.add(probe.name)
                    warn_user(
                        f"The probe {probe.name!r} measured nothing at step {step}: {_first_line(result.problem)} "
                        "This is said once; later failures are in `problem` of its results."
                    )
        return measured

    def due(self, step: int, probe: Probe[Any]) -> bool:
        """Whether a probe is to be called before a step; one that looks at changes also before the next."""
        return self._is_due(step) or (probe.successive and step > 0 and self._is_due(step - 1))

    def _is_due(self, step: int) -> bool:
        return step in self.at if self.at else step % self.every == 0

    def close(self) -> None:
        """Close the file of records."""
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        """For `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file of records."""
        self.close()


def _attempt(probe: Probe[Any], model: nn.Module, loss_fn: LossFunction, batch: Any) -> tuple[Result, dict[str, Any]]:
    """The result of a probe, and the same as a record."""
    try:
        result: Result = probe(model, loss_fn, batch)
        return result, result.to_dict()
    except Exception as error:  # a training of days must not end because of a measurement
        failed = probe.result(problem=f"{type(error).__name__}: {error}")
        return failed, failed.to_dict()


def _opened(log: str | Path) -> EventLog:
    if not isinstance(log, str | Path):
        raise ValueError(f"log must be the path of a file, not {described(log)}.")
    path = Path(log)
    size = path.stat().st_size if path.exists() else 0
    return EventLog(path, keep=size or None)


def _is_step(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _first_line(problem: str) -> str:
    line = problem.strip().partition("\n")[0]
    return line if line.endswith((".", "!", "?")) else f"{line}."
