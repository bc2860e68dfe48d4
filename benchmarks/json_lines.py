"""Results of a benchmark as lines of JSON, written one by one, so that a run that was stopped goes on where it was."""

import json
import os
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON; what a killed run has not finished writing is left out."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def append_line(path: Path, row: dict[str, Any]) -> None:
    """A line more, in the place of a last one that was not written to its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    old = path.read_bytes() if path.exists() else b""
    with path.open("r+b" if old else "wb") as file:
        file.truncate(old.rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
