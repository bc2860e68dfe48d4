"""The folder of a run: its settings, whether it may be used, and a lock against other processes."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import yaml

try:
    import fcntl
except ImportError:  # no locks on this system
    fcntl = None  # type: ignore[assignment]

from trimtab.records import EVENTS, UNFINISHED, History, whole_file
from trimtab.training.config import read_settings
from trimtab.training.extending import CHANGEABLE, LENGTH, lengthened
from trimtab.training.recipes import resolve
from trimtab.training.run import ANEW, CHECKPOINT
from trimtab.training.settings import Settings, as_it_was

SETTINGS = "settings.yaml"
TRACKING = "tracking.json"
FILES = (CHECKPOINT, EVENTS, TRACKING, SETTINGS)
NAMED = 4
"""So many missing settings are named; the others are counted."""
NEWER = (
    *(
        "loss",
        "train_subset",
        "init_from",
        "fold",
        "fixed_beta",
        "dropout_before",
        "activation",
        "depth",
        "probe_multiples",
    ),
    *("r_max", "d_max", "renorm_start", "renorm_r_end", "renorm_d_end"),
)
"""Settings that runs of earlier versions do not have; they were trained as `as_it_was` and their defaults say."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder and lock it for this process; the lock ends with the process, however that ends.

    If the block fails and leaves the folder empty, the folder is removed.

    Raises:
        ValueError: If the folder cannot be made, or another process is at work in it.
    """
    made = []
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        _remove_empty(made)
        raise _cannot_write(folder, error) from error
    try:
        if fcntl is not None:
            with suppress(OSError):  # file systems without locks
                _lock(handle, folder)
        yield
    except BaseException:
        _remove_empty(made)
        raise
    finally:
        os.close(handle)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # something is in it
            folder.rmdir()


def _lock(handle: int, folder: Path) -> None:
    for _ in range(20):  # two seconds: a process that was killed may still be on its way out
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)
        else:
            return
    raise ValueError(f"another process is at work in {folder}; wait for it, or name another folder with --out")


def begin(folder: Path, settings: Settings, *, force: bool) -> None:
    """Write the settings of a new run into its folder.

    Raises:
        ValueError: If the folder holds another run and `force` is not set, or something that is not ours.
    """
    try:
        check_free(folder, force=force)
        remove(folder)
        write_settings(folder, settings)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def check_free(folder: Path, *, force: bool) -> None:
    """Refuse a folder that holds a run, unless `force` allows to overwrite it, or other files."""
    if not folder.exists():
        return
    ours = any((folder / name).exists() for name in FILES)
    if ours and not force:
        _check_settings(folder)
        raise ValueError(f"{folder} holds a run already; go on with it by --resume, or overwrite it by --force")
    foreign = [path.name for path in folder.iterdir() if not path.name.endswith(UNFINISHED)]
    if foreign and not ours:
        raise ValueError(f"{folder} holds other files ({foreign[0]}); name another folder with --out")


def _check_settings(folder: Path) -> None:
    """Refuse a run whose settings file is missing, so that it cannot be resumed."""
    if not (folder / SETTINGS).exists() and any((folder / name).exists() for name in FILES):
        raise ValueError(f"the run in {folder} cannot be gone on with: its {SETTINGS} is missing; {ANEW}")


def check_unended(folder: Path) -> None:
    """Refuse to resume a run that has ended and has no checkpoint: it would be trained a second time."""
    try:
        ended = History.read(folder).ended
    except ValueError:  # there are no records that say so
        return
    if ended is not None and ended.verdict != "interrupted":
        raise ValueError(f"the run in {folder} has {ended.verdict}, and there is no {CHECKPOINT} to go on from; {ANEW}")


def write_settings(folder: Path, settings: Settings) -> None:
    """Write the settings of a run into its folder, replacing others."""
    content = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(settings).items()}
    with whole_file(folder / SETTINGS) as file:
        file.write(yaml.safe_dump(content, sort_keys=False).encode())


def holds(folder: Path, settings: Settings) -> bool:
    """Whether a folder holds a run with these settings, apart from those that may change."""
    try:
        saved = Settings(**as_it_was(read_settings(folder / SETTINGS)))
        return replace(saved, **{name: getattr(settings, name) for name in CHANGEABLE}) == settings
    except ValueError:
        return False


def remove(folder: Path) -> None:
    """Remove the files of a run; the settings last, since they mark the folder as that of a run."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def resumed_settings(folder: Path, given: Mapping[str, Any]) -> Settings:
    """The settings of the run in a folder, which those given now must not contradict.

    What may change is how steps are taken, how often is recorded, and the length, if the checkpoint allows it.

    Raises:
        ValueError: If there is no run, or if it has other settings.
    """
    _check_settings(folder)
    if not (folder / SETTINGS).exists():
        raise ValueError(f"there is no run in {folder} to go on with; leave out --resume to start one")
    saved = _whole_settings(folder / SETTINGS)
    for name, value in given.items():
        if name not in (*CHANGEABLE, *LENGTH) and getattr(saved, name) != value:
            raise ValueError(
                f"the run in {folder} has {name} {getattr(saved, name)!r}, not {value!r}; "
                "leave that out to go on with it, or start another with --out"
            )
    return lengthened(replace(saved, **{name: given[name] for name in CHANGEABLE if name in given}), given)


def _whole_settings(path: Path) -> Settings:
    """The settings of a run from its file, which must have all of them."""
    content = as_it_was(read_settings(path))
    settings = Settings(**content)
    whole = resolve(settings)
    missing = [
        f.name
        for f in fields(settings)
        if (f.name not in content and f.name not in NEWER) or getattr(settings, f.name) != getattr(whole, f.name)
    ]
    if missing:
        named, more = ", ".join(missing[:NAMED]), len(missing) - NAMED
        named += f" and {more} more" if more > 0 else ""
        raise ValueError(
            f"{path} does not say {named}; write that there again, as the first line of {EVENTS} has it, or {ANEW}"
        )
    return settings


def _cannot_write(folder: Path, error: OSError) -> ValueError:
    below = error.filename is not None and Path(os.fsdecode(error.filename)).parent == folder
    where = os.fsdecode(error.filename) if below else f"the folder {folder}"
    return ValueError(f"cannot write to {where}: {error.strerror}; name another folder with --out")
