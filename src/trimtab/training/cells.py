"""The results of a setup, put together from its runs; here the learning rate is chosen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trimtab.records import Candidate, Cell, Evaluated, Trial
from trimtab.training.grid import Setup
from trimtab.training.settings import resolved
from trimtab.training.workers.task import Outcome


def cell_of(setup: Setup, outcomes: Mapping[str, Outcome], classes: int) -> Cell:
    """The results of a setup so far; the learning rate is chosen when all candidates have been trained."""
    tuning = [(run, outcomes[run.name]) for run in setup.tuning() if run.name in outcomes]
    cell = Cell(
        setup.settings.network,
        resolved(setup.settings.batch_size),
        setup.settings.method,
        setup.settings.epochs,
        setup.settings.steps,
        resolved(setup.settings.optimizer),
        candidates=tuple(
            Candidate(resolved(run.settings.lr), _value(outcome.last, classes), _loss(outcome.last), run.name)
            for run, outcome in tuning
            if outcome.why_not is None
        ),
        why_not=next((outcome.why_not for _, outcome in tuning if outcome.why_not), None),
    )
    if cell.why_not or len(tuning) < len(setup.tuning()):
        return cell
    lr = best_rate(cell.candidates, lower=not classes) if tuning else setup.rates[0]
    final = [(run, outcomes[run.name]) for run in setup.final(lr) if run.name in outcomes]
    why_not = next((outcome.why_not for _, outcome in final if outcome.why_not), None)
    if why_not:
        return replace(cell, why_not=why_not)
    guess = 1 / classes if classes else math.inf
    trials = []
    for run, outcome in final:
        value = _value(outcome.last, classes)
        trials.append(Trial(run.settings.seed, guess if value is None else value, value is None, run.name))
    return replace(cell, lr=lr, trials=tuple(trials))


def best_rate(candidates: Sequence[Candidate], *, lower: bool) -> float:
    """The learning rate with the best value on validation data; among equals the one with the lowest loss."""

    def quality(candidate: Candidate) -> tuple[float, float]:
        if candidate.value is None or candidate.loss is None:
            return -math.inf, -math.inf
        return -candidate.value if lower else candidate.value, -candidate.loss

    return max(candidates, key=quality).lr


def _value(last: Evaluated | None, classes: int) -> float | None:
    return None if last is None else last.accuracy if classes else last.loss


def _loss(last: Evaluated | None) -> float | None:
    return None if last is None else last.loss
