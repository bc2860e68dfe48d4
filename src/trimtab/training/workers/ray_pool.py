"""A pool of Ray tasks, on this machine or on the nodes of a cluster, which share the folder of the runs."""

import _thread
import os
import platform
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trimtab.data.places import data_root
from trimtab.records import EVENTS, UNFINISHED, last_step
from trimtab.training.workers.pool import SECONDS_TO_STOP, Advance, TrainingFailed, error_of, with_second_try
from trimtab.training.workers.task import Failure, Outcome, Task, attempt, loaded

SECONDS_BETWEEN_LOOKS = 0.5
"""How often the records of the runs are looked at, to see how far they are."""
SECONDS_BETWEEN_MARKS = 0.1
"""How often a task looks whether it shall go on."""
MARK = f".ray{UNFINISHED}"
"""A file beside the folders of the runs, by which a node knows that it sees the same folder as the driver."""


class RayPool:
    """A `WorkerPool` of Ray tasks; `RayEngine.pool` makes one.

    A task returns what its run came to. How far it is, the pool reads in the records of the run.
    """

    def __init__(self, ray: Any, number: int, threads: int, gpus: float, deliver: Callable[[], None]) -> None:
        """Prepare the pool.

        Args:
            ray: The package, connected.
            number: Tasks at a time.
            threads: Threads of each.
            gpus: Of each; a part of one if several tasks share it.
            deliver: Delivers signals that are held back: called often, where an exception does no harm.
        """
        self._ray, self._number, self._threads, self._deliver = ray, number, threads, deliver
        # Ray would try again at once, beside the other tasks.
        self._train = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_train)
        self._running: dict[Any, Task] = {}
        self._mark = secrets.token_hex(8)
        self._marked: set[Path] = set()

    def run(self, tasks: Iterable[Task], advance: Advance) -> Iterator[tuple[Task, Outcome]]:
        """Start all tasks in order, and yield each when it is done.

        Args:
            tasks: The runs.
            advance: Called with a task and the number of steps it has taken, from time to time.

        Raises:
            TrainingFailed: If a run fails, or its process dies twice.
        """
        yield from with_second_try(partial(self._run, advance), tasks, self._number)

    def _run(
        self, advance: Advance, tasks: list[Task], at_a_time: int, died: list[Task]
    ) -> Iterator[tuple[Task, Outcome]]:
        """Train so many at a time; tasks whose process dies are put into `died`."""
        waiting = tasks[::-1]
        while waiting or self._running:
            while waiting and len(self._running) < at_a_time:
                self._submit(waiting.pop())
            done, _ = self._ray.wait(list(self._running), timeout=SECONDS_BETWEEN_LOOKS)
            self._deliver()
            for reference in done:
                task = self._running.pop(reference)
                message = self._result(reference, task)
                if isinstance(message, Outcome):
                    yield task, message
                elif isinstance(message, Failure):
                    raise error_of(task, message)
                else:
                    died.append(task)
            for task in self._running.values():
                step = last_step(task.folder / EVENTS)
                if step is not None:
                    advance(task, step)

    def _submit(self, task: Task) -> None:
        """Hand a task to Ray, with paths that do not depend on where a process was started."""
        folder = task.folder.absolute()
        if folder.parent not in self._marked:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._marked.add(folder.parent)
            (folder.parent / MARK).write_text(self._mark)
        sent = replace(task, folder=folder, data_root=data_root(task.data_root).absolute())
        self._running[self._train.remote(sent, self._threads, self._mark)] = task

    def _result(self, reference: Any, task: Task) -> Outcome | Failure | None:
        """What a task returned; None if its process died."""
        errors = self._ray.exceptions
        try:
            result: Outcome | Failure | None = self._ray.get(reference)
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError, errors.TaskCancelledError):
            return None
        except errors.RayError as error:
            why = str(error).strip().splitlines()[-1].rstrip(".")
            needed = ""
            if isinstance(error, errors.RayTaskError):  # errors of the training are returned: it did not come so far
                needed = "; all nodes need the same versions of trimtab and torch"
            raise TrainingFailed(f"Ray could not train the run {task.run.name}: {why}{needed}") from error
        return result

    def stop(self) -> None:
        """End all tasks; a run that is under way leaves a checkpoint.

        Tasks end when their mark is gone; those that take longer end with the connection. Ray could be told to cancel
        or kill them, but a task that returns just then would abort this process (Ray 2.60).
        """
        running, marked = list(self._running), list(self._marked)
        self._running.clear()
        self._marked.clear()
        deadline = time.monotonic() + SECONDS_TO_STOP
        for folder in marked:
            (folder / MARK).unlink(missing_ok=True)
        while running and time.monotonic() < deadline:
            _, running = self._ray.wait(running, num_returns=len(running), timeout=SECONDS_BETWEEN_LOOKS)
            self._deliver()


def _train(task: Task, threads: int, mark: str) -> Outcome | Failure | None:
    """What a task does on its node; None if it was interrupted."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as under nohup; a task is interrupted by this signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(threads)
    node, runs = platform.node(), task.folder.parent
    seen = None
    with suppress(OSError):
        seen = (runs / MARK).read_text()
    if seen != mark:
        return Failure(f"the node {node} does not see {runs}; name a folder that all nodes share with --out", False)
    try:
        loaded(task.run.settings.data, task.data_root)
    except (OSError, ValueError) as error:
        return Failure(f"the node {node} lacks the data: {error}", is_defect=False)
    try:
        with _interrupted_without(runs / MARK):
            return attempt(task, lambda step: None)
    except torch.OutOfMemoryError:
        os._exit(1)  # which frees the device's memory; the run is tried again


@contextmanager
def _interrupted_without(mark: Path) -> Iterator[None]:
    """Interrupt the main thread, as Ctrl-C does, once a file is gone."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(SECONDS_BETWEEN_MARKS):
            if not mark.exists():
                _thread.interrupt_main()
                return

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()
