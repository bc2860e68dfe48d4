"""A finished run made longer is the run that was so long from the beginning."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab import cli
from trimtab.records import Evaluated, History, Resumed, Trained, read_events
from trimtab.training import checkpoint

SMALL = ["--network", "small-mlp", "--batch-size", "20", "--momentum", "0.9", "--quiet"]  # 69 steps an epoch


def train(folder: Path, *told: str) -> int:
    return cli.main(["train", *SMALL, "--out", str(folder), *told])


def state(folder: Path) -> dict[str, Any]:
    saved: dict[str, Any] = checkpoint.load(folder / "checkpoint.pt", torch.device("cpu"))["session"]
    return saved


def assert_equal(ours: Any, theirs: Any) -> None:
    """To the bit: weights, momentum, BNP's averages, generators, sums."""
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, Mapping):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert_equal(ours[name], theirs[name])
    elif isinstance(ours, list | tuple):
        for one, other in zip(ours, theirs, strict=True):
            assert_equal(one, other)
    else:
        assert ours == theirs


def happened(folder: Path) -> list[Trained | Evaluated]:
    found = [event for event in read_events(folder / "events.jsonl") if isinstance(event, Trained | Evaluated)]
    return [replace(event, seconds=0.0) for event in found]


@pytest.mark.parametrize(
    ("told", "short", "long"),
    [
        (["--method", "bnp"], ["--epochs", "1"], ["--epochs", "2"]),
        (["--method", "bn", "--augment"], ["--steps", "31"], ["--steps", "100"]),
        (["--method", "bnp", "--schedule", "decay", "--factor", "0.01"], ["--epochs", "1"], ["--steps", "90"]),
        (["--schedule", "step", "--milestones", "1,2", "--warmup", "5"], ["--epochs", "1"], ["--epochs", "3"]),
        (
            ["--optimizer", "adam", "--momentum", "0", "--lr", "0.01", "--evaluations", "3"],
            ["--steps", "40"],
            ["--epochs", "1"],
        ),
    ],
    ids=["constant", "in the middle of an epoch", "decay, steps for epochs", "milestones", "adam, epochs for steps"],
)
def test_it_is_the_run_that_was_so_long(told: list[str], short: list[str], long: list[str], tmp_path: Path) -> None:
    told = [*told, "--log-every", "20"]
    assert train(tmp_path / "whole", *told, *long) == 0
    assert train(tmp_path / "parts", *told, *short) == 0
    before = len(happened(tmp_path / "parts"))
    assert train(tmp_path / "parts", "--resume", *told, *long) == 0
    assert_equal(state(tmp_path / "parts"), state(tmp_path / "whole"))
    ours, theirs = happened(tmp_path / "parts"), happened(tmp_path / "whole")
    assert ours[-1] == theirs[-1]
    # In a short run evaluations are spread evenly over it, so that they depend on its length.
    ours, theirs = ([e for e in events if isinstance(e, Trained)] for events in (ours, theirs))
    assert [event for event in ours if event in theirs] == theirs
    assert len(ours) - len(theirs) <= 1  # at the first end
    assert before
    assert (tmp_path / "parts" / "settings.yaml").read_text() == (tmp_path / "whole" / "settings.yaml").read_text()
    assert History.read(tmp_path / "parts").started.settings == History.read(tmp_path / "whole").started.settings


@pytest.mark.parametrize("by_hand", [False, True], ids=["by the flag", "in settings.yaml"])
def test_how_often_it_is_recorded_may_change(by_hand: bool, tmp_path: Path) -> None:
    assert train(tmp_path / "whole", "--steps", "20", "--log-every", "5") == 0
    run = tmp_path / "run"
    assert train(run, "--steps", "10", "--log-every", "5") == 0
    if by_hand:
        settings = (run / "settings.yaml").read_text()
        assert settings.count("log_every: 5\n") == 1
        (run / "settings.yaml").write_text(settings.replace("log_every: 5\n", "log_every: 1\n"))
    assert train(run, "--resume", "--steps", "20", *([] if by_hand else ["--log-every", "1"])) == 0
    assert [event.step for event in happened(run) if isinstance(event, Trained)] == [5, *range(10, 21)]
    assert_equal(state(run)["model"], state(tmp_path / "whole")["model"])


def test_the_records_say_so(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--steps", "10") == 0
    assert train(tmp_path / "run", "--resume", "--steps", "15") == 0
    (resumed,) = (event for event in read_events(tmp_path / "run" / "events.jsonl") if isinstance(event, Resumed))
    assert (resumed.step, resumed.changed) == (10, {"steps": 15})


def test_more_than_once_and_without_naming_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *SMALL, "--steps", "10"]) == 0
    assert cli.main(["train", *SMALL, "--steps", "15", "--resume"]) == 0
    assert cli.main(["train", *SMALL, "--steps", "20", "--resume"]) == 0
    assert cli.main(["train", *SMALL, "--resume"]) == 0  # as long as it is
    (folder,) = Path("runs").iterdir()
    assert state(folder)["step"] == 20


@pytest.mark.parametrize(
    ("told", "again", "sentence"),
    [
        (["--schedule", "cosine"], ["--steps", "20"], "schedule cosine"),
        (["--method", "brn"], ["--steps", "200"], "a schedule of brn that is scaled to its length"),
        ([], ["--steps", "9"], "has 10 steps: it can be made longer, not shorter"),
        ([], ["--steps", "20", "--lr", "0.5"], "lr"),
    ],
)
def test_what_cannot_be_extended_stays_as_it_is(
    told: list[str], again: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", "--steps", "10", *told) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    capsys.readouterr()
    assert train(tmp_path / "run", "--resume", *again) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_hand_edited_length_is_held_to_the_same_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for schedule, status in (("cosine", 2), ("constant", 0)):
        folder = tmp_path / schedule
        assert train(folder, "--steps", "10", "--schedule", schedule) == 0
        text = (folder / "settings.yaml").read_text()
        (folder / "settings.yaml").write_text(text.replace("steps: 10", "steps: 20"))
        capsys.readouterr()
        assert train(folder, "--resume", "--json") == status
        captured = capsys.readouterr()
        assert "schedule cosine" in captured.err if status else json.loads(captured.out)["step"] == 20
        if not status:
            assert captured.err == f"trimtab: the run in {folder} goes on to 20 steps, as settings.yaml now says\n"


def test_a_run_without_a_checkpoint_made_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It begins anew, says so, and its settings are the new ones for the next time."""
    folder = tmp_path / "run"
    assert train(folder, "--steps", "10") == 0
    (folder / "checkpoint.pt").unlink()
    events = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "events.jsonl").write_bytes(b"".join(events[:2]))  # as after a crash
    capsys.readouterr()
    assert train(folder, "--resume", "--steps", "15") == 0
    said = f"trimtab: the run in {folder} was stopped before its first checkpoint; it begins anew\n"
    assert capsys.readouterr().err == said
    assert train(folder, "--resume") == 0
    assert capsys.readouterr().err == ""
    assert state(folder)["step"] == 15
