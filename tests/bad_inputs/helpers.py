"""What all tables of bad inputs have in common: a command, the sentence it must answer with, its status."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from trimtab import cli


def files(folder: Path) -> dict[Path, bytes | None]:
    """All there is below a folder; of files, what is in them."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def assert_refused(
    arguments: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str], folder: Path, status: int = 2
) -> None:
    """The command says this, in one line, has this status, and changes nothing below the folder."""
    before = files(folder)
    capsys.readouterr()
    ended = cli.main(arguments)
    captured = capsys.readouterr()
    assert re.search(sentence, captured.err), captured.err
    assert captured.err.startswith("trimtab: ") and captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.out and "weights_only" not in captured.err
    assert ended == status, captured.err
    assert files(folder) == before
