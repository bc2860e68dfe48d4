"""Runs probes in a training loop, from time to time, and writes down what they find."""

import time
import warnings
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn

from trimtab.probes.result import LossFunction, Probe, Result
from trimtab.records import EventLog, Probed


class Monitor:
    """Calls probes every so many steps. Nothing that goes wrong in a probe reaches the training.

    Call it before each step, with the batch of that step: the gradient that is looked at is then the one that the step
    takes.

    Args:
        probes: What to measure.
        every: Steps between two measurements, beginning with the first.
        at: Measure at these steps instead, counted from 0.
        log: A file of records, one line of JSON for each measurement; one that is there is gone on with.
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
        self.probes = tuple(probes)
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number of steps, 1 or larger, not {every!r}.")
        names = [probe.name for probe in self.probes]
        if len({*names}) < len(names):
            raise ValueError(f"probes must have different names, not {', '.join(names)}.")
        self.every = every
        if any(isinstance(step, bool) or not isinstance(step, int) or step < 0 for step in at):
            raise ValueError(f"at must be whole numbers of steps, 0 or larger, not {at!r}.")
        self.at = frozenset(at)
        self.step = 0
        self._log = None if log is None else _opened(Path(log))

    def __call__(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> dict[str, Result]:
        """Measure what is due at this step; returns results by the probes' names."""
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
            warnings.warn(f"Measurements are no longer written down: {error}", stacklevel=2)
        return {event.probe: result for event, result in events}

    def measure(self, step: int, model: nn.Module, loss_fn: LossFunction, batch: Any) -> list[tuple[Probed, Result]]:
        """The same for a step that is named, as records; nothing is written."""
        found = []
        for probe in self.probes:
            if self.due(step, probe):
                started = time.monotonic()
                result, told = _attempt(probe, model, loss_fn, batch)
                found.append((Probed(step, probe.name, told, time.monotonic() - started), result))
        return found

    def due(self, step: int, probe: Probe[Any]) -> bool:
        """Whether a probe is to be called before a step; one that looks at changes also before the next."""
        return self._chosen(step) or (probe.successive and step > 0 and self._chosen(step - 1))

    def _chosen(self, step: int) -> bool:
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
    """What a probe found, and the same for a record."""
    try:
        result: Result = probe(model, loss_fn, batch)
        return result, result.to_dict()
    except Exception as error:  # a training of days must not end because of a measurement
        failed = probe.result(problem=f"{type(error).__name__}: {error}")
        return failed, failed.to_dict()


def _opened(path: Path) -> EventLog:
    size = path.stat().st_size if path.exists() else 0
    return EventLog(path, keep=size or None)
