"""Progress with and without a terminal."""

import io
import itertools
import time
from typing import Any

import pytest
from rich.console import Console

from trimtab import cli
from trimtab.cli import display
from trimtab.training import run
from trimtab.training.compare import ComparisonProgress
from trimtab.training.run import Progress


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line at each call."""
    monkeypatch.setattr(display, "FIRST_LINE", 0.0)
    monkeypatch.setattr(display, "BETWEEN_LINES", 0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.usefixtures("impatient")
def test_train_prints_lines_without_a_terminal(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["train", "--network", "small-mlp", "--epochs", "1", "--batch-size", "64", "--log-every", "7"]
    told += ["--evaluations", "1"]
    assert cli.main([*told, "--out", str(tmp_path / "run [red]")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "run [red]"  # a name is not markup
    assert lines[2].startswith("run [red]: step 7 of 21 (33 %), epoch 0.3, loss ")
    assert "images/s" in lines[2]
    assert lines[3].endswith(" left")
    assert any(line.startswith("run [red]: step 21 of 21 (100 %)") and " test " in line for line in lines)


@pytest.mark.usefixtures("impatient")
@pytest.mark.usefixtures("forked_workers")
def test_compare_and_probe_print_lines_without_a_terminal(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--network", "small-mlp", "--methods", "vanilla", "--epochs", "1", "--lrs", "0.1", "--seeds", "1"]
    assert cli.main(["compare", *told, "--jobs", "1", "--out", str(tmp_path / "compare")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("all runs: step 21 of 21 (100 %), testing")
    told = ["small-mlp", "--methods", "vanilla", "--steps", "4", "--log-every", "2", "--at", "3", "--probe", "noise"]
    assert cli.main(["probe", *told, "--out", str(tmp_path / "probe")]) == 0
    assert "vanilla: step 4 of 4 (100 %)" in capsys.readouterr().err


def test_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, file = Clock(), io.StringIO()
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(display, "Terminal", lambda **_: Console(file=file))
    with display.display_comparison() as show:
        for second in range(601):
            clock.now = 100.0 + second
            show(ComparisonProgress(1000 + 10 * second, 1000 + 10 * 1200, "testing"))
    lines = file.getvalue().splitlines()
    assert 18 <= len(lines) <= 24
    assert lines[0] == "all runs: step 1050 of 13000 (8 %), testing, 0:19:55 left"  # steps done before took no time
    assert lines[-1].endswith("left")


@pytest.mark.usefixtures("impatient")
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    dumb = Console(file=file, force_terminal=True, width=80, _environ={"TERM": "dumb"})
    monkeypatch.setattr(display, "Terminal", lambda **_: dumb)
    with display.display_comparison() as show:
        show(ComparisonProgress(5, 10, "testing"))
    assert file.getvalue() == "all runs: step 5 of 10 (50 %), testing\n"


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_bar_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    terminal = Console(file=file, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(display, "Terminal", lambda **_: terminal)
    with display.display("name") as show:
        show(Progress(500, 15000, 10.2, 0.12345, 0.987, "validation", 0.9612, 123456.0))
    shown = [part for line in file.getvalue().split("\n") for part in line.split("\r")]
    assert any(("epoch 10.2" in part) == (width > 20) and "…" not in part for part in shown)
    assert ("images/s" in file.getvalue()) == (width == 120)
    assert max(len(part) for part in shown if "\x1b" not in part) <= width


def test_a_run_with_rare_records_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SHOW_SECONDS", -1.0)
    from tests.training.test_run import session

    seen: list[Progress] = []
    run.Run(session(steps=6, epochs=None, log_every=50, evaluations=1), show=seen.append).train()
    assert [progress.step for progress in seen[:5]] == [1, 2, 3, 4, 5]
    assert all(one.step <= other.step for one, other in itertools.pairwise(seen))
