"""Processes that have torch already: forked from a server that imports it once, where a new Python takes seconds.

`Command` is a command line in a process of its own, to be killed and interrupted. `SERVER` is what the pool of workers
starts its processes with in tests (the fixture `forked_workers`).
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

SERVER = multiprocessing.get_context("forkserver")
# What commands import, and what torch imports at an optimizer's first step.
_MODULES = ["trimtab.cli.program", "trimtab.training.compare", "trimtab.report", "sklearn.datasets", "torch._dynamo"]
SERVER.set_forkserver_preload(_MODULES)


class Command:
    """`trimtab` with some words, in a folder, as the leader of its own process group; `first` is called before."""

    def __init__(self, words: list[str], folder: Path, first: Callable[[], None] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._streams = [folder / f".{name}" for name in ("stdout", "stderr")]
        self._process = SERVER.Process(target=_run, args=(words, folder, self._streams, first))
        self._process.start()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the process does; it must still run then."""
        while not condition():
            assert self._process.is_alive(), self.streams()
            time.sleep(0.005)
        assert self._process.is_alive(), self.streams()

    def send(self, number: int, *, to_group: bool = False) -> None:
        """Send a signal, to the process or, as a terminal does, to all that it has started too."""
        assert self._process.pid is not None
        (os.killpg if to_group else os.kill)(self._process.pid, number)

    def end(self) -> int:
        """Wait for its end; returns the exit status, or minus the signal that ended it."""
        self._process.join(120)
        assert self._process.exitcode is not None
        return self._process.exitcode

    def streams(self) -> tuple[str, str]:
        """What it has printed to stdout and stderr."""
        out, err = (path.read_text() if path.exists() else "" for path in self._streams)
        return out, err


def _run(words: list[str], folder: Path, streams: list[Path], first: Callable[[], None] | None) -> None:
    os.setsid()
    os.chdir(folder)
    for descriptor, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    # Ignored if the tests run in the background, and blocked if the server was started by a pool.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    torch.set_num_threads(1)  # as the tests themselves: threads that wait for a busy core take many times as long
    sys.argv = ["trimtab", *words]
    from trimtab.cli import main
    from trimtab.training.workers import local_pool

    # Forked workers would have the handlers of this process, where new ones have none.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL) and None)
    local_pool.PROCESSES = multiprocessing.get_context("fork")  # type: ignore[assignment]
    if first is not None:
        first()
    sys.exit(main())
