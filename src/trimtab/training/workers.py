"""Processes that train, several at a time.

Each has a connection of its own, through which it gets runs and tells how far it is. A process that dies is replaced
and its run tried once more, with nothing beside it, since most such deaths are for want of memory.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from trimtab.data import Dataset, load
from trimtab.records import EVENTS, Evaluated, History
from trimtab.training import folder as folders
from trimtab.training.grid import Planned
from trimtab.training.launch import CannotTrain, launch
from trimtab.training.run import CHECKPOINT, Ending, Progress
from trimtab.training.session import Session
from trimtab.training.settings import Settings

SECONDS_TO_STOP = 20.0
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Task:
    """A run to be done.

    Attributes:
        run: What is trained.
        folder: Where it is recorded.
        command: What a person typed to have it.
        device: Where it is trained.
        data_root: The folder of the data sets.
    """

    run: Planned
    folder: Path
    command: str
    device: torch.device
    data_root: Path | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run came out.

    Attributes:
        last: The last evaluation; None if it diverged or could not begin.
        why_not: Why it could not begin.
    """

    last: Evaluated | None = None
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed that should not have: in one sentence, or, where nobody expects it, where it happened."""

    why: str
    expected: bool


class TrainingFailed(RuntimeError):  # noqa: N818
    """A run that ended neither well nor in divergence."""


def outcome_of(folder: Path, settings: Settings, *, tidy: bool = True) -> Outcome | None:
    """The outcome of a run that was done before; None if it was not, or not to its end.

    Args:
        folder: Of the run.
        settings: Of the run.
        tidy: Whether to remove its checkpoint, if the process ended before it could.
    """
    if not (folder / EVENTS).exists() or not folders.holds(folder, settings):
        return None
    try:
        history = History.read(folder)
    except ValueError:
        return None
    if history.ended is None or history.ended.verdict == "interrupted":
        return None
    if tidy:
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return Outcome(history.evaluated[-1] if history.ended.verdict == "finished" else None)


def do(task: Task, show: Callable[[Progress], None] | None = None) -> Outcome | None:
    """Do a run, or the rest of one that was stopped; None if it is stopped now."""
    try:
        try:
            ending = _launch(task, show, resume=folders.holds(task.folder, task.run.settings))
        except CannotTrain:
            raise
        except ValueError:  # what is there cannot be gone on with
            ending = _launch(task, show, resume=False)
    except CannotTrain as error:
        return Outcome(why_not=str(error))
    if ending.verdict == "interrupted":
        return None
    (task.folder / CHECKPOINT).unlink(missing_ok=True)  # nothing is left to go on with
    return Outcome(ending.evaluations[-1] if ending.verdict == "finished" else None)


def _launch(task: Task, show: Callable[[Progress], None] | None, *, resume: bool) -> Ending:
    session = _session(task.run.settings, task.device, task.data_root)
    return launch(session, task.folder, resume=resume, force=True, command=task.command, show=show)


def _session(settings: Settings, device: torch.device, data_root: Path | None) -> Session:
    dataset = _loaded(settings.data, data_root)
    try:
        return Session(settings, device, dataset=dataset)
    except ValueError as error:  # a norm that this network cannot have, say
        raise CannotTrain(str(error)) from error


@lru_cache(maxsize=1)
def _loaded(name: str, root: Path | None) -> Dataset:
    return load(name, root)


class Workers:
    """So many processes of so many threads each; made by `workers`."""

    def __init__(self, number: int, threads: int) -> None:
        """Nothing is started before there is something to do."""
        self._number, self._threads = number, threads
        self._free: list[tuple[BaseProcess, Connection]] = []
        self._busy: dict[Connection, tuple[BaseProcess, Task]] = {}

    def run(self, tasks: Iterable[Task], advance: Callable[[Task, int], None]) -> Iterator[tuple[Task, Outcome]]:
        """Do all of these, in order, and give back each as it is done.

        Args:
            tasks: The runs.
            advance: Told at which step a run is.

        Raises:
            TrainingFailed: If a run fails, or its process dies twice.
        """
        again: list[Task] = []
        yield from self._run(list(tasks), self._number, advance, again)
        failed: list[Task] = []
        yield from self._run(again, 1, advance, failed)
        if failed:
            raise TrainingFailed(f"the process of the run {failed[0].run.name} died twice, for want of memory perhaps")

    def _run(
        self, tasks: list[Task], at_a_time: int, advance: Callable[[Task, int], None], failed: list[Task]
    ) -> Iterator[tuple[Task, Outcome]]:
        waiting = tasks[::-1]
        while waiting or self._busy:
            while waiting and len(self._busy) < at_a_time:
                process, pipe = self._free.pop() if self._free else self._start()
                try:
                    pipe.send(waiting[-1])
                except OSError:  # it has died while it had nothing to do
                    continue
                self._busy[pipe] = process, waiting.pop()
            for ready in multiprocessing.connection.wait(list(self._busy)):
                assert isinstance(ready, Connection)
                process, task = self._busy[ready]
                try:
                    message = ready.recv()
                except (EOFError, OSError):
                    message = None
                if isinstance(message, int):
                    advance(task, message)
                    continue
                del self._busy[ready]
                if message is not None:
                    self._free.append((process, ready))
                if isinstance(message, Outcome):
                    yield task, message
                elif isinstance(message, Failure):
                    kind = TrainingFailed if message.expected else RuntimeError
                    raise kind(f"the run {task.run.name} failed: {message.why}")
                else:
                    failed.append(task)

    def _start(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_work, args=(theirs, self._threads))
        process.start()
        theirs.close()
        return process, ours

    def stop(self) -> None:
        """End them all; a run under way leaves a checkpoint."""
        processes = [process for process, _ in [*self._free, *self._busy.values()]]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + SECONDS_TO_STOP
        try:
            for process in processes:
                process.join(max(deadline - time.monotonic(), 0))
        finally:
            for process in processes:
                process.kill()
                process.join()


@contextmanager
def workers(number: int, threads: int) -> Iterator[Workers]:
    """Processes that train, ended when the block ends."""
    started = Workers(number, threads)
    try:
        yield started
    finally:
        started.stop()


def _work(pipe: Connection, threads: int) -> None:
    """What a process does: runs, one after another, as long as its parent lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        message: Outcome | Failure | None
        try:
            message = do(task, lambda progress: pipe.send(progress.step))
        except torch.OutOfMemoryError:
            return  # the device's memory is given back when the process ends
        except OSError as error:
            message = Failure(f"{task.folder}: {error.strerror or error}", expected=True)
        except ValueError as error:
            message = Failure(str(error), expected=True)
        except Exception:
            message = Failure(traceback.format_exc(), expected=False)
        if message is None:  # told to stop
            return
        with suppress(BrokenPipeError):
            pipe.send(message)


def _end_with_parent() -> None:
    """No orphan goes on writing into a folder that the next comparison may take up."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
