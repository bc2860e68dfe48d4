"""What one worker does: train the run of a task, or say why it cannot."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from trimtab.data import Dataset, load
from trimtab.records import EVENTS, Evaluated, History
from trimtab.training import folder as folders
from trimtab.training.grid import PlannedRun
from trimtab.training.launch import CannotTrain, launch
from trimtab.training.run import CHECKPOINT, Ending, Progress
from trimtab.training.session import Session
from trimtab.training.settings import Settings


@dataclass(frozen=True, slots=True)
class Task:
    """A run that a worker shall train.

    Attributes:
        run: What is trained.
        folder: Where it is recorded.
        command: The command line that asked for it.
        device: Where it is trained.
        data_root: The folder of the data sets.
    """

    run: PlannedRun
    folder: Path
    command: str
    device: torch.device
    data_root: Path | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        last: The last evaluation; None if it diverged or could not begin.
        exploded_at: The step at which it diverged, if a loss has shown that.
        why_not: Why it could not begin, in a sentence.
    """

    last: Evaluated | None = None
    why_not: str | None = None
    exploded_at: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that ended a run, in a form that can be sent to another process.

    Attributes:
        message: One sentence, or the traceback if the error is a defect.
        is_defect: Whether no user could have caused it.
    """

    message: str
    is_defect: bool


def outcome_of(folder: Path, settings: Settings, *, tidy: bool = True) -> Outcome | None:
    """The outcome of a run that ended earlier; None if there is none in the folder.

    Args:
        folder: The folder of the run.
        settings: What the run there must have been trained with.
        tidy: Whether to remove a checkpoint that the ended run left behind.
    """
    if not (folder / EVENTS).exists() or not folders.holds(folder, settings):
        return None
    try:
        history = History.read(folder)
    except ValueError:
        return None
    if history.ended is None or history.ended.verdict == "interrupted":
        return None
    if tidy:
        (folder / CHECKPOINT).unlink(missing_ok=True)
    finished = history.ended.verdict == "finished"
    return Outcome(history.evaluated[-1] if finished else None, exploded_at=history.ended.exploded_at)


def attempt(task: Task, advance: Callable[[int], None]) -> Outcome | Failure | None:
    """Train a task in a worker, which sends back what this returns.

    Args:
        task: What to train.
        advance: Called with the number of steps taken, from time to time.

    Returns:
        The outcome, or why there is none; None if the run was interrupted, so that the worker shall end.

    Raises:
        torch.OutOfMemoryError: The worker shall end, which frees the device's memory.
    """
    try:
        return train(task, lambda progress: advance(progress.step))
    except torch.OutOfMemoryError:
        raise
    except OSError as error:
        return Failure(f"{task.folder}: {error.strerror or error}", is_defect=False)
    except ValueError as error:
        return Failure(str(error), is_defect=False)
    except Exception:
        return Failure(traceback.format_exc(), is_defect=True)


def train(task: Task, show: Callable[[Progress], None] | None = None) -> Outcome | None:
    """Train a run, or the rest of one that was stopped; None if it is interrupted."""
    try:
        try:
            ending = _launch(task, show, resume=folders.holds(task.folder, task.run.settings))
        except CannotTrain:
            raise
        except ValueError:  # what is there cannot be gone on with
            ending = _launch(task, show, resume=False)
    except CannotTrain as error:
        return Outcome(why_not=str(error))
    if ending.verdict == "interrupted":
        return None
    (task.folder / CHECKPOINT).unlink(missing_ok=True)  # nothing is left to go on with
    finished = ending.verdict == "finished"
    return Outcome(ending.evaluations[-1] if finished else None, exploded_at=ending.exploded_at)


def _launch(task: Task, show: Callable[[Progress], None] | None, *, resume: bool) -> Ending:
    session = _session(task.run.settings, task.device, task.data_root)
    return launch(session, task.folder, resume=resume, force=True, command=task.command, show=show)


def _session(settings: Settings, device: torch.device, data_root: Path | None) -> Session:
    dataset = loaded(settings.data, data_root)
    try:
        return Session(settings, device, dataset=dataset)
    except ValueError as error:  # a norm that this network cannot have, say
        raise CannotTrain(str(error)) from error


@lru_cache(maxsize=1)
def loaded(name: str, root: Path | None) -> Dataset:
    """A data set; the last one is kept for the next task of this process."""
    return load(name, root)
