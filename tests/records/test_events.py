"""Events in a file of JSON lines."""

import math
from pathlib import Path

import pytest

from trimtab.records import (
    Checked,
    Evaluated,
    EventLog,
    History,
    LayerSeries,
    Resumed,
    RunEnded,
    RunStarted,
    Trained,
    read_events,
)

EVENTS = [
    RunStarted({"lr": 0.1}, "trimtab train", "a machine", {"torch": "2"}, 10),
    Trained(50, 0.5, 1.25, 0.5, 0.1, 3.5),
    Trained(100, 1.0, math.nan, None, 0.1, 3.5),
    Resumed(100, "another"),
    Evaluated(100, 1.0, "test", math.inf, 0.1, 7.0),
    Evaluated(100, 1.0, "test", 0.5, 0.1, 7.0, train_loss=math.nan, train_accuracy=0.25),
    LayerSeries(100, "gamma", {"1": 0.5, "3": [1.0, math.inf], "5": 2}),
    Checked("bnp-lemA1", "<=", 1.5, 2.0, True, 200, {"rows": 30, "tolerance": 1e-9}),
    Checked("bnp-prop10", "<=", math.inf, 2.0, False, 200, counterexample={"seed": 17}),
    RunEnded("diverged", 100, 7.0, 123.0, last_epoch_loss=0.5),
]
# As a trimtab wrote it that knew schema 1 only.
SCHEMA_1 = """\
{"schema": 1, "kind": "run_started", "settings": {"lr": 0.1, "step": "auto"}, "command": "trimtab train", \
"machine": "a machine", "versions": {"torch": "2"}, "parameters": 10, "execution": "step: eager", "defaults": ["lr"]}
{"schema": 1, "kind": "trained", "step": 50, "epoch": 0.5, "loss": 1.25, "accuracy": 0.5, "lr": 0.1, "seconds": 3.5}
{"schema": 1, "kind": "resumed", "step": 50, "machine": "another", "execution": "", "changed": {}}
{"schema": 1, "kind": "evaluated", "step": 100, "epoch": 1.0, "part": "test", "loss": "inf", "accuracy": 0.1, \
"seconds": 7.0}
{"schema": 1, "kind": "probed", "step": 0, "probe": "noise", "result": {}, "seconds": 1.0}
{"schema": 1, "kind": "run_ended", "verdict": "finished", "step": 100, "seconds": 7.0, "images_per_second": 123.0, \
"execution": "step: eager", "exploded_at": null}
"""


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


def test_records_of_schema_1_are_read_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(SCHEMA_1)
    old = History.read(tmp_path)
    assert old.started.settings == {"lr": 0.1, "step_mode": "auto"} and old.started.initial is None
    assert old.evaluated[0].train_loss is None and old.evaluated[0].train_accuracy is None
    assert old.ended is not None and old.ended.last_epoch_loss is None
    log = EventLog(path, keep=len(SCHEMA_1))
    log.write(LayerSeries(150, "gamma", {"1": 0.5}))
    log.close()
    both = History.read(tmp_path)
    assert (len(both.trained), len(both.probed), both.layer_series[0].values) == (1, 1, {"1": 0.5})


def test_layer_series_and_checks_are_in_the_history(tmp_path: Path) -> None:
    write(tmp_path / "events.jsonl")
    history = History.read(tmp_path)
    assert [one.series for one in history.layer_series] == ["gamma"]
    assert [(one.name, one.holds) for one in history.checked] == [("bnp-lemA1", True), ("bnp-prop10", False)]
