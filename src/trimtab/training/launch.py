"""Starts or resumes a run in its folder, and trains it to its end."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from platform import python_version

import torch

import trimtab
from trimtab.data import Dataset
from trimtab.training import folder as folders
from trimtab.training.estimate import Cost, cost
from trimtab.training.initial import take_over_weights
from trimtab.training.processes import ALONE, Processes
from trimtab.training.run import CHECKPOINT, Ending, Observer, Progress, Run
from trimtab.training.session import Session
from trimtab.training.settings import Settings


class CannotTrain(ValueError):  # noqa: N818
    """The first step failed already, as with BatchNorm on a batch of one row."""


def launch(
    session: Session,
    folder: Path,
    *,
    resume: bool,
    force: bool = False,
    command: str,
    show: Callable[[Progress], None] | None = None,
    notify: Callable[[str], None] | None = None,
    observe: Observer | None = None,
    checkpoint_seconds: float = 30.0,
) -> Ending:
    """Train a session in its folder.

    Args:
        session: The run.
        folder: For settings, records and checkpoints.
        resume: Whether to go on with the run that is there; one that was stopped before its first checkpoint begins
            anew.
        force: Whether to overwrite a run that is there.
        command: What was typed.
        show: Called from time to time with the progress.
        notify: Called with a sentence if the run continues differently than expected.
        observe: Called with each event that is recorded.
        checkpoint_seconds: Time between two checkpoints.

    Raises:
        CannotTrain: If the first step fails; the folder is then as it was before.
        ValueError: If the folder holds something else, or cannot be written to.
    """
    processes = session.processes
    if not processes.first:
        return _follow(session)
    with folders.locked(folder):
        anew = not (resume and (folder / CHECKPOINT).exists())
        if not resume:
            folders.check_free(folder, force=force)
        there = any((folder / name).exists() for name in folders.FILES)
        # Before an old run is lost, or probes warn of what keeps the network from training.
        if processes.from_first(anew and (there or bool(session.settings.probe))):
            check_first_step(session.settings, session.device, session.dataset, processes)
        if anew:
            take_over_weights(session, folder)
        if not resume:
            folders.begin(folder, session.settings, force=force)
        with closing(Run(session, folder, show, observe=observe, checkpoint_seconds=checkpoint_seconds)) as run:
            notes = [session.note, _resume(run, folder, session) if resume else ""]
            if notify is not None:
                for note in filter(None, notes):
                    notify(note)
            if anew:
                processes.from_first(None)
            if not run.begun:
                run.begin(command, versions(), asdict(session.settings))
            try:
                return run.train()
            except (ValueError, RuntimeError) as error:
                refused = isinstance(error, ValueError)
                if session.step > 0 or not (refused or processes.several):
                    raise
                if not resume:
                    folders.remove(folder)
                    with suppress(OSError):  # something else is in it
                        folder.rmdir()
                if not refused:  # another process was
                    raise
                raise CannotTrain(_why(error, session)) from error


def _follow(session: Session) -> Ending:
    """What the processes other than the first do, which have nothing to do with the folder."""
    if session.processes.from_first(False):
        check_first_step(session.settings, session.device, session.dataset, session.processes)
    run = Run(session)
    run.follow()
    if session.step == 0:
        take_over_weights(session)
    try:
        return run.train()
    except ValueError as error:
        if session.step > 0:
            raise
        raise CannotTrain(_why(error, session)) from error


def _resume(run: Run, folder: Path, session: Session) -> str:
    """Continue from the checkpoint, if there is one; returns a note for the user."""
    if not (folder / CHECKPOINT).exists():
        folders.check_unended(folder)
        folders.write_settings(folder, session.settings)  # it may be longer now
        return f"the run in {folder} was stopped before its first checkpoint; it begins anew"
    as_written = folders.holds(folder, session.settings)
    if not run.resume():
        return ""
    folders.write_settings(folder, session.settings)
    return f"the run in {folder} goes on to {session.total} steps, as {folders.SETTINGS} now says" if as_written else ""


def check_first_step(settings: Settings, device: torch.device, dataset: Dataset, processes: Processes = ALONE) -> None:
    """Take the first step of a run in a separate session; nothing is written, and random generators are restored.

    Raises:
        CannotTrain: If it fails.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        session = Session(settings, device, dataset=dataset, processes=processes)
        try:
            session.advance()
            session.wait()
        except ValueError as error:
            raise CannotTrain(_why(error, session)) from error


def _why(error: Exception, session: Session) -> str:
    if "Expected more than 1" not in str(error):  # torch's words for it, which speak of a tensor's size
        return str(error)
    settings, processes = session.settings, session.processes
    samples = processes.shares(session.batch_size)[processes.rank]
    return (
        f"{settings.method} needs more than one value for each of its statistics, which a batch of {samples} "
        f"{'in each process ' if processes.several else ''}does not give in {settings.network}; take a larger batch "
        "size or another method"
    )


def dry_run(session: Session, folder: Path, *, resume: bool, force: bool = False) -> Cost:
    """The cost of what `launch` would do, or its refusal; nothing is written."""
    if not session.processes.first:
        Run(session).follow()
    elif resume and (folder / CHECKPOINT).exists():
        Run(session, folder).restore()
    else:
        if resume:
            folders.check_unended(folder)
        else:
            folders.check_free(folder, force=force)
        session.processes.from_first(None)
        take_over_weights(session, folder)
    return cost_of(session)


def cost_of(session: Session) -> Cost:
    """The cost of a run.

    Raises:
        CannotTrain: If it cannot be trained.
    """
    try:
        return cost(session)
    except ValueError as error:
        raise CannotTrain(_why(error, session)) from error


def versions() -> dict[str, str]:
    """The versions of trimtab, torch and Python."""
    return {"trimtab": trimtab.__version__, "torch": torch.__version__, "python": python_version()}
