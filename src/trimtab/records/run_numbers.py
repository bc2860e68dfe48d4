"""The numbers by which runs are compared, from their records."""

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from trimtab.records.events import Evaluated
from trimtab.records.history import History


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """The numbers of one run. What the records do not have is None.

    Attributes:
        acc: Accuracy on held-out data at the last step, in points.
        early: Mean accuracy over the evaluations in the first tenth of the steps, at least the first one, in points.
        late: Mean accuracy over the evaluations in the second half of the steps, in points.
        drop: Best accuracy along the run minus the last one, in points.
        tloss: Training loss, mean over the steps of the last epoch, as the steps saw it.
        vloss: Loss on held-out data at the last step.
        eloss: Loss in evaluation mode at the last step, on the fixed subset of the training data.
        gap: vloss − eloss; None in regression, where losses are sums over samples.
    """

    acc: float | None
    early: float | None
    late: float | None
    drop: float | None
    tloss: float | None
    vloss: float | None
    eloss: float | None
    gap: float | None


def run_numbers(history: History, chance: float | None = None) -> RunNumbers:
    """The numbers of a run that has finished or diverged.

    A run that diverged counts as one that guesses, and its losses are infinite; it has no drop and no gap.

    Args:
        history: Its records.
        chance: The accuracy of guessing, from 0 to 1; None in regression.

    Raises:
        ValueError: If the run has not ended, was not evaluated, or diverged in a classification without `chance`.
    """
    ended = history.ended
    if ended is None or ended.verdict == "interrupted":
        raise ValueError(f"the run in {history.folder} has not ended; go on with it first")
    if ended.verdict == "diverged":
        if chance is None and any(event.accuracy is not None for event in history.trained):
            raise ValueError(f"the run in {history.folder} diverged, so that chance is needed: give the accuracy of it")
        points = None if chance is None else 100 * chance
        return RunNumbers(points, points, points, None, math.inf, math.inf, math.inf, None)
    evaluated = _evaluations(history)
    last = evaluated[-1]
    points_at = [(event.step, 100 * event.accuracy) for event in evaluated if event.accuracy is not None]
    steps = ended.step
    # Of 20 evaluations the second is at the first step that is not before a tenth, the tenth likewise at the half.
    tenth, half = math.ceil(steps / 10), math.ceil(steps / 2)
    early = [value for step, value in points_at if step <= tenth] or [value for _, value in points_at[:1]]
    late = [value for step, value in points_at if step > half]
    values = [value for _, value in points_at]
    return RunNumbers(
        acc=values[-1] if values else None,
        early=fmean(early) if early else None,
        late=fmean(late) if late else None,
        drop=max(values) - values[-1] if values else None,
        tloss=ended.last_epoch_loss,
        vloss=last.loss,
        eloss=last.train_loss,
        gap=_gap(last),
    )


def gap_at(history: History, eloss: float) -> float | None:
    """The gap at the first point along a run where the training loss in evaluation mode has come down to a value.

    Between evaluations both losses are on straight lines. This compares runs at equal training loss.

    Returns:
        The gap; None if the run does not come down to that, or begins below it.
    """
    points = [(event.train_loss, gap) for event in _evaluations(history) if (gap := _gap(event)) is not None]
    for (before, first), (after, second) in pairwise(points):
        assert before is not None and after is not None
        if before >= eloss >= after:
            share = 0.0 if before == after else (before - eloss) / (before - after)
            return first + share * (second - first)
    return None


def _evaluations(history: History) -> list[Evaluated]:
    """The evaluations on the data that the last one is on, one for each step."""
    if not history.evaluated:
        raise ValueError(f"the run in {history.folder} was not evaluated")
    part = history.evaluated[-1].part
    return list({event.step: event for event in history.evaluated if event.part == part}.values())


def _gap(event: Evaluated) -> float | None:
    return None if event.accuracy is None or event.train_loss is None else event.loss - event.train_loss
