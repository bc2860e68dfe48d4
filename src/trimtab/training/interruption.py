"""Ctrl-C and SIGTERM during a run: noted first, so that the run can stop after a whole step."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
