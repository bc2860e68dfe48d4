"""Where the records of experiments are: those that come with trimtab, and those of this machine before them."""

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from trimtab.claims.record import SIZES, Record, file_name


class RecordStore:
    """Finds the records of experiments in folders, the first one before the others."""

    def __init__(self, *folders: Path, shipped: bool = True) -> None:
        """Look in these folders, and after them among the records that come with trimtab."""
        self._folders, self._shipped = folders, shipped
        self._known: dict[tuple[str, str], Record | None] = {}

    def find(self, experiment: str, size: str) -> Record | None:
        """The record of an experiment at a size; None if there is none.

        Raises:
            ValueError: If a file is damaged.
        """
        key = experiment, size
        if key not in self._known:
            paths = [folder / file_name(experiment, size) for folder in self._folders]
            path = next((path for path in paths if path.is_file()), None)
            if path is not None:
                self._known[key] = Record.read(path)
            else:
                self._known[key] = _shipped_record(experiment, size) if self._shipped else None
        return self._known[key]

    def sizes(self, experiment: str) -> tuple[str, ...]:
        """The sizes at which there is a record of an experiment."""
        return tuple(size for size in SIZES if self.find(experiment, size) is not None)

    def forget(self) -> None:
        """Look at the files again."""
        self._known.clear()


@cache
def _shipped_record(experiment: str, size: str) -> Record | None:
    resource = files("trimtab.claims") / "results" / file_name(experiment, size)
    if not resource.is_file():
        return None
    with as_file(resource) as path:
        return Record.read(path)
