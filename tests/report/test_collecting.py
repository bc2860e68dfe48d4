"""Finding records, sorting them into curves, and taking means."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.report.helpers import Plan, settings, write_comparison, write_run
from trimtab.records import EVENTS, RESULTS, Evaluated, History, RunEnded, RunStarted, Trained
from trimtab.report import ReportData, collect
from trimtab.report.curves import MOST, line, points

SMALL = Plan(networks=("cnn5",), sizes=(4, 2), methods=("bn", "bnp"), seeds=2)
START = RunStarted(settings(), "trimtab train", "a machine", {}, 1)


def run(*losses: float, accuracies: tuple[float, ...] = (), pace: float = 1.0, verdict: str = "finished") -> History:
    """A run with a stretch of 10 steps for each loss and an evaluation after each so many."""
    trained = tuple(Trained(10 * i, i, loss, 0.5, 0.1, pace * i) for i, loss in enumerate(losses, start=1))
    evaluated = tuple(Evaluated(10 * i, i, "test", 1.0, a, pace * i) for i, a in enumerate(accuracies, start=1))
    return History(Path(), START, trained, evaluated, RunEnded(verdict, 10 * len(losses), 1.0, 1.0))  # type: ignore[arg-type]


def labels(data: ReportData) -> dict[str, list[str]]:
    return {p.name: [curve.label for curve in p.curves] for s in data.subjects for p in s.panels}


def test_a_mean_is_the_mean_and_the_range_the_range() -> None:
    found = line([run(1, 2, 3), run(3, 2, 5, pace=3.0)], "trained", "accuracy")
    assert found.mean is not None
    np.testing.assert_allclose(found.mean.steps, [10, 20, 30])
    np.testing.assert_allclose(found.mean.values, [2, 2, 4])
    np.testing.assert_allclose(found.mean.seconds, [2, 4, 6])
    np.testing.assert_allclose(found.low, [1, 2, 3])
    np.testing.assert_allclose(found.high, [3, 2, 5])
    assert found.rest == found.broken == ()


def test_a_mean_ends_with_the_first_run_and_the_rest_is_kept() -> None:
    short = run(3, 3, float("nan"), verdict="diverged")
    found = line([run(1, 1, 7, 9), short], "trained", "accuracy")
    assert found.mean is not None
    np.testing.assert_allclose(found.mean.steps, [10, 20])
    (rest,), (broken,) = found.rest, found.broken
    np.testing.assert_allclose(rest.steps, [20, 30, 40])
    np.testing.assert_allclose(rest.values, [1, 7, 9])
    np.testing.assert_allclose([broken.steps[0], broken.values[0]], [20, 3])


def test_a_run_without_a_single_value_leaves_no_mean() -> None:
    nothing = run(float("inf"), verdict="diverged")
    found = line([run(1, 2), nothing], "trained", "accuracy")
    assert found.mean is None
    assert len(found.rest) == 1
    empty = line([nothing], "trained", "accuracy")
    assert (empty.mean, empty.rest, len(empty.values)) == (None, (), 0)


def test_between_points_of_other_runs_a_run_goes_straight() -> None:
    sparse = History(Path(), START, (run(0, 1, 2, 3).trained[0], run(0, 1, 2, 6).trained[3]), (), None)
    found = line([sparse, run(0, 2, 4, 6)], "trained", "accuracy")
    assert found.mean is not None
    np.testing.assert_allclose(found.mean.values, [0, 2, 4, 6])


def test_many_points_are_thinned() -> None:
    noise = np.random.default_rng(0).uniform(size=8 * MOST - 3)
    history = run(*noise, accuracies=tuple(noise))
    stretches, measured = (points(history, quantity, "accuracy") for quantity in ("trained", "measured"))
    for found in (stretches, measured):
        np.testing.assert_allclose(found.steps, found.seconds * 10)
        assert found.steps.tolist() == [10 * (8 * i + 5) for i in range(MOST)]
    np.testing.assert_allclose(stretches.values[0], noise[:5].mean())
    np.testing.assert_allclose(stretches.values[1:], noise[5:].reshape(-1, 8).mean(axis=1))
    np.testing.assert_allclose(measured.values, noise[4::8])
    assert measured.values[-1] == noise[-1]


def test_losses_are_measured_where_there_is_no_accuracy() -> None:
    history = run(1, 1, accuracies=(0.1, 0.2))
    assert points(history, "measured", "accuracy").values.tolist() == [0.1, 0.2]
    assert points(history, "measured", "loss").values.tolist() == [1.0, 1.0]


def test_a_comparison_has_a_panel_for_each_network_and_batch_size(tmp_path: Path) -> None:
    comparison = write_comparison(tmp_path / "a", SMALL)
    data = collect([tmp_path])
    assert labels(data) == {"cnn5-b4": ["BatchNorm", "BNP"], "cnn5-b2": ["BatchNorm", "BNP"]}
    (subject,) = data.subjects
    assert subject.comparison == comparison
    assert all(len(curve.runs) == 2 for _, curve in subject.curves)


def test_runs_of_a_comparison_are_not_listed_twice(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", SMALL)
    write_run(tmp_path / "b", settings())
    data = collect([tmp_path / "a" / "runs", tmp_path / "a", tmp_path, tmp_path])
    assert [subject.comparison is None for subject in data.subjects] == [False, True]
    assert [subject.name for subject in data.subjects] == ["1-a-", "runs-"]
    assert [len(curve.runs) for _, curve in data.subjects[1].curves] == [1]


def test_loose_runs_become_curves(tmp_path: Path) -> None:
    told = [
        settings(seed=0),
        settings(seed=1),
        settings(seed=0, lr=0.5, momentum=0.9),
        settings(method="bn"),
        settings(batch_size=8),
        settings(data="mnist", log_every=5),
    ]
    for i, one in enumerate(told):
        write_run(tmp_path / str(i), one)
    assert labels(collect([tmp_path])) == {
        "digits-cnn5-b2": ["BNP, lr 0.1, momentum none", "BNP, lr 0.5, momentum 0.9", "BatchNorm"],
        "digits-cnn5-b8": ["BNP"],
        "mnist-cnn5-b2": ["BNP"],
    }


def test_data_that_differ_are_in_the_label(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings())
    write_run(tmp_path / "b", settings(method="bn"), part="validation")
    assert labels(collect([tmp_path])) == {"cnn5-b2": ["BNP, on test data", "BatchNorm, on validation data"]}


def test_what_cannot_be_read_is_told_and_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "good", settings())
    write_run(tmp_path / "bad", settings())
    (tmp_path / "bad" / EVENTS).write_text("nonsense\nmore\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / RESULTS).write_text('{"schema": 1}')
    told = {name: value for name, value in settings().items() if name != "network"}
    write_run(tmp_path / "dumb", told)
    data = collect([tmp_path])
    assert labels(data) == {"cnn5-b2": ["BNP"]}
    assert len(data.problems) == 2
    assert "schema 1" in data.problems[0]
    assert data.problems[1].startswith("2 of 3 runs cannot be read, the first because: ")


def test_runs_under_way_are_drawn(tmp_path: Path) -> None:
    comparison = write_comparison(tmp_path, Plan(networks=("cnn5",), sizes=(2,), methods=("bn", "bnp"), seeds=2))
    cells = tuple(replace(cell, trials=cell.trials[:1]) for cell in comparison.cells)
    for part, seed in (("test", 7), ("validation", 8)):
        told = settings(method="bnp", seed=seed, lr=comparison.cells[1].lr, evaluate_on=part)
        write_run(tmp_path / "runs" / part, told, until=300, verdict=None)
    replace(comparison, cells=cells, finished=False).write(tmp_path)
    _, curve = collect([tmp_path]).subjects[0].panels[0].curves
    assert [run.folder.name for run in curve.runs] == [cells[1].trials[0].run, "test"]
    replace(comparison, cells=cells, finished=True).write(tmp_path)
    assert len(collect([tmp_path]).subjects[0].panels[0].curves[1].runs) == 1


def test_lost_runs_of_a_comparison_are_told(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", SMALL)
    shutil.rmtree(tmp_path / "a" / "runs")
    data = collect([tmp_path])
    assert labels(data) == {"cnn5-b4": [], "cnn5-b2": []}
    assert data.problems[0].startswith("8 of 8 runs of ")


def test_nothing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no records of a comparison or a run in"):
        collect([tmp_path])
    with pytest.raises(ValueError, match="there is no folder"):
        collect([tmp_path / "x"])
    (tmp_path / EVENTS).write_text("nonsense\nmore\n")
    with pytest.raises(ValueError, match="line 1: this is no event"):
        collect([tmp_path])


def test_a_cell_of_a_run_that_is_named_twice_does_no_harm(tmp_path: Path) -> None:
    comparison = write_comparison(tmp_path / "a", SMALL)
    first = comparison.cells[0]
    twice = replace(first, trials=(first.trials[0], first.trials[0]))
    replace(comparison, cells=(twice, *comparison.cells[1:])).write(tmp_path / "a")
    assert [len(curve.runs) for _, curve in collect([tmp_path]).subjects[0].curves] == [2, 2, 2, 2]
