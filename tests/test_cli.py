"""The command line, as a person and as a program use it."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import trimtab
from trimtab import cli
from trimtab.training import demo


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = [
        replace(cell, epochs=1, evaluate_every=1)
        for cell in demo.cells()
        if cell.batch_size == 64 and cell.method in ("vanilla", "bnp")
    ]
    monkeypatch.setattr(demo, "cells", lambda: grid)
    monkeypatch.setattr(demo, "LEARNING_RATES", (0.1, 0.3))


@pytest.mark.parametrize("command", [["-m", "trimtab", "--version"], ["-m", "trimtab"]])
def test_runs_as_a_module(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert ("trimtab " + trimtab.__version__ if "--version" in command else "usage: trimtab") in done.stdout


@pytest.mark.usefixtures("small_grid")
def test_demo_ends_with_table_sentence_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--out", str(tmp_path / "new"), "--seeds", "1", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "Test accuracy in %" in out
    assert "BNP has the highest mean test accuracy in" in out.replace("\n", " ")
    figure = tmp_path / "new" / "demo.png"
    assert out.endswith(f"Figure: {figure}\n")
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in figure.parent.iterdir()] == ["demo.png"]


@pytest.mark.usefixtures("small_grid")
def test_demo_as_json_prints_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--out", str(tmp_path), "--seeds", "1", "--jobs", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == 1
    assert [cell["method"] for cell in result["cells"]] == ["vanilla", "bnp", "vanilla", "bnp"]
    assert all(0 < cell["mean"] <= 1 for cell in result["cells"])
    assert result["machine"]
    assert Path(result["figure"]).exists()


@pytest.mark.usefixtures("small_grid")
def test_a_figure_that_cannot_be_written_does_not_lose_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo.png").mkdir()
    assert cli.main(["demo", "--out", str(tmp_path), "--seeds", "1", "--jobs", "2"]) == 2
    captured = capsys.readouterr()
    assert "Test accuracy in %" in captured.out
    assert "trimtab: the figure could not be written" in captured.err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert cli.main(["demo", "--out", str(tmp_path / "file" / "below")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert all(line.startswith("trimtab: cannot write to the folder") and line.endswith("--out") for line in errors)
    assert len(errors) == 2


def test_an_interruption_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "compare", interrupted)
    assert cli.main(["demo", "--out", str(tmp_path / "new" / "deep")]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "rich" else importlib.util.find_spec(name))
    assert cli.main(["demo", "--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err == ("trimtab: this needs rich; install it with: pip install 'trimtab[lab]'\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_bad_numbers(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["demo", "--seeds", value])
    assert "must be a whole number, 1 or more" in capsys.readouterr().err
