"""The seam between runs and who trains them: a pool is given tasks and yields their outcomes.

`local_pool.py` and `ray_pool.py` are the two kinds of pools there are; `engines.py` chooses one of them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from trimtab.training.workers.task import Failure, Outcome, Task

Advance = Callable[[Task, int], None]
"""Called with a task and the number of steps it has taken, from time to time."""
SECONDS_TO_STOP = 20.0
"""So long workers may take to end by themselves, with a checkpoint."""


class TrainingFailed(RuntimeError):  # noqa: N818
    """A run that ended with an error."""


class WorkerPool(Protocol):
    """Trains tasks, several at a time.

    A run whose worker dies is tried once more with nothing beside it, since most such deaths are for want of memory; it
    goes on from its checkpoint.
    """

    def run(self, tasks: Iterable[Task], advance: Advance) -> Iterator[tuple[Task, Outcome]]:
        """Start all tasks in order, and yield each when it is done.

        Args:
            tasks: The runs.
            advance: Called with a task and the number of steps it has taken, from time to time.

        Raises:
            TrainingFailed: If a run fails, or its worker dies twice.
        """

    def stop(self) -> None:
        """End all workers; a run that is under way leaves a checkpoint."""


class Engine(Protocol):
    """Makes pools of one kind."""

    def default_jobs(self, device: torch.device, threads: int) -> int:
        """How many runs can be trained at a time without slowing each other down."""

    def pool(self, number: int, threads: int, device: torch.device) -> AbstractContextManager[WorkerPool]:
        """A pool of so many workers with so many threads each, stopped when the block ends."""


def with_second_try(
    train: Callable[[list[Task], int, list[Task]], Iterator[tuple[Task, Outcome]]], tasks: Iterable[Task], number: int
) -> Iterator[tuple[Task, Outcome]]:
    """What `WorkerPool.run` yields.

    Args:
        train: Trains tasks, so many at a time, and puts those whose worker dies into a list.
        tasks: The runs.
        number: How many at a time.

    Raises:
        TrainingFailed: If the worker of a run dies twice.
    """
    died_once: list[Task] = []
    yield from train(list(tasks), number, died_once)
    died_twice: list[Task] = []
    yield from train(died_once, 1, died_twice)
    if died_twice:
        name = died_twice[0].run.name
        raise TrainingFailed(f"the process of the run {name} died twice, for want of memory perhaps")


def error_of(task: Task, failure: Failure) -> RuntimeError:
    """The error that a pool raises when a run has failed."""
    kind = RuntimeError if failure.is_defect else TrainingFailed
    return kind(f"the run {task.run.name} failed: {failure.message}")
