"""Processes that run cases together, each time in a new gloo group; a hang is a failure."""

import faulthandler
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

TIMEOUT = 60.0  # seconds that a case may take

# The last group. If DistributedDataParallel were the last to let go of it, it would wait for the group's threads and
# hold the interpreter's lock, which these may wait for; Python's own reference lets go of the lock first.
_LAST_GROUP: list[Any] = []


class Pool:
    """So many processes, which have imported what they need and wait for cases."""

    def __init__(self, size: int) -> None:
        """Start them when the first case comes."""
        self.size = size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, case: Callable[..., Any], *args: Any, timeout: float = TIMEOUT) -> list[Any]:
        """Call `case(rank, size, store, *args)` in each process; what each has returned, by rank.

        Raises:
            RuntimeError: If one has raised, has died, or does not answer in time.
        """
        if not self._processes:
            self._start()
        with tempfile.TemporaryDirectory() as folder:
            for rank, pipe in enumerate(self._pipes):
                pipe.send((case, (rank, self.size, os.path.join(folder, "store"), *args)))
            answers: dict[int, Any] = {}
            errors: list[str] = []
            while len(answers) < self.size and not errors:
                waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
                ready = wait(list(waiting), timeout)
                if not ready:
                    errors.append(f"no answer from {sorted(waiting.values())} within {timeout} seconds")
                for pipe in ready:
                    rank = waiting[pipe]  # type: ignore[index]
                    try:
                        succeeded, answer = pipe.recv()  # type: ignore[union-attr]
                    except EOFError:
                        succeeded, answer = False, "the process died"
                    answers[rank] = answer
                    if not succeeded:
                        errors.append(f"process {rank}: {answer}")
        if errors:
            self.stop()
            raise RuntimeError("\n".join(errors))
        return [answers[rank] for rank in range(self.size)]

    def stop(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for _ in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            case, args = pipe.recv()
        except EOFError:
            return
        faulthandler.dump_traceback_later(TIMEOUT - 10, file=sys.__stderr__)  # where it hangs, if it does
        try:
            pipe.send((True, case(*args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def process_group(rank: int, size: int, store: str, seconds: float = 30) -> Iterator[None]:
    """Within, the processes are a group."""
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
    )
    _LAST_GROUP[:] = [distributed.group.WORLD]
    try:
        yield
        distributed.barrier()  # nobody leaves while another one still listens
    finally:
        distributed.destroy_process_group()
