"""A pool of processes on this machine."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess

import torch

from trimtab.records import memory, usable_cores
from trimtab.training.interruption import INTERRUPTIONS
from trimtab.training.workers.gpu_sharing import runs_on_a_gpu
from trimtab.training.workers.pool import SECONDS_TO_STOP, Advance, error_of, with_second_try
from trimtab.training.workers.task import Failure, Outcome, Task, attempt

PROCESSES: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
"""How processes are started: as new ones, since CUDA does not survive a fork."""


class LocalPool:
    """A `WorkerPool` of processes on this machine; `LocalEngine.pool` makes one.

    Each process has a connection of its own, through which it gets tasks and sends how far it is. A process that dies
    is replaced.
    """

    def __init__(self, number: int, threads: int) -> None:
        """Prepare the pool. Processes are started when there are tasks for them.

        Args:
            number: Processes at a time.
            threads: Threads of each.
        """
        self._number, self._threads = number, threads
        self._started: list[BaseProcess] = []
        self._free: list[tuple[BaseProcess, Connection]] = []
        self._busy: dict[Connection, tuple[BaseProcess, Task]] = {}

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
                    raise error_of(task, message)
                else:
                    died.append(task)

    def _start(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = PROCESSES.Pipe()
        process = PROCESSES.Process(target=_serve, args=(theirs, self._threads))
        with _interruptions_delayed():
            process.start()
            self._started.append(process)  # at once: whatever comes next, `stop` ends it
        theirs.close()
        return process, ours

    def stop(self) -> None:
        """End all processes; a run that is under way leaves a checkpoint."""
        processes = self._started
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


class LocalEngine:
    """Processes on this machine."""

    def default_jobs(self, device: torch.device, threads: int) -> int:
        """As many as this machine has room for."""
        return default_jobs(device, threads)

    @contextmanager
    def pool(self, number: int, threads: int, device: torch.device) -> Iterator[LocalPool]:
        """A pool of so many processes with so many threads each, stopped when the block ends."""
        pool = LocalPool(number, threads)
        try:
            yield pool
        finally:
            pool.stop()


@contextmanager
def _interruptions_delayed() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM for a while. A process that is started meanwhile inherits that, until it unblocks them.

    Otherwise it would print a traceback if it is interrupted while it imports torch; and where processes are forked,
    Python calls functions around the fork whose exceptions it ignores, that of a signal's handler among them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on this system
        yield
        return
    resource_tracker.ensure_running()  # multiprocessing starts it with the first process, and unblocks signals then
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, threads: int) -> None:
    """The main loop of a worker process: one task after another, until its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the parent's to handle
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            message = attempt(task, pipe.send)
        except torch.OutOfMemoryError:
            return
        if message is None:
            return
        with suppress(BrokenPipeError):
            pipe.send(message)


def _end_with_parent() -> None:
    """End this process when its parent ends, so that it does not write to a folder that another comparison uses."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def default_jobs(device: torch.device, threads: int = 1) -> int:
    """How many runs can be trained at a time without slowing each other down.

    On a CPU as many as have a core, or several, for themselves, and a gigabyte of memory. On a GPU they share more than
    that: see `gpu_sharing`.
    """
    cores = usable_cores() // threads
    runs = min(cores, memory() >> 30) if device.type == "cpu" else runs_on_a_gpu(cores, device)
    return max(runs, 1)
