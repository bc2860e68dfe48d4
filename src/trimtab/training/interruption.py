"""Ctrl-C and SIGTERM: noted first during a run, so that it can stop after a whole step, or held back for a while."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """While the context is active, Ctrl-C and SIGTERM are only noted, for code in which an exception would do harm.

    Yields a function that does with a noted signal what would have been done with it; so does the end of the context.
    """
    noted: list[int] = []
    previous: dict[signal.Signals, Any] = {}
    _handle(lambda number, frame: noted.append(number), previous)

    def deliver() -> None:
        if noted:
            number = signal.Signals(noted.pop())
            noted.clear()
            if callable(previous[number]):
                previous[number](number, None)
            else:
                signal.signal(number, previous[number])
                signal.raise_signal(number)

    try:
        yield deliver
    finally:
        for one, old in previous.items():
            signal.signal(one, old)
    deliver()


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
    _handle(handle, previous)
    try:
        yield lambda: noted
    finally:
        for one, old in previous.items():
            signal.signal(one, old)


def _handle(handle: Callable[[int, object], None], previous: dict[signal.Signals, Any]) -> None:
    """Set a handler for both, where they are not ignored; those that were there are put into `previous` one by one."""
    with suppress(ValueError):  # not in the main thread, where signals cannot be handled
        for one in INTERRUPTIONS:
            if signal.getsignal(one) != signal.SIG_IGN:
                previous[one] = signal.signal(one, handle)
