"""Delays Ctrl-C while a model is being changed or restored; computations in between can be interrupted."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class DeferredSignals:
    """Delays SIGINT and SIGTERM until the next `delivered` block, or the end of the context.

    Only handlers written in Python can wait. Outside of the main thread, where Python calls no handler, it does
    nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._pending: list[int] = []
        self._delivering = False
        self._delivered = False  # whether a handler was called

    def __enter__(self) -> Self:
        """Replace the handlers."""
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
        """Put the handlers back, and call those whose signal is pending, unless a handler has raised already."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if kind is None or not self._delivered:
            self._call_pending()

    @contextmanager
    def delivered(self) -> Iterator[None]:
        """Deliver signals at once while this is active, first those that are pending."""
        self._delivering = True
        try:
            self._call_pending()
            yield
        finally:
            self._delivering = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._delivering:
            self._delivering, self._delivered = False, True  # no second one while the exception of the first unwinds
            self._handlers[number](number, frame)
        else:
            self._pending.append(number)

    def _call_pending(self) -> None:
        pending, self._pending = self._pending, []
        self._delivered = self._delivered or bool(pending)
        for number in pending:
            self._handlers[number](number, None)
