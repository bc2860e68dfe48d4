"""Where data sets lie."""

import os
from collections.abc import Sequence
from pathlib import Path

from trimtab.data.errors import DataError

VARIABLE = "TRIMTAB_DATA"


def data_root(root: Path | None) -> Path:
    """The folder of all data sets: as given, else what TRIMTAB_DATA says, else `data` in the current folder."""
    return Path(root if root is not None else os.environ.get(VARIABLE) or "data")


def missing(name: str, places: Sequence[Path], files: Sequence[str], source: str) -> DataError:
    """The error for a data set that is not there, or not wholly."""
    return DataError(
        f"{name} was not found: looked in {', '.join(map(str, places))} for {', '.join(files)}; put them there "
        f"(from {source}), or name the folder of the data with --data-root or {VARIABLE}."
    )
