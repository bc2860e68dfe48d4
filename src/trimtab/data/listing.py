"""Lists which data sets are present, by a quick look at each file; `verify_files` compares checksums."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from trimtab.data import idx, imagefolder
from trimtab.data.catalog import DATASETS
from trimtab.data.cifar import KINDS
from trimtab.data.places import data_root, unfinished
from trimtab.data.sources import SOURCES
from trimtab.data.wholeness import problem_of

State = Literal["present", "incomplete", "damaged", "absent", "built in"]

MOST_COUNTED = 100_000
"""Files of an image folder whose sizes are added up: for all of ImageNet's it would take minutes on a slow disk."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One data set, as it is on this machine.

    Attributes:
        name: One of `DATASETS`.
        description: One line on what it is.
        state: Whether all files are there and whole; `incomplete` if some are missing, or their download is unfinished;
            `damaged` if one is cut off or not in its format; `absent` if there is none; `built in` if it needs none.
        paths: The files that are there, or the two folders of an image folder.
        size: Their bytes, None for an image folder with too many files to count.
        fetchable: Whether `fetch` gets it.
        problems: What is wrong with files that are damaged, a sentence for each.
    """

    name: str
    description: str
    state: State
    paths: tuple[Path, ...]
    size: int | None
    fetchable: bool
    problems: tuple[str, ...] = ()


def inventory(root: Path | None = None) -> list[Entry]:
    """What is there of each data set, and where.

    Args:
        root: The folder of the data sets; by default what TRIMTAB_DATA says, else `data` in the current folder.
    """
    return [_entry(name, data_root(root)) for name in DATASETS]


def whole(name: str, root: Path, assumed: Collection[Path] = ()) -> tuple[Path, ...] | None:
    """The files that `load` reads a data set from, if there is one whole.

    Args:
        name: A data set of files that can be fetched.
        root: The folder of the data sets.
        assumed: Files to take for present.
    """
    forms = _forms(name, root, assumed)
    return next((form for form in forms if all(_there(path, assumed) for path in form)), None)


def _entry(name: str, root: Path) -> Entry:
    if name == "imagefolder":
        return _imagefolder_entry(root)
    if name not in SOURCES:
        return Entry(name, DATASETS[name], "built in", (), 0, fetchable=False)
    paths = tuple(path for path in (*fullest(name, root), *begun(name, root)) if path.is_file())
    state: State = "present" if whole(name, root) else "incomplete" if paths else "absent"
    checks = (problem_of(name, path) for path in fullest(name, root) if path.is_file())
    problems = tuple(problem for problem in checks if problem is not None)
    size = sum(path.stat().st_size for path in paths)
    return Entry(name, DATASETS[name], "damaged" if problems else state, paths, size, True, problems)


def fullest(name: str, root: Path) -> tuple[Path, ...]:
    """The files that `load` reads a data set from; if none are whole, those of which the most are there."""
    return whole(name, root) or max(_forms(name, root), key=lambda form: sum(path.is_file() for path in form))


def begun(name: str, root: Path) -> tuple[Path, ...]:
    """Unfinished downloads of a data set that is not there whole."""
    parts = () if whole(name, root) else (unfinished(root / source.path) for source in SOURCES[name])
    return tuple(path for path in parts if path.is_file())


def _imagefolder_entry(root: Path) -> Entry:
    homes = [root / folder for folder in imagefolder.FOLDERS]
    home = next((home for home in homes if (home / "train").is_dir()), homes[0])
    paths = tuple(home / part for part in imagefolder.PARTS.values() if (home / part).is_dir())
    images = (file for path in paths for file in path.glob("*/*") if file.is_file())
    sizes = [file.stat().st_size for file in islice(images, MOST_COUNTED + 1)]
    size = sum(sizes) if len(sizes) <= MOST_COUNTED else None
    some = all(any(path.glob("*/*")) for path in paths)
    state: State = "absent" if not paths else "present" if len(paths) == 2 and some else "incomplete"
    return Entry("imagefolder", DATASETS["imagefolder"], state, paths, size, fetchable=False)


def _forms(name: str, root: Path, assumed: Collection[Path] = ()) -> list[tuple[Path, ...]]:
    """Sets of files any of which is the whole of a data set, in the order in which `load` takes them."""
    if name in KINDS:
        homes, versions = (root, root / name), KINDS[name].versions
        folders = [
            tuple(folder / file for file in version.files)
            for home in homes
            for version in versions
            for folder in (home / version.folder, home)
        ]
        return folders + [(home / version.archive,) for home in homes for version in versions]
    files = [f"{part}-{kind}-ubyte" for part in idx.PARTS.values() for kind in ("images-idx3", "labels-idx1")]
    return [tuple(_idx_file(root / folder, file, assumed) for file in files) for folder in idx.FOLDERS[name]]


def _idx_file(folder: Path, file: str, assumed: Collection[Path]) -> Path:
    zipped, plain = folder / f"{file}.gz", folder / file
    return plain if plain.is_file() and not _there(zipped, assumed) else zipped


def _there(path: Path, assumed: Collection[Path]) -> bool:
    return path in assumed or path.is_file()
