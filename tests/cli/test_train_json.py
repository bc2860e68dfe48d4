"""`trimtab train --json`."""

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab import cli
from trimtab.records import History

SHORT = ["train", "--network", "small-mlp", "--batch-size", "64", "--epochs", "1", "--json"]


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = cli.main(arguments)
    return status, json.loads(capsys.readouterr().out)


def test_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = printed([*SHORT, "--out", str(tmp_path / "run")], capsys)
    history = History.read(tmp_path / "run")
    assert status == 0 and history.ended is not None
    assert (told["verdict"], told["step"], told["steps"]) == ("finished", 21, 21)
    assert told["seconds"] == history.ended.seconds > 0
    assert told["images_per_second"] == history.ended.images_per_second
    last = history.evaluated[-1]
    assert told["last_evaluation"] == {
        "step": 21,
        "epoch": 1.0,
        "part": "test",
        "loss": last.loss,
        "accuracy": last.accuracy,
        "train_loss": last.train_loss,
        "train_accuracy": last.train_accuracy,
    }
    ended = history.ended
    assert told["last_epoch"] == {"loss": ended.last_epoch_loss, "accuracy": ended.last_epoch_accuracy}
    assert last.train_loss is not None and ended.last_epoch_loss is not None
    assert told["folder"] == str(tmp_path / "run")
    assert (told["settings"]["method"], told["settings"]["lr"]) == ("bnp", 0.1)


def test_a_run_that_diverges_is_still_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = [*SHORT, "--method", "vanilla", "--lr", "1e30", "--out", str(tmp_path / "run")]
    status, found = printed(told, capsys)
    assert status == 3
    assert found["verdict"] == "diverged"
    assert found["last_evaluation"] is None


def test_what_is_wrong_is_a_sentence_and_no_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SHORT, "--network", "nonsense", "--out", str(tmp_path / "run")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("trimtab: ")
