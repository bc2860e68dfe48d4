"""Histories of runs."""

from pathlib import Path

import pytest

from trimtab.records import (
    EVENTS,
    Evaluated,
    Event,
    EventLog,
    History,
    Resumed,
    RunEnded,
    RunStarted,
    Trained,
    find_runs,
)

START = RunStarted({"lr": 0.1}, "trimtab train", "a machine", {"torch": "2"}, 10)


def write(folder: Path, *events: Event) -> Path:
    folder.mkdir(parents=True)
    log = EventLog(folder / EVENTS)
    for event in events:
        log.write(event)
    log.close()
    return folder


def test_a_run_that_went_on(tmp_path: Path) -> None:
    trained = Trained(50, 0.5, 1.25, 0.5, 0.1, 3.5)
    evaluated = Evaluated(100, 1.0, "test", 1.0, 0.1, 7.0)
    stop, end = RunEnded("interrupted", 50, 3.5, 1.0), RunEnded("finished", 100, 7.0, 1.0)
    history = History.read(write(tmp_path / "a", START, trained, stop, Resumed(50, "x"), trained, evaluated, end))
    assert history == History(tmp_path / "a", START, (trained, trained), (evaluated,), end)
    assert History.read(write(tmp_path / "b", START, trained, stop, Resumed(50, "x"))).ended is None


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        History.read(tmp_path)
    with pytest.raises(ValueError, match="does not begin"):
        History.read(write(tmp_path / "a", Resumed(50, "x")))


def test_runs_are_found_once(tmp_path: Path) -> None:
    first, second = write(tmp_path / "x" / "b", START), write(tmp_path / "x" / "a" / "runs" / "c", START)
    assert list(find_runs([tmp_path / "x", first])) == [second, first]
