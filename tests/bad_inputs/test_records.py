"""Records with fields that cannot be: `trimtab report` over one of them says what is wrong and writes nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bad_inputs.helpers import assert_refused
from tests.records.test_comparison import CELL, comparison

STARTED = {
    "settings": {"data": "digits", "network": "small-mlp", "method": "bnp", "batch_size": 4},
    "command": "trimtab train",
    "machine": "none",
    "versions": {"torch": "2"},
    "parameters": 7,
}
TRAINED = {"step": 1, "epoch": 0.5, "loss": 1.0, "accuracy": 0.5, "lr": 0.1, "seconds": 1.0}
EVALUATED = {"step": 1, "epoch": 0.5, "part": "test", "loss": 1.0, "accuracy": 0.5, "seconds": 1.0}
PROBED: dict[str, Any] = {"step": 1, "probe": "noise", "result": {}, "seconds": 1.0}
RESUMED = {"step": 1, "machine": "none"}
ENDED = {"verdict": "finished", "step": 1, "seconds": 1.0, "images_per_second": 9.0}

SERIES = {"step": 1, "series": "gamma", "values": {"0": 1.0}}
CHECKED = {"name": "a", "relation": "<=", "left": 1.0, "right": 2.0, "holds": True, "draws": 200}


def event(kind: str, told: dict[str, Any], **changed: Any) -> str:
    return json.dumps({"schema": 1, "kind": kind, **told, **changed})


def without(kind: str, told: dict[str, Any], name: str) -> str:
    return event(kind, {key: value for key, value in told.items() if key != name})


EVENTS: list[tuple[str, str]] = [
    ("nonsense", r"events\.jsonl, line 2: this is no event of a run"),
    ("[]", r"line 2: this is no event of a run"),
    ("3", r"line 2: this is no event"),
    ("{}", r"line 2: this is no event"),
    ("[" * 100_000, r"line 2: this is no event"),
    ('{"schema": 1, "kind": "foo"}', r"line 2: this is no event"),
    ('{"schema": 1, "kind": []}', r"line 2: this is no event"),
    ('{"kind": "trained"}', r"line 2: this is no event"),
    ('{"schema": 99, "kind": "trained"}', r"has schema 99; this trimtab reads 1 and 2"),
    ('{"schema": "x", "kind": "trained"}', r"has schema 'x'; this trimtab reads 1 and 2"),
    ('{"schema": true, "kind": "trained"}', r"has schema True; this trimtab reads 1 and 2"),
    (event("evaluated", EVALUATED, train_loss="low"), r"train_loss is 'low', not a number"),
    (event("evaluated", EVALUATED, train_accuracy=1.5), r"train_accuracy is 1\.5, not a number from 0 to 1"),
    (event("run_ended", ENDED, last_epoch_loss=[]), r"last_epoch_loss is \[\], not a number"),
    (event("layer_series", SERIES, series=3), r"series is 3, not text"),
    (event("layer_series", SERIES, values=[1]), r"values is \[1\], not names with values"),
    (event("layer_series", SERIES, values={"0": "x"}), r"values has 'x' for '0', not a number or a list of numbers"),
    (event("layer_series", SERIES, values={"0": [1, None]}), r"values has \[1, None\] for '0', not a number"),
    (event("checked", CHECKED, holds=1), r"holds is 1, not true or false"),
    (event("checked", CHECKED, draws=-1), r"draws is -1, not a whole number, 0 or more"),
    (event("checked", CHECKED, left=None), r"left is None, not a number"),
    (event("checked", CHECKED, counterexample={"seed": 1}), r"it holds, and has a counterexample"),
    (without("checked", CHECKED, "right"), r"it has no right"),
    (event("trained", TRAINED, step=-5), r"line 2: .*: step is -5, not a whole number, 0 or more"),
    (event("trained", TRAINED, step="x"), r"step is 'x', not a whole number, 0 or more"),
    (event("trained", TRAINED, step=1.5), r"step is 1\.5, not a whole number"),
    (event("trained", TRAINED, step=True), r"step is True, not a whole number"),
    (event("trained", TRAINED, step=None), r"step is None, not a whole number"),
    (event("trained", TRAINED, step=[1]), r"step is \[1\], not a whole number"),
    (event("trained", TRAINED, epoch="x"), r"epoch is 'x', not a number, 0 or more"),
    (event("trained", TRAINED, epoch=-1.0), r"epoch is -1\.0, not a number, 0 or more"),
    (event("trained", TRAINED, loss="x"), r"loss is 'x', not a number"),
    (event("trained", TRAINED, loss=None), r"loss is None, not a number"),
    (event("trained", TRAINED, accuracy=7.0), r"accuracy is 7\.0, not a number from 0 to 1"),
    (event("trained", TRAINED, accuracy="high"), r"accuracy is 'high', not a number from 0 to 1"),
    (event("trained", TRAINED, lr=-1), r"lr is -1, not a number, 0 or more"),
    (event("trained", TRAINED, lr=[]), r"lr is \[\], not a number"),
    (event("trained", TRAINED, seconds="x"), r"seconds is 'x', not a number, 0 or more"),
    (event("trained", TRAINED, foo=1), r"it has 'foo', which is not known"),
    (without("trained", TRAINED, "loss"), r"it has no loss"),
    (event("evaluated", EVALUATED, part=3), r"part is 3, not text"),
    (event("evaluated", EVALUATED, step=-1), r"step is -1"),
    (without("evaluated", EVALUATED, "part"), r"it has no part"),
    (event("probed", PROBED, probe=None), r"probe is None, not text"),
    (event("probed", PROBED, result=[]), r"result is \[\], not names with values"),
    (event("probed", PROBED, seconds=-1), r"seconds is -1"),
    (event("resumed", RESUMED, step="x"), r"step is 'x'"),
    (event("resumed", RESUMED, machine=3), r"machine is 3, not text"),
    (event("resumed", RESUMED, changed="x"), r"changed is 'x', not names with values"),
    (event("run_ended", ENDED, verdict="won"), r"verdict is 'won', not one of finished, diverged, interrupted"),
    (event("run_ended", ENDED, verdict=None), r"verdict is None, not one of"),
    (event("run_ended", ENDED, step=-1), r"step is -1"),
    (event("run_ended", ENDED, images_per_second="fast"), r"images_per_second is 'fast'"),
]
STARTS: list[tuple[str, str]] = [
    (event("trained", TRAINED), r"does not begin with the start of a run"),
    (event("run_started", STARTED, settings=3), r"line 1: .*settings is 3, not names with values"),
    (event("run_started", STARTED, settings=[]), r"settings is \[\], not names with values"),
    (event("run_started", STARTED, settings={}), r"does not say which data, network, method and batch size"),
    (event("run_started", STARTED, command=None), r"command is None, not text"),
    (event("run_started", STARTED, versions={"torch": 2}), r"versions is \{'torch': 2\}, not names with values"),
    (event("run_started", STARTED, versions=[]), r"versions is \[\]"),
    (event("run_started", STARTED, parameters=-1), r"parameters is -1"),
    (event("run_started", STARTED, parameters="many"), r"parameters is 'many', not a whole number"),
    (without("run_started", STARTED, "machine"), r"it has no machine"),
]


@pytest.mark.parametrize(("line", "sentence"), EVENTS, ids=[sentence[:50] for _, sentence in EVENTS])
def test_events(line: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [event("run_started", STARTED), line, event("run_ended", ENDED)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    assert_refused(["report", str(tmp_path)], sentence, capsys, tmp_path)


@pytest.mark.parametrize(("line", "sentence"), STARTS, ids=[sentence[:50] for _, sentence in STARTS])
def test_starts(line: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_text(line + "\n" + event("run_ended", ENDED) + "\n")
    assert_refused(["report", str(tmp_path)], sentence, capsys, tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"does not begin with the start of a run"),
        (b"\xff\xfe\n\n", r"line 1: this is no event of a run"),
        (b"\0\0\0\0\n", r"line 1: this is no event of a run"),
        (b'{"schema": 1, "kind": "run_st', r"does not begin with the start of a run"),
    ],
)
def test_files_of_events(content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events.jsonl").write_bytes(content)
    assert_refused(["report", str(tmp_path)], sentence, capsys, tmp_path)


def put(*path: Any) -> Callable[[Any], None]:
    *names, last, value = path

    def change(content: Any) -> None:
        for name in names:
            content = content[name]
        content[last] = value

    return change


RESULTS: list[tuple[Callable[[Any], None], str]] = [
    (put("schema", 1), r"has schema 1; this trimtab reads 2"),
    (put("schema", None), r"has schema None"),
    (put("cells", 3), r"it has no list of cells"),
    (put("cells", [3]), r"cells are not all fields with their names"),
    (put("cells", [{}]), r"it has no list of candidates"),
    (put("cells", 0, "batch_size", -1), r"batch_size is -1, not a whole number, 0 or more"),
    (put("cells", 0, "batch_size", "x"), r"batch_size is 'x'"),
    (put("cells", 0, "network", 3), r"network is 3, not text"),
    (put("cells", 0, "method", None), r"method is None, not text"),
    (put("cells", 0, "epochs", "x"), r"epochs is 'x'"),
    (put("cells", 0, "lr", "x"), r"lr is 'x', not a number, 0 or more"),
    (put("cells", 0, "foo", 1), r"it has 'foo', which is not known"),
    (put("cells", 0, "candidates", None), r"it has no list of candidates"),
    (put("cells", 0, "candidates", 0, "lr", -1), r"lr is -1"),
    (put("cells", 0, "candidates", 0, "value", "x"), r"value is 'x', not a number"),
    (put("cells", 0, "candidates", 0, "run", "../../x"), r"run is '\.\./\.\./x', not the name of a folder"),
    (put("cells", 0, "candidates", 0, "run", ""), r"run is '', not the name of a folder"),
    (put("cells", 0, "candidates", 0, "run", 3), r"run is 3, not text"),
    (put("cells", 0, "trials", 0), r"it has no list of trials"),
    (put("cells", 0, "trials", 0, 3), r"it is 3, not fields with their names"),
    (put("cells", 0, "trials", 0, "seed", -1), r"seed is -1"),
    (put("cells", 0, "trials", 0, "value", "x"), r"value is 'x', not a number"),
    (put("cells", 0, "trials", 0, "diverged", "no"), r"diverged is 'no', not true or false"),
    (put("cells", 0, "trials", 0, "run", ".."), r"run is '\.\.', not the name of a folder"),
    (put("parts", [1, 2]), r"parts are not three numbers of samples"),
    (put("parts", "abc"), r"it has no list of parts"),
    (put("parts", [1, 2, -3]), r"parts are not three numbers"),
    (put("metric", "speed"), r"metric is 'speed', not one of accuracy, loss"),
    (put("seeds", "x"), r"seeds is 'x'"),
    (put("side_by_side", -1), r"side_by_side is -1"),
    (put("finished", 1), r"finished is 1, not true or false"),
    (put("versions", {"torch": None}), r"versions is \{'torch': None\}, not names with values"),
    (put("machine", None), r"machine is None, not text"),
    (put("command", []), r"command is \[\], not text"),
    (put("notes", [3]), r"notes are not sentences"),
    (put("notes", "abc"), r"it has no list of notes"),
    (put("foo", 1), r"it has 'foo', which is not known"),
]


@pytest.mark.parametrize(("change", "sentence"), RESULTS, ids=[sentence[:50] for _, sentence in RESULTS])
def test_results(
    change: Callable[[Any], None], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(comparison(CELL).to_json())
    change(content)
    (tmp_path / "results.json").write_text(json.dumps(content))
    assert_refused(["report", str(tmp_path)], sentence, capsys, tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"results\.json is not JSON"),
        (b"{", r"results\.json is not JSON"),
        (b"\xff\xfe", r"results\.json is not JSON"),
        (b"[" * 100_000, r"results\.json is not JSON"),
        (b"[]", r"has schema None"),
        (b'{"schema": 2}', r"is not the result of a comparison"),
        (b"9" * 5000, r"results\.json is not JSON"),
    ],
)
def test_files_of_results(content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_bytes(content)
    assert_refused(["report", str(tmp_path)], sentence, capsys, tmp_path)
    told = ["compare", "--jobs", "1", "--out", str(tmp_path)]
    assert_refused(told, r"holds something else than a comparison; name another folder", capsys, tmp_path)
