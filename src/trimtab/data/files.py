"""Bytes out of files: plain, gzipped or in a tar archive, without unpacking anything to disk."""

import gzip
import tarfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trimtab.data.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of one official file.

    Attributes:
        where: The file as errors call it; with the archive, if it lies in one.
        data: What is in it, uncompressed.
        packed: The compressed file it came out of, if it came out of one.
    """

    where: str
    data: bytes
    packed: Path | None = None


def read(path: Path) -> Content:
    """A file's content, decompressed if it is gzipped (which its first bytes say, not its name)."""
    data = _bytes(path)
    if not data.startswith(GZIP_MAGIC):
        return Content(str(path), data)
    try:
        return Content(str(path), gzip.decompress(data), path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is cut off or damaged: it cannot be decompressed; fetch it again.") from error


def read_archive(path: Path, names: Collection[str]) -> dict[str, Content]:
    """The named members of a .tar.gz, in one pass over it; those that are not in it are not in the result."""
    contents: dict[str, Content] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                if member.name in names and (file := archive.extractfile(member)) is not None:
                    contents[member.name] = Content(f"{path} ({member.name})", file.read(), path)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} is cut off or damaged, or no tar.gz archive; fetch it again.") from error
    return contents


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
