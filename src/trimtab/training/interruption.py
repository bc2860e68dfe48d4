"""Ctrl-C and SIGTERM: noted first during a run, so that it can stop after a whole step; or delayed for a while."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTIONS = {signal.SIGINT, signal.SIGTERM}


@contextmanager
def interruptions_delayed() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM for a while. A process that is started meanwhile inherits that until it unblocks them."""
    if not hasattr(signal, "pthread_sigmask"):  # not on this system
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptible(*, once: bool = True) -> Iterator[Callable[[], int]]:
    """While the context is active, the first Ctrl-C or SIGTERM is only noted; a second one ends the program as usual.

    Yields a function that returns the number of the signal, or 0 if there was none. Signals that the process ignores,
    as under nohup, stay ignored.

    Args:
        once: Whether a second one ends the program; otherwise all are only noted.
    """
    noted = 0

    def handle(number: int, frame: object) -> None:
        nonlocal noted
        noted = number
        for one in previous if once else ():
            signal.signal(one, previous[one])

    previous: dict[signal.Signals, Any] = {}
    try:
        for one in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(one) != signal.SIG_IGN:
                previous[one] = signal.signal(one, handle)
    except ValueError:  # not in the main thread, where signals cannot be handled
        previous.clear()
    try:
        yield lambda: noted
    finally:
        for one, old in previous.items():
            signal.signal(one, old)
