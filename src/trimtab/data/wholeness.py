"""Checks whether a file of a data set is complete, nearly always by its first and last bytes alone."""

import gzip
import zlib
from pathlib import Path

from trimtab.data import cifar, idx
from trimtab.data.errors import DataError
from trimtab.data.files import GZIP_MAGIC, read

TAR_BLOCK = 512


def problem_of(name: str, path: Path) -> str | None:
    """Why a file of a data set cannot be read, in a sentence; None if it is whole.

    It is read as a whole only if its ends look wrong.
    """
    try:
        if _looks_whole(name, path):
            return None
        _parse(name, path)
    except DataError as error:
        return str(error)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    return None


def _parse(name: str, path: Path) -> None:
    if name in cifar.KINDS:
        cifar.parse_file(name, path)
    else:
        idx.parse_idx(read(path), 3 if "idx3" in path.name else 1)


def _looks_whole(name: str, path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(idx.LONGEST_HEADER)
        file.seek(max(size - 4, 0))
        tail = file.read()
    gzipped = head.startswith(GZIP_MAGIC)
    if gzipped:
        size = int.from_bytes(tail, "little")  # a gzip file ends with the length of its content
    if path.name.endswith(".tar.gz"):
        return gzipped and size > 0 and size % TAR_BLOCK == 0
    if gzipped:
        try:
            with gzip.open(path) as file:
                head = file.read(idx.LONGEST_HEADER)
        except (OSError, EOFError, zlib.error):
            return False
    if name not in cifar.KINDS:
        return idx.size_by_header(head) == size
    record = cifar.record_size(name, path.name)
    if record:
        return size > 0 and size % record == 0
    return head.startswith(b"\x80") and tail.endswith(b".")  # the first and the last operation of a pickle
