"""What tests of training have in common."""

import signal


def heeds_interruptions() -> None:
    """For a new process: it does not ignore Ctrl-C, even if the tests run in the background, where that is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
