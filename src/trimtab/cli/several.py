"""A command in several processes that torchrun has started: they end together, and one of them says why."""

import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from trimtab.cli.common import FAILED, CommandError
from trimtab.training.processes import Processes

_TIMEOUT = timedelta(minutes=30)
"""After that a process that does not answer is given up, while the others wait for it."""


class _Group:
    """The processes, once this one has joined them.

    Attributes:
        store: What all of them can read and write.
        failed: Whether this one has failed, so that it takes part in nothing any more.
    """

    def __init__(self, store: Any) -> None:
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        self.store = PrefixStore("trimtab", store)
        self.failed = False


_group: _Group | None = None


def launched() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def check_command(command: str) -> None:
    """Refuse commands under torchrun that do not divide their work.

    Raises:
        CommandError: If it is another one than `train`.
    """
    if launched() and command != "train":
        raise CommandError(f"trimtab {command} does not run under torchrun, only train does; start it without")


@contextmanager
def joined() -> Iterator[None]:
    """Join the other processes, if torchrun has started several; all but the first one print nothing from then on.

    Raises:
        CommandError: If they cannot be reached.
    """
    global _group
    if not launched() or int(os.environ.get("WORLD_SIZE", 1)) <= 1:
        yield
        return
    gpu = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        from torch.distributed.rendezvous import rendezvous

        store, rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise CommandError(f"the processes of torchrun cannot reach each other: {error}", FAILED) from error
    _group = _Group(store)
    if Processes.of_group().first:
        yield
        return
    sys.stdout = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def first_speaks() -> Iterator[None]:
    """Within, what is printed by all processes alike is printed by the first one only."""
    with redirect_stderr(sys.stderr if Processes.of_group().first else io.StringIO()):
        yield


@contextmanager
def needing_all(out: Path | None = None, go_on: str = "") -> Iterator[None]:
    """Turn the failure of an exchange, which means that another process has gone, into a sentence.

    If that one has said why, `first_to_fail` keeps this sentence from being printed.

    Args:
        out: The folder that is written to.
        go_on: How to resume, if that is still there.
    """
    try:
        yield
    except RuntimeError as error:
        if _group is None or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        how = f"; {go_on}" if out is not None and out.exists() else ""
        raise CommandError(f"another process has ended{how}", FAILED) from error


def first_to_fail(status: int) -> tuple[int, bool]:
    """Note that this process fails, and find out whether it is the first of all: the one that says why.

    Returns:
        The exit status of the first, and whether that is this process.
    """
    if _group is None:
        return status, True
    _group.failed = True
    rank = dist.get_rank()
    try:  # set if nothing is there yet, in one operation
        which, theirs = map(int, _group.store.compare_set("failed", "", f"{rank} {status}").split())
    except RuntimeError:  # the machine that keeps the store has gone
        return status, rank == 0
    return theirs, which == rank


def leave(status: int) -> int:
    """End this process, if it is one of several, else return the status.

    One that has not failed waits for the others: torchrun ends all by a signal as soon as one has left with a status
    other than 0, and the first one may still have something to print. Nothing of Python's own end comes after that: the
    threads of a group can wait for each other then.
    """
    if _group is None:
        return status
    if not _group.failed:
        with suppress(RuntimeError):
            Processes.of_group().largest(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def fail_unexpectedly() -> int:
    """The status after an error that nobody has foreseen; its traceback is printed if no other process has failed."""
    status, first = first_to_fail(FAILED)
    if first:
        traceback.print_exc()
    return status


def with_torchrun(command: str) -> str:
    """A command of trimtab as it is typed to start as many processes as there are now."""
    processes = Processes.of_group()
    if not processes.several:
        return command
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes.size))
    nodes = f"--nnodes {processes.size // here} " if here < processes.size else ""
    return f"torchrun {nodes}--nproc-per-node {here} -m {command}"
