"""The folder of a sweep: whether it may be used, whether its disk has room, and what of it is a sweep's own."""

import shutil
from contextlib import suppress
from pathlib import Path

from trimtab.records import RESULTS, RUNS, UNFINISHED, is_sweep
from trimtab.training import folder as folders
from trimtab.training.sweep.plan import PLAN, Plan

STACKS = "stacks"
"""The folder of the outcomes and checkpoints of stacks."""


def check_folder(out: Path, *, force: bool) -> None:
    """Refuse a folder that holds something else, or a sweep that nobody can go on with.

    Raises:
        ValueError: If it does.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file; name a folder with --out")
    there = [path.name for path in out.iterdir() if not path.name.endswith(UNFINISHED)]
    if there and not {PLAN, RESULTS} & set(there):
        raise ValueError(f"{out} holds other files ({there[0]}); name another folder with --out")
    if RESULTS in there and PLAN not in there and not is_sweep(out):
        raise ValueError(f"{out} holds something else than a sweep; name another folder with --out")
    if there and not force and Plan.read(out) is None:
        # Without it nobody knows which networks the outcomes in the folder belong to.
        raise ValueError(
            f"the sweep in {out} cannot be gone on with: its {PLAN} is missing or damaged; begin anew with --force, or "
            "name another folder with --out"
        )


def check_disk(out: Path, needed: int) -> None:
    """Refuse a sweep that does not fit onto the disk.

    Raises:
        ValueError: If less than so many bytes are free.
    """
    where = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(where).free
    if needed > free:
        raise ValueError(
            f"the sweep needs about {needed / 1e6:,.0f} MB in {out}, and {free / 1e6:,.0f} MB are free there; take "
            "fewer networks, or another place with --out"
        )


def remove(out: Path) -> None:
    """Remove what a sweep has written, and nothing else that someone may have put there."""
    for path in (out / STACKS).glob("[0-9]*.*"):
        path.unlink()
    for run in (out / RUNS).glob("*/"):
        folders.remove(run)
        with suppress(OSError):
            run.rmdir()
    for name in (STACKS, RUNS):
        with suppress(OSError):
            (out / name).rmdir()
    for name in (RESULTS, PLAN):
        (out / name).unlink(missing_ok=True)
