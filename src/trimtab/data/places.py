"""Where data sets lie."""

import os
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


def missing(name: str, places: Sequence[Path], files: Sequence[str], source: str) -> DataError:
    """The error for a data set that is not there, or not wholly."""
    fetch = f" or have them fetched by `trimtab data fetch {name}`" if name in SOURCES else ""
    return DataError(
        f"{name} was not found: looked in {', '.join(map(str, places))} for {', '.join(files)}; put them there "
        f"(from {source}){fetch}, or name the folder of the data with --data-root or {VARIABLE}."
    )
