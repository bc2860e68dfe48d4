"""Trains the runs of an experiment in the test's own process."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trimtab.claims.experiments.registry import Context
from trimtab.training.workers.pool import Advance
from trimtab.training.workers.task import Outcome, Task, train


class InlinePool:
    """One run after the other."""

    def run(self, tasks: Iterable[Task], advance: Advance) -> Iterator[tuple[Task, Outcome]]:
        """Train them."""
        for task in tasks:
            outcome = train(task)
            assert outcome is not None
            yield task, outcome

    def stop(self) -> None:
        """There is nothing to end."""


class InlineEngine:
    """Makes such pools."""

    def default_jobs(self, device: torch.device, threads: int) -> int:
        """One at a time."""
        return 1

    @contextmanager
    def pool(self, number: int, threads: int, device: torch.device) -> Iterator[InlinePool]:
        """A pool."""
        yield InlinePool()


def inline_context(work: Path, size: str = "small") -> Context:
    """What an experiment is run with in a test."""
    return Context(size, torch.device("cpu"), None, work, engine=InlineEngine())
