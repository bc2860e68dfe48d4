"""Whether the files of a data set are the official ones."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trimtab.data.catalog import check_name, load
from trimtab.data.checksums import md5, verify
from trimtab.data.cifar import KINDS, read_members
from trimtab.data.errors import DataError, OtherDataError
from trimtab.data.files import read
from trimtab.data.listing import begun, fullest, inventory
from trimtab.data.places import data_root
from trimtab.data.sources import NOT_VERIFIED, OTHERS, SOURCES
from trimtab.data.wholeness import problem_of


@dataclass(frozen=True, slots=True)
class Verified:
    """What is known of one file.

    Attributes:
        state: Whether it is the official one; `unknown` if there is nothing to tell that by.
        sentence: The file, and what is wrong with it or why it is unknown.
    """

    state: Literal["official", "damaged", "missing", "unknown"]
    sentence: str


def verify_files(name: str, root: Path | None = None) -> list[Verified]:
    """Compare the files that a data set is read from with the official ones, by their checksums.

    Args:
        name: One of `DATASETS`.
        root: The folder of the data sets; by default what TRIMTAB_DATA says, else `data` in the current folder.

    Returns:
        One entry for each file, or for several that are wrong together; none if nothing of the data set is there.

    Raises:
        ValueError: There is no such data set.
    """
    check_name(name)
    root = data_root(root)
    if name not in SOURCES:
        absent = any(entry.name == name and entry.state == "absent" for entry in inventory(root))
        return [] if absent else [Verified("unknown", NOT_VERIFIED[name])]
    files, parts = fullest(name, root), begun(name, root)
    if not parts and not any(path.is_file() for path in files):
        return []
    if all(_of_another(name, path) for path in files):
        return []  # MNIST and Fashion-MNIST have the same names, and may both lie in the root itself
    verified = [_verified(name, path) for path in files]
    states = {each.state for each in verified}
    if "unknown" in states and not states & {"damaged", "missing"}:
        verified = _counted(name, root, verified)
    return verified + [Verified("missing", f"{path} is an unfinished download") for path in parts]


def _of_another(name: str, path: Path) -> bool:
    if name in KINDS or not path.is_file():
        return False
    try:
        verify(name, path.name.removesuffix(".gz"), read(path))
    except OtherDataError:
        return True
    except DataError:
        return False
    return False


def _verified(name: str, path: Path) -> Verified:
    if not path.is_file():
        return Verified("missing", f"{path} is not there")
    distributed = OTHERS | {Path(source.path).name: source.md5 for source in SOURCES[name]}
    try:
        if md5(path) == distributed.get(path.name):
            return Verified("official", str(path))
        archive = path.name.endswith(".tar.gz")
        contents = read_members(name, path) if archive else {path.name.removesuffix(".gz"): read(path)}
        known = [verify(name, file, content) for file, content in contents.items()]
    except DataError as error:
        return Verified("damaged", problem_of(name, path) or str(error))  # "cut off" says more than a checksum
    except OSError as error:
        return Verified("damaged", f"{path} cannot be read: {error.strerror}")
    if all(known):
        return Verified("official", str(path))
    if problem := problem_of(name, path):
        return Verified("damaged", problem)
    return Verified("unknown", f"{path}: no checksum is known for this form of the file; its format is right")


def _counted(name: str, root: Path, verified: list[Verified]) -> list[Verified]:
    """The same, if files without a known checksum have the official format and number of samples of each class."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(name, root)
    except DataError as error:
        wrong = Verified("damaged", str(error))  # may be about several files: it is said once
        return list(dict.fromkeys(each if each.state == "official" else wrong for each in verified))
    return verified
