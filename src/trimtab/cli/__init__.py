"""The command line: `trimtab`.

Nothing is imported here but what Python has loaded anyway: torch takes a second, in which a person may press Ctrl-C.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Args:
        arguments: What comes after `trimtab`; None: what this process was started with.
    """
    if arguments is not None:
        return _run(arguments)
    with _ending_at_once():
        import trimtab.cli.program  # noqa: F401
    return _run(sys.argv[1:])


def _run(arguments: Sequence[str]) -> int:
    from trimtab.cli.program import run

    return run(arguments)


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """While this is active, a signal ends the process with one sentence.

    During imports an exception would not do: Python and torch run code in which it is printed and passed over. What
    the process ignores, as it does under nohup, it goes on ignoring.
    """

    def end(number: int, frame: object) -> None:
        if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK") == "0":  # one of several says it
            os.write(2, f"trimtab: {'interrupted' if number == signal.SIGINT else 'terminated'}\n".encode())
        os._exit(128 + number)

    previous = {}
    for one in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(one) != signal.SIG_IGN:
            previous[one] = signal.signal(one, end)
    try:
        yield
    finally:
        for one, old in previous.items():
            signal.signal(one, old)
