"""`--dry-run`: what a command takes, from a few real steps, and nothing is written."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_run import session
from trimtab import cli
from trimtab.records import Evaluated, History, Probed, Trained, read_events
from trimtab.training import estimate
from trimtab.training.estimate import Cost, cost, in_a_comparison, one_after_another
from trimtab.training.session import Session

SMALL = ["--network", "small-mlp", "--batch-size", "20"]  # 69 steps an epoch


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(estimate, "MAX_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], *told: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main([*told, "--dry-run", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "train", *SMALL, "--epochs", "2")
    assert (found["runs"], found["steps"]) == (1, 138)
    assert found["folder"] == "runs/digits-small-mlp-bnp-b20-s0"
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["train", *SMALL, "--epochs", "2", "--quiet", "--out", "run"]) == 0
    written = sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    assert written / 2 < found["disk"] < written * 3
    assert 0 < found["seconds"] < 60
    assert 50e6 < found["memory"] < 50e9


@pytest.mark.parametrize("width", ["40", "80"])
def test_for_a_person(width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert cli.main(["train", *SMALL, "--epochs", "2", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert starts == ["runs", "steps", "time", "memory", "disk", "step:", "This"]
    assert lines[-1] == "This was a dry run: nothing is written."


def test_the_rest_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["train", *SMALL, "--out", "run"]
    assert cli.main([*told, "--steps", "30", "--quiet"]) == 0
    before = files(tmp_path)
    assert printed(capsys, *told, "--steps", "100", "--resume")["steps"] == 70
    assert printed(capsys, *told, "--resume")["steps"] == 0
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (["--out", "run"], "holds a run already"),
        (["--out", "other"], "holds other files"),
        (["--out", "run", "--resume", "--lr", "5"], "lr"),
        (["--out", "missing", "--resume"], "there is no run in missing"),
        (["--out", "run", "--resume", "--steps", "5"], "not shorter"),
        (["--method", "bn", "--batch-size", "1"], "bn needs more than one value"),
    ],
)
def test_what_would_be_refused_is_refused(
    told: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("")
    assert cli.main(["train", *SMALL, "--out", "run", "--steps", "10", "--quiet"]) == 0
    before = files(tmp_path)
    capsys.readouterr()
    assert cli.main(["train", *SMALL, *told, "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert files(tmp_path) == before


@pytest.mark.slow
def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["compare", "--network", "small-mlp", "--methods", "vanilla,bn", "--batch-sizes", "500,1", "--epochs", "1"]
    told += ["--lrs", "0.1,0.2", "--seeds", "1", "--jobs", "1", "--out", "compared"]
    found = printed(capsys, *told)
    # Two to choose from and one to test, of 2 and of 1258 steps; BatchNorm cannot train on one row.
    assert (found["runs"], found["steps"]) == (9, 3 * (2 + 2 + 1258))
    assert len(found["notes"]) == 1
    assert found["notes"][0].startswith("small-mlp, batch size 1, bn cannot be trained: ")
    assert list(tmp_path.iterdir()) == []
    told[told.index("500,1")] = "500"
    assert cli.main([*told, "--json"]) == 0
    (run, *_) = (path.parent for path in Path("compared").rglob("events.jsonl"))
    (run / "checkpoint.pt").write_text("left behind by a crash")
    before = files(tmp_path)
    assert printed(capsys, *told)["runs"] == 0  # all done
    assert printed(capsys, *told, "--seeds", "3")["runs"] == 4
    assert printed(capsys, *told, "--force")["runs"] == 6
    assert files(tmp_path) == before


def test_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["probe", "small-mlp", "--batch-size", "20", "--steps", "5", "--probe", "noise,shift", "--probe-every", "2"]
    assert cli.main([*told, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("runs    2 ") and "steps   10 " in out
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*told, "--methods", "vanilla", "--quiet"]) == 0
    capsys.readouterr()
    assert cli.main([*told, "--dry-run"]) == 0  # what is done is not done again
    assert capsys.readouterr().out.startswith("runs    1 ")


@pytest.mark.parametrize(
    "told",
    [
        {"epochs": 2, "log_every": 7},
        {"epochs": 3, "evaluate_every": 2},
        {"steps": 50, "epochs": None, "evaluations": 7, "log_every": 9},
        {"steps": 12, "epochs": None, "probe": ("noise",), "probe_every": 5},
        {"steps": 12, "epochs": None, "probe": ("noise", "landscape"), "probe_at": (2, 7)},
    ],
)
def test_what_is_counted_is_what_happens(told: dict[str, Any], tmp_path: Path) -> None:
    from trimtab.training.launch import launch

    counted = cost(session(**told))
    launch(session(**told), tmp_path / "run", resume=False, command="")
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    history = History.read(tmp_path / "run")
    assert history.ended is not None and counted.steps == history.ended.step
    assert counted.evaluations == sum(isinstance(event, Evaluated) for event in events)
    assert counted.measurements == len({event.step for event in events if isinstance(event, Probed)})
    logged = sum(isinstance(event, Trained) for event in events)
    assert logged <= counted.steps // (told.get("log_every") or 1) + 1
    size = os.path.getsize(tmp_path / "run" / "events.jsonl")
    assert size / 4 < counted.records < size * 4
    assert counted.checkpoint == pytest.approx(os.path.getsize(tmp_path / "run" / "checkpoint.pt"), rel=0.2)


def a_cost(**told: Any) -> Cost:
    usual = {"steps": 100, "start": 1.0, "step": 0.1, "evaluation": 2.0, "evaluations": 3, "measurement": 4.0}
    rest = {"measurements": 5, "memory": 1000, "on_gpu": False, "checkpoint": 50, "records": 7}
    return Cost(**{**usual, **rest, **told})


def test_sums() -> None:
    assert a_cost().seconds == pytest.approx(1 + 10 + 6 + 20)
    both = one_after_another([a_cost(), a_cost(memory=3000, checkpoint=80)])
    assert (both.runs, both.steps, both.memory, both.disk) == (2, 200, 3000, 80 + 50 + 80 + 14)
    assert both.seconds == pytest.approx(74)
    many = in_a_comparison([(a_cost(), 6), (a_cost(memory=3000), 2), (a_cost(), 0)], jobs=4)
    assert (many.runs, many.steps, many.memory, many.disk) == (8, 800, 12000, 4 * 2 * 50 + 8 * 7)
    assert many.seconds == pytest.approx(8 * 37 / 4 + estimate.PROCESS_START_SECONDS)
    assert one_after_another([]).seconds == in_a_comparison([], 2).seconds == 0


def test_an_estimate_is_about_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps that take a quarter of a second each, the first of all three more."""
    ran, now, advance = session(steps=1000, epochs=None), [100.0], Session.advance

    def slow(self: Session, batch: Any = None) -> None:
        now[0] += 0.25 + 3.0 * (self.step == 0)
        advance(self, batch)

    monkeypatch.setattr(estimate, "monotonic", lambda: now[0])
    monkeypatch.setattr(Session, "advance", slow)
    found = cost(ran)
    assert (found.step, found.start, found.evaluation) == (0.25, 3.0, 0.0)
    assert found.seconds == 3.0 + 250.0


@pytest.mark.parametrize(
    "told",
    [
        [
            "compare",
            *SMALL[:2],
            "--methods",
            "bn",
            "--batch-sizes",
            "20",
            "--epochs",
            "1",
            "--rates",
            "1",
            "--seeds",
            "1",
        ],
        ["claims", "run", "--block", "1.7", "--all", "--anew"],
    ],
)
def test_it_says_how_a_gpu_is_shared(
    told: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.training.workers.gpu_sharing.sharing_notes", lambda device: ["They take turns."])
    assert cli.main([*told, "--dry-run"]) == 0
    assert "They take turns." in capsys.readouterr().out.splitlines()
