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
from trimtab.cli import common
from trimtab.training import demo

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(demo.DEMO, methods=("vanilla", "bnp"), batch_sizes=(64,), epochs={64: 1}, lrs=(0.1, 0.3))
    monkeypatch.setattr(demo, "DEMO", small)


@pytest.mark.parametrize("command", [["-m", "trimtab", "--version"], ["-m", "trimtab"]])
def test_runs_as_a_module(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert ("trimtab " + trimtab.__version__ if "--version" in command else "usage: trimtab") in done.stdout


@pytest.mark.usefixtures("small_grid")
def test_demo_ends_with_table_sentence_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["demo", "--out", str(tmp_path / "new"), "--seeds", "1", "--jobs", "2"]
    assert cli.main(told) == 0
    out = capsys.readouterr().out
    assert "Test accuracy in %" in out
    assert " the highest mean test accuracy in " in out.replace("\n", " ")
    assert "\n- There is one seed: another may give another order.\n" in out
    assert out.endswith(f"Page: {tmp_path / 'new' / 'report.html'}\n")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"report.html", "results.json", "runs"}
    assert cli.main([*told, "--json"]) == 0  # all is done already
    result = capsys.readouterr().out
    assert result == (tmp_path / "new" / "results.json").read_text()
    assert [cell["method"] for cell in json.loads(result)["cells"]] == ["vanilla", "bnp", "vanilla", "bnp"]


def test_compare_report_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = (
        "compare --network small-mlp --methods bnp,vanilla --batch-sizes 100,50 --epochs 100=1,50=2 --rates 1 --seeds 1"
    )
    monkeypatch.setattr("sys.argv", ["trimtab", *told.split()])
    assert cli.main(told.split()) == 0
    out = capsys.readouterr().out
    assert "Trained by batch size: 100: 1 epoch, 50: 2 epochs." in out
    folder = Path("runs/compare-digits-small-mlp")
    result = json.loads((folder / "results.json").read_text())
    assert result["command"] == f"trimtab {told}"
    assert result["parts"] == [1397, 0, 400]
    assert [(cell["batch_size"], cell["epochs"], cell["lr"]) for cell in result["cells"]] == [
        *((100, 1, 0.1), (100, 1, 0.1)),
        *((50, 2, 0.1), (50, 2, 0.1)),
    ]
    assert cli.main(["report", str(folder), "--figures", "png,pdf", "--out", "page.html"]) == 0
    printed = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert printed[0] == Path("page.html")
    assert {path.suffix for path in printed[1:]} == {".png", ".pdf"}
    assert all(path.stat().st_size > 1000 for path in printed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "nonsense"], "there is no method 'nonsense'"),
        (["--network", "nonsense"], "nonsense"),
        (["--data", "nonsense"], "no data set 'nonsense'"),
        (["--batch-sizes", "64", "--epochs", "32=1"], "--epochs names the batch size 32"),
        (["--batch-sizes", "5000"], "a batch of 5000 is more than"),
        (["--validation", "0"], "chosen on validation data"),
        (["--validation", "2000"], "validation size must be"),
        (["--device", "nonsense"], "no device 'nonsense'"),
        (["--rho", "many"], "rho"),
    ],
)
def test_what_is_wrong_with_a_comparison_is_said_before_anything_is_written(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", "--out", str(tmp_path / "new"), "--jobs", "1", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trimtab: ") and error.count("\n") == 1
    assert message in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [["--lrs", "0.1,much"], ["--lrs", "0"], ["--batch-sizes", "-1"], ["--epochs", "64=0"], ["--methods", ","]],
)
def test_what_cannot_be_understood(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *words]) == 2
    assert "must be" in capsys.readouterr().err


def test_settings_that_a_comparison_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.yaml").write_text("lr: 0.1\n")
    assert cli.main(["compare", "--config", str(tmp_path / "settings.yaml")]) == 2
    assert "lr is decided by the comparison" in capsys.readouterr().err


def test_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path)]) == 2
    assert cli.main(["report", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("trimtab: ") == 2
    assert list(tmp_path.iterdir()) == []


def test_report_over_damaged_records_says_so_and_makes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("whole", "damaged"):
        told = ["train", "--network", "small-mlp", "--epochs", "1", "--quiet", "--out", str(tmp_path / name)]
        assert cli.main(told) == 0
    assert cli.main(["report", str(tmp_path)]) == 0
    (tmp_path / "damaged" / "events.jsonl").write_text("nonsense\n")
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'page.html'}\n"
    assert captured.err.startswith(f"trimtab: {tmp_path / 'damaged' / 'events.jsonl'}, line 1")
    assert captured.err.count("\n") == 1
    assert "line 1" in (tmp_path / "page.html").read_text()


def test_data_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list", "--data-root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "trimtab data fetch mnist" in out
    assert "built in" in out


def test_data_fetch_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "fetch", "digits", "--data-root", str(tmp_path)]) == 2
    assert cli.main(["data", "fetch", "nonsense", "--data-root", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "nothing to fetch" in errors[0]


@pytest.mark.slow
@pytest.mark.usefixtures("small_grid")
def test_a_page_that_cannot_be_written_does_not_lose_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["demo", "--out", str(tmp_path), "--seeds", "1", "--jobs", "2"]
    assert cli.main(told) == 0
    (tmp_path / "report.html").unlink()
    (tmp_path / "report.html").mkdir()
    capsys.readouterr()
    assert cli.main(told) == 1
    captured = capsys.readouterr()
    assert "Test accuracy in %" in captured.out
    assert "trimtab: the page could not be written" in captured.err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert cli.main(["demo", "--out", str(tmp_path / "file" / "below")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert all(line.startswith("trimtab: ") and line.endswith("--out") for line in errors)
    assert len(errors) == 2


def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "find_spec", lambda name: None if name == "rich" else importlib.util.find_spec(name))
    for command in (
        ["demo", "--out", str(tmp_path / "new")],
        ["compare"],
        ["report", "x"],
        ["data", "list"],
        ["train"],
    ):
        assert cli.main(command) == 2
        assert capsys.readouterr().err == (
            "trimtab: this needs rich; pip install '.[lab]' in trimtab's source folder gets it\n"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_bad_numbers(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--seeds", value]) == 2
    assert "must be a whole number, 1 or more" in capsys.readouterr().err
