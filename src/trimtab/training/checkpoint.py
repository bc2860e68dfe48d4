"""Checkpoints: the state of a run in a file, written completely or not at all."""

import errno
import warnings
from pathlib import Path
from typing import Any

import torch

from trimtab.records import whole_file

SCHEMA = 1


class Damaged(ValueError):  # noqa: N818
    """A file that is not a checkpoint, or is damaged."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint beside the old one, then put it in its place in one move."""
    try:
        with whole_file(path) as file:
            torch.save({"schema": SCHEMA, **state}, file)
    except RuntimeError as error:  # torch's word for a file that cannot be written to its end
        raise OSError(errno.ENOSPC, "it could not be written to its end; is the disk full?", str(path)) from error


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint; nothing in it is executed.

    Raises:
        Damaged: If it is not one that this trimtab wrote.
        ValueError: If it cannot be read at all.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    try:
        with file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about kinds of files that are refused anyway
            state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for what is cut off or foreign, and advises to trust it
        raise Damaged(f"{path} is not a checkpoint of a run, or is damaged; nothing in it was executed") from error
    schema = state.get("schema") if isinstance(state, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        raise Damaged(f"{path} is not a checkpoint that this trimtab can read")
    return state
