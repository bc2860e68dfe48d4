"""The folders of data sets."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from trimtab.data.errors import DataError
from trimtab.data.sources import SOURCES

VARIABLE = "TRIMTAB_DATA"


def data_root(root: Path | None) -> Path:
    """The folder of all data sets: as given, else what TRIMTAB_DATA says, else `data` in the current folder."""
    return Path(root if root is not None else os.environ.get(VARIABLE) or "data")


def unfinished(path: Path) -> Path:
    """Where a file lies while it is fetched."""
    return path.with_name(f".{path.name}.unfinished")


def fetch_command(name: str, root: Path | None) -> str:
    """What to type to have a data set fetched to where it was looked for."""
    options = [] if root is None or root == data_root(None) else ["--data-root", str(root)]
    return shlex.join(["trimtab", "data", "fetch", name, *options])


def missing(name: str, root: Path, places: Sequence[Path], files: Sequence[str], source: str) -> DataError:
    """The error for a data set that is not there, or not wholly."""
    fetch = f" or have them fetched by `{fetch_command(name, root)}`" if name in SOURCES else ""
    return DataError(
        f"{name} was not found: looked in {', '.join(map(str, places))} for {', '.join(files)}; put them there "
        f"(from {source}){fetch}, or name the folder of the data with --data-root or {VARIABLE}."
    )
