"""Events in a file of JSON lines."""

import math
from pathlib import Path

import pytest

from trimtab.records import Evaluated, EventLog, Resumed, RunEnded, RunStarted, Trained, read_events

EVENTS = [
    RunStarted({"lr": 0.1}, "trimtab train", "a machine", {"torch": "2"}, 10),
    Trained(50, 0.5, 1.25, 0.5, 0.1, 3.5),
    Trained(100, 1.0, math.nan, None, 0.1, 3.5),
    Resumed(100, "another"),
    Evaluated(100, 1.0, "test", math.inf, 0.1, 7.0),
    RunEnded("diverged", 100, 7.0, 123.0),
]


def write(path: Path) -> list[int]:
    log = EventLog(path)
    positions = []
    for event in EVENTS:
        log.write(event)
        positions.append(log.position())
    log.close()
    return positions


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl")
    read = list(read_events(tmp_path / "events.jsonl"))
    assert [str(event) for event in read] == [str(event) for event in EVENTS]  # nan is not equal to itself


def test_going_on_takes_back_what_came_after(tmp_path: Path) -> None:
    positions = write(tmp_path / "events.jsonl")
    log = EventLog(tmp_path / "events.jsonl", keep=positions[1])
    log.write(EVENTS[-1])
    log.close()
    assert list(read_events(tmp_path / "events.jsonl")) == [*EVENTS[:2], EVENTS[-1]]


def test_a_last_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path)
    path.write_bytes(path.read_bytes()[:-5])
    assert len(list(read_events(path))) == len(EVENTS) - 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense\n", "line 1: this is no event"),
        ('{"kind": "unknown", "schema": 1}\n', "line 1: this is no event"),
        ('{"kind": "resumed", "schema": 9, "step": 1, "machine": "x"}\n', "has schema 9"),
        ("[1, 2]\n", "line 1: this is no event"),
        ('{"kind": "resumed", "schema": 1, "step": 1, "other": 2}\n', "line 1: this is no event"),
    ],
)
def test_foreign_files(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        list(read_events(path))
