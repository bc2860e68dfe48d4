"""The numbers of a run, by which runs are compared."""

import math
from pathlib import Path

import pytest

from trimtab.records import Evaluated, History, RunEnded, RunNumbers, RunStarted, Trained, Verdict, gap_at, run_numbers
from trimtab.training.cadence import evaluation_is_due
from trimtab.training.settings import Settings

STARTED = RunStarted({}, "trimtab train", "a machine", {}, 10)


def history(
    accuracies: list[float | None], *, verdict: Verdict | None = "finished", loss: float | None = 0.75
) -> History:
    """A run of 100 steps, evaluated as often; losses on held-out data fall by 0.1, those on the subset by 0.3."""
    every = 100 // max(len(accuracies), 1)
    evaluated = tuple(
        Evaluated(every * (i + 1), 1.0, "test", 2.0 - 0.1 * i, accuracy, 1.0, 2.0 - 0.3 * i, accuracy)
        for i, accuracy in enumerate(accuracies)
    )
    trained = (Trained(100, 1.0, 9.0, accuracies[0] if accuracies else 0.5, 0.1, 1.0),)
    ended = None if verdict is None else RunEnded(verdict, 100, 1.0, 1.0, last_epoch_loss=loss)
    return History(Path("run"), STARTED, trained, evaluated, ended)


def test_a_run_with_20_evaluations() -> None:
    numbers = run_numbers(history([0.05 * (i + 1) if i < 18 else 0.8 for i in range(20)]))
    assert numbers.acc == pytest.approx(80)
    assert numbers.early == pytest.approx((5 + 10) / 2)  # steps 5 and 10
    assert numbers.late == pytest.approx((sum(range(55, 95, 5)) + 80 + 80) / 10)  # steps 55 to 100
    assert numbers.drop == pytest.approx(90 - 80)
    assert (numbers.tloss, numbers.vloss) == (0.75, pytest.approx(0.1))
    assert numbers.eloss == pytest.approx(2 - 0.3 * 19)
    assert numbers.gap == pytest.approx(0.2 * 19)


@pytest.mark.parametrize("steps", [20, 33, 40, 375, 391, 1001])
def test_early_and_late_are_of_as_many_evaluations_whatever_the_number_of_steps(steps: int) -> None:
    settings = Settings(evaluations=20, evaluate_every=1)
    due = [step for step in range(1, steps + 1) if evaluation_is_due(step, steps, settings, 100)]
    evaluated = tuple(Evaluated(step, 1.0, "test", 1.0, 0.01 * i, 1.0) for i, step in enumerate(due))
    ended = RunEnded("finished", steps, 1.0, 1.0, last_epoch_loss=1.0)
    numbers = run_numbers(History(Path("run"), STARTED, (Trained(steps, 1.0, 9.0, 0.5, 0.1, 1.0),), evaluated, ended))
    assert (numbers.early, numbers.late) == (pytest.approx((0 + 1) / 2), pytest.approx(sum(range(10, 20)) / 10))


def test_early_has_at_least_the_first_evaluation() -> None:
    numbers = run_numbers(history([0.2, 0.4, 0.3]))  # at steps 33, 66 and 99
    assert (numbers.early, numbers.late) == (pytest.approx(20), pytest.approx(35))
    assert run_numbers(history([0.2])).late == pytest.approx(20)


def test_regression_has_no_accuracies_and_no_gap() -> None:
    numbers = run_numbers(history([None, None]))
    assert numbers == RunNumbers(None, None, None, None, 0.75, 1.9, 1.7, None)


def test_a_run_that_diverged_guesses() -> None:
    inf = math.inf
    assert run_numbers(history([0.9], verdict="diverged"), 0.1) == RunNumbers(10, 10, 10, None, inf, inf, inf, None)
    assert run_numbers(history([None], verdict="diverged")) == RunNumbers(None, None, None, None, inf, inf, inf, None)
    with pytest.raises(ValueError, match="the run in run diverged, so that chance is needed"):
        run_numbers(history([0.9], verdict="diverged"))


@pytest.mark.parametrize("verdict", [None, "interrupted"])
def test_a_run_under_way_has_no_numbers(verdict: Verdict | None) -> None:
    with pytest.raises(ValueError, match="the run in run has not ended"):
        run_numbers(history([0.9], verdict=verdict))


def test_a_run_that_was_not_evaluated() -> None:
    with pytest.raises(ValueError, match="the run in run was not evaluated"):
        run_numbers(history([]))


def test_records_of_schema_1_lack_what_they_lack() -> None:
    evaluated = (Evaluated(100, 1.0, "test", 0.5, 0.9, 1.0),)
    old = History(Path("run"), STARTED, (), evaluated, RunEnded("finished", 100, 1.0, 1.0))
    assert run_numbers(old) == RunNumbers(90, 90, 90, 0, None, 0.5, None, None)
    assert gap_at(old, 0.5) is None


def test_the_gap_at_equal_training_loss() -> None:
    run = history([0.1, 0.2, 0.3])  # losses on the subset 2.0, 1.7, 1.4; gaps 0, 0.2, 0.4
    assert gap_at(run, 1.7) == pytest.approx(0.2)
    assert gap_at(run, 1.6) == pytest.approx(0.2 + 0.2 / 3)
    assert gap_at(run, 1.4) == pytest.approx(0.4)
    assert gap_at(run, 1.3) is None and gap_at(run, 2.1) is None
