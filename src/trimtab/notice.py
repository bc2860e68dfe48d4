"""Warnings for the user, shown with the line of the user's own code that led to them."""

import contextlib
import os
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType

import torch

# Files whose frames are not the user's code.
_NOT_THE_USERS = (
    str(Path(__file__).parent) + os.sep,
    str(Path(torch.__file__).parent) + os.sep,
    str(contextlib.__file__),
    "<frozen ",
)
# Packages whose code is not the user's either: this one, and those that run a training for a user.
_PACKAGES = {
    __name__.split(".")[0],
    "accelerate",
    "lightning",
    "lightning_utilities",
    "pytorch_lightning",
    "transformers",
}


class TrimtabWarning(UserWarning):
    """A warning about the training, which goes on."""


def warn_user(message: str, category: type[Warning] = TrimtabWarning) -> None:
    """Issue a warning that shows the line outside trimtab, torch and frameworks that led here.

    Python shows the same message from the same line once. A caller that is reached from many lines, or with messages
    that differ, has to make sure itself that it warns once.
    """
    frame = _users_frame()
    if frame is None:
        warnings.warn(message, category, stacklevel=2)
        return
    warnings.warn_explicit(
        message,
        category,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__", "__main__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _users_frame() -> FrameType | None:
    """The innermost frame that belongs neither to trimtab nor to torch or a framework.

    A hook of a backward on a GPU runs in a thread of torch's that has no such frame. The main thread then waits for
    it in the line that called the backward.
    """
    waiting = sys._current_frames().get(threading.main_thread().ident or 0)
    for innermost in (sys._getframe(1), waiting):
        frame = innermost
        while frame is not None and not _is_users(frame):
            frame = frame.f_back
        if frame is not None:
            return frame
    return None


def _is_users(frame: FrameType) -> bool:
    # The __init__ of a dataclass is in no file, but has the globals of its module.
    known = str(frame.f_globals.get("__name__")).split(".")[0] in _PACKAGES
    return not known and not frame.f_code.co_filename.startswith(_NOT_THE_USERS)
