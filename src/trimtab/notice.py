"""What a user should hear of, with the line of the user's own code that led to it."""

import contextlib
import os
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType

import torch

# Where frames are not the user's.
_NOT_THE_USERS = (
    str(Path(__file__).parent) + os.sep,
    str(Path(torch.__file__).parent) + os.sep,
    str(contextlib.__file__),
    "<frozen ",
)


class TrimtabWarning(UserWarning):
    """Something a user should know of that does not stop the training."""


def say(message: str) -> None:
    """Warn, and show the line outside trimtab and torch that led here.

    Whoever calls this sees to it that it is said once.
    """
    frame = _users_frame()
    if frame is None:
        warnings.warn(message, TrimtabWarning, stacklevel=2)
        return
    warnings.warn_explicit(
        message,
        TrimtabWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__", "__main__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _users_frame() -> FrameType | None:
    """The innermost frame that is neither ours nor torch's.

    A hook of a backward on a GPU runs in a thread of torch's, which has none. The main thread waits for it then, in the
    line that called the backward.
    """
    waiting = sys._current_frames().get(threading.main_thread().ident or 0)
    for innermost in (sys._getframe(1), waiting):
        frame = innermost
        while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            frame = frame.f_back
        if frame is not None:
            return frame
    return None
