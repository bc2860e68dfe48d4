"""Runs experiments one after another and writes their records, until a deadline."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from trimtab.claims.experiments.registry import Context
from trimtab.claims.findings import Findings
from trimtab.claims.needs import FIRST_SEEDS, MORE_SEEDS
from trimtab.claims.plans import Planned
from trimtab.claims.record import Record, rounded
from trimtab.training.device import hardware
from trimtab.training.folder import locked
from trimtab.training.launch import versions


def run(
    chosen: Sequence[Planned],
    context: Context,
    results: Path,
    *,
    deadline: float | None = None,
    begun: Callable[[Planned], None] = lambda planned: None,
    finished: Callable[[Record], None] = lambda record: None,
) -> list[Planned]:
    """Run experiments and write their records; each is written when it is done.

    Args:
        chosen: The experiments.
        context: What they are run with.
        results: The folder of the records.
        deadline: No experiment is begun that would end after this, by `time.monotonic`.
        begun: Called with each experiment that is begun.
        finished: Called with each record.

    Raises:
        ValueError: If an experiment lacks data, say, or another process is at work on it.
        TrainingFailed: If a training fails.

    Returns:
        Those that were not begun.
    """
    for number, planned in enumerate(chosen):
        if deadline is not None and time.monotonic() + 60 * planned.minutes > deadline:
            return list(chosen[number:])
        begun(planned)
        started, used, commit = time.monotonic(), _core_seconds(), _commit()
        one, more, findings = planned.experiment, max(planned.more, context.more), Findings()
        given = replace(context, work=context.work / one.name, more=more, at_most=planned.at_most)
        with _alone(given.work, one.name):
            one.run(findings, given)
        record = Record(
            experiment=one.name,
            size=context.size,
            date=date.today().isoformat(),
            command=f"trimtab claims run --experiment {one.name} --size {context.size}"
            + ("" if planned.at_most is None else f" {FIRST_SEEDS}")
            + (f" {MORE_SEEDS} {more}" if more > 1 else ""),
            commit=commit,
            machine=hardware(context.device),
            versions=versions(),
            seconds=rounded(time.monotonic() - started, 3),
            core_seconds=rounded(_core_seconds() - used, 3),
            **vars(findings),
        )
        record.write(results)
        finished(record)
    return []


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Refuse to run an experiment that another process is at work on, which would write the same files.

    Raises:
        ValueError: If there is one, or if the folder cannot be made.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except ValueError as error:
            why = str(error).rpartition("; ")[0]
            raise ValueError(f"{name} needs {folder} for itself: {why}; wait, or work in another folder") from error
        yield
    with suppress(OSError):  # what it has kept is in it
        folder.rmdir()


def _core_seconds() -> float:
    """Seconds that cores have computed for this process and for those that it has started and that have ended."""
    return sum(os.times()[:4])


def _commit(file: Path = Path(__file__)) -> str:
    """The commit of the source tree that a file of it is run from; empty if there is none."""
    import subprocess

    how: dict[str, Any] = {"cwd": file.parent, "capture_output": True, "text": True, "timeout": 10, "check": True}
    try:
        # Trimtab may be installed below a repository that is somebody else's.
        subprocess.run(["git", "ls-files", "--error-unmatch", file.name], **how)
        found = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=10"], **how)
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(found.stdout).strip()
