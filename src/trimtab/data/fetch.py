"""Fetch data sets from their official places.

A file arrives under a hidden name beside its final one, which it is given in one step when its size and checksum are
right. When a download breaks off, what has arrived stays there, and the next one asks for the rest only. A note beside
it says which state of the server's file it is a part of, so that two different ones are never put together. The note
is also what a process locks, so that another one that fetches the same file waits.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trimtab.data.checksums import md5, verify
from trimtab.data.errors import DataError
from trimtab.data.files import read
from trimtab.data.listing import whole
from trimtab.data.places import data_root, unfinished
from trimtab.data.remote import RemoteError, ask, first_byte, receive, validator
from trimtab.data.sources import NOT_FETCHED, OTHERS, SOURCES, Source

try:
    import fcntl
except ImportError:  # no locks on this system
    fcntl = None  # type: ignore[assignment]

CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a download is.

    Attributes:
        file: The name of the file.
        done: Bytes that have arrived, with those of earlier attempts.
        total: Bytes of the whole file.
    """

    file: str
    done: int
    total: int


Report = Callable[[Progress], None]


def fetch(
    name: str,
    root: Path | None = None,
    *,
    report: Report | None = None,
    timeout: float = 30.0,
    sources: Mapping[str, tuple[Source, ...]] = SOURCES,
) -> list[Path]:
    """Fetch a data set to where `load` looks for it, unless it is there already.

    A file that is there under the final name, but is not the official one, is replaced.

    Args:
        name: One of `SOURCES`.
        root: The folder of the data sets; by default what TRIMTAB_DATA says, else `data` in the current folder.
        report: Is told how far a download is.
        timeout: Seconds without any data after which a download is given up.
        sources: The files by the name of the data set.

    Returns:
        The files that the data set is read from.

    Raises:
        DataError: It cannot be fetched. What has arrived so far is kept, and the next call goes on from there.
    """
    if name not in sources:
        known = f"There is no data set {name!r}; those that can be fetched are {', '.join(sources)}."
        raise DataError(NOT_FETCHED.get(name, known))
    root = data_root(root)
    checksums = OTHERS | {Path(source.path).name: source.md5 for source in sources[name]}
    there = whole(name, root)
    if there and all(_official(name, path, checksums) for path in there):
        return list(there)
    targets = tuple(root / source.path for source in sources[name])
    other = in_the_way(name, root, sources)
    if other is not None:
        raise DataError(
            f"{other} has other files of {name}, which would be read instead of what is fetched, and are not "
            "known to be the official ones; move them away, and give the same command again."
        )
    for source, target in zip(sources[name], targets, strict=True):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _alone(target):
                if not (target.is_file() and _official(name, target, checksums)):
                    _fetch_file(source, target, report or (lambda _: None), timeout)
        except OSError as error:
            raise DataError(
                f"{target} cannot be written: {error.strerror or error}; see to it, and give the same command again."
            ) from error
    return list(targets)


def in_the_way(name: str, root: Path, sources: Mapping[str, tuple[Source, ...]] = SOURCES) -> Path | None:
    """The folder of files that `load` would read instead of what is fetched; None if there is none."""
    targets = tuple(root / source.path for source in sources[name])
    first = whole(name, root, assumed=targets)
    return None if first in (None, targets) else first[0].parent


def _fetch_file(source: Source, target: Path, report: Report, timeout: float) -> None:
    """Fetch one file from the first place that has it, and put it where it belongs."""
    partial = unfinished(target)
    if _size(partial) >= source.size and md5(partial) != source.md5:
        partial.unlink()
    failures: list[str] = []
    for url in source.urls:
        begun = _size(partial) > 0
        try:
            try:
                _get(url, source, target, report, timeout)
            except RemoteError:
                if not begun or _size(partial):
                    raise
                _get(url, source, target, report, timeout)  # what was there had spoiled it: from the beginning
        except RemoteError as failure:
            failures.append(f"{url}: {failure}")
        else:
            return
    done = _size(partial)
    goes_on = f"the same command goes on where it stopped, at {done} of {source.size} bytes"
    by_hand = f"try again later, or put it into {target.parent} yourself"
    raise DataError(f"{target.name} could not be fetched ({', then '.join(failures)}); {goes_on if done else by_hand}.")


def _get(url: str, source: Source, target: Path, report: Report, timeout: float) -> None:
    if _size(unfinished(target)) < source.size:
        _download(url, source, target, report, timeout)
    _place(unfinished(target), target, source.md5)


def _download(url: str, source: Source, target: Path, report: Report, timeout: float) -> None:
    """Bring the unfinished file to its full size."""
    partial, note = unfinished(target), _note(target)
    done = _size(partial)
    origin, _, state = note.read_text("latin-1").partition("\n") if note.exists() else ("", "", "")
    with (
        ask(url, timeout, done, state if origin == url else "") as response,
        partial.open("ab") as file,
    ):
        first = first_byte(response, source.size)
        if first not in (0, done):
            partial.unlink()
            raise RemoteError(f"the server sends the file from byte {first} on instead of {done}")
        if first == 0:
            # In this order the note is never of another file than the bytes, wherever the process may end.
            file.truncate(0)
            note.write_text(f"{url}\n{validator(response)}", "latin-1")
            done = 0
        report(Progress(target.name, done, source.size))
        while done < source.size:
            chunk = receive(response, min(CHUNK, source.size - done), timeout)
            if not chunk:
                raise RemoteError(f"the connection was closed after {done} of {source.size} bytes")
            file.write(chunk)
            done += len(chunk)
            report(Progress(target.name, done, source.size))


def _place(partial: Path, target: Path, wanted: str) -> None:
    """Give a file its final name if its content is right, and remove it if not."""
    actual = md5(partial)
    if actual != wanted:
        partial.unlink()
        raise RemoteError(f"what arrived was damaged and has been removed: its MD5 should be {wanted} and is {actual}")
    with partial.open("r+b") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)


def _official(name: str, path: Path, checksums: Mapping[str, str]) -> bool:
    """Whether a file is known to be official, in any of its forms."""
    try:
        return md5(path) == checksums.get(path.name) or verify(name, path.name.removesuffix(".gz"), read(path))
    except (DataError, OSError):
        return False


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Wait until no other process fetches a file, and keep others waiting; in the end remove what is of no use."""
    with _locked(_note(target)):
        try:
            yield
        finally:
            if not _size(unfinished(target)):
                unfinished(target).unlink(missing_ok=True)
                _note(target).unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    ours = False
    while not ours:
        with path.open("a") as file:
            with suppress(OSError):  # file systems without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            # Who had the lock before may have removed the file: then this lock keeps nobody out.
            with suppress(FileNotFoundError):
                ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
            if ours:
                yield


def _note(target: Path) -> Path:
    return target.with_name(f".{target.name}.origin")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
