"""The time that training takes, without what is done in between."""

import time
from collections.abc import Callable


class Clock:
    """A stopwatch that can be started again.

    A GPU does its work after Python has asked for it, so that the time of a step is not that between two lines of
    Python. The clock therefore runs on over many steps, and waits for the device when it is stopped, and only then.

    Attributes:
        seconds: The time up to the last stop.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        """Start at 0 seconds, not running.

        Args:
            wait: Waits until the device has done its work.
        """
        self.seconds = 0.0
        self._wait = wait
        self._started: float | None = None

    def start(self) -> None:
        """Start, unless it runs already."""
        if self._started is None:
            self._started = time.monotonic()

    def stop(self) -> None:
        """Stop, if it runs, after the device has finished its work."""
        if self._started is not None:
            self._wait()
            self.seconds += time.monotonic() - self._started
            self._started = None
