"""Ctrl-C waits while a model is being changed or put back, and comes through while something is computed with it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Shield:
    """Within, Python's handlers of SIGINT and SIGTERM are called at the next `opened`, or at the end.

    Outside of the main thread, where no handler can be set and none is called, it does nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: list[int] = []
        self._open = False

    def __enter__(self) -> Self:
        """Put our handler in place of the others."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the handlers back, and call those that have waited."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if kind is None:
            self._call_waiting()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Within, signals come through."""
        self._open = True
        try:
            self._call_waiting()
            yield
        finally:
            self._open = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._open:
            self._open = False  # what the handler raises must find its way out in peace
            self._handlers[number](number, frame)
        else:
            self._waiting.append(number)

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            self._handlers[number](number, None)
