"""`trimtab train --track`: a tracker has the numbers of the records, once each, however often the run was resumed."""

import json
import math
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.bad_inputs.helpers import assert_refused, files
from tests.integrations.tracker_readers import READERS
from tests.processes import Command
from trimtab import TrimtabWarning, cli
from trimtab.integrations import trackers
from trimtab.records import EVENTS, Evaluated, LayerSeries, Probed, RunEnded, Trained, read_events
from trimtab.training.run import CHECKPOINT
from trimtab.training.tracking import RunTracking

TRAIN = ["train", "--network", "small-mlp", "--batch-size", "20", "--log-every", "2"]
PROBED = [*TRAIN, "--probe", "landscape", "--probe-every", "5", "--quiet"]


def recorded(folder: Path) -> dict[int, dict[str, float]]:
    """What a tracker must have of a run; of probes, one number."""
    found: dict[int, dict[str, float]] = {}
    for event in read_events(folder / EVENTS):
        if isinstance(event, Trained):
            numbers = {"train/loss": event.loss, "train/accuracy": event.accuracy, "train/lr": event.lr}
        elif isinstance(event, Evaluated):
            numbers = {"test/loss": event.loss, "test/accuracy": event.accuracy}
            numbers |= {"train_eval/loss": event.train_loss, "train_eval/accuracy": event.train_accuracy}
        elif isinstance(event, Probed):
            numbers = {"landscape/loss": event.result["loss"]}
        else:
            continue
        found.setdefault(event.step, {}).update(numbers)
    return found


def assert_tracked(name: str, folder: Path, run: Path, figures: bool = True) -> None:
    (found,) = READERS[name](folder)
    expected = recorded(run)
    assert found.run == run.name
    assert set(found.scalars) == set(expected)
    for step, numbers in expected.items():
        for key, value in numbers.items():
            tolerance = 1e-6 if name == "tensorboard" else 0.0  # it has single precision
            assert math.isclose(found.scalars[step][key], value, rel_tol=tolerance), (step, key)
    if name != "wandb":  # whose parts are put together when they are sent
        assert all(len(values) == 1 for values in found.written.values())
    assert bool(found.figures) == figures
    if figures:
        assert any("landscape" in figure for figure in found.figures) and len(found.figures) > 1


def test_series_of_layers_and_the_last_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: dict[str, float] = {}
    tracking = RunTracking("tensorboard", tmp_path)
    monkeypatch.setattr(tracking, "_scalars", lambda values, step: handed.update(values))
    tracking(LayerSeries(3, "gamma", {"0": 1.5, "2": math.nan, "4": [1.0, 2.0]}))
    tracking(RunEnded("finished", 3, 1.0, 1.0, last_epoch_loss=0.5))
    assert handed == {"gamma/0": 1.5, "train/last_epoch_loss": 0.5}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_run_that_was_killed_and_resumed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed; it is in the dev extra")
    monkeypatch.chdir(tmp_path)
    run = Path("mine")
    assert cli.main([*PROBED, "--steps", "6", "--track", name, "--out", "mine"]) == 0
    assert_tracked(name, run / name, run)
    saved = {path.name: path.read_bytes() for path in (run / CHECKPOINT, run / "settings.yaml")}
    resume = ["train", "--resume", "--quiet", "--steps", "12", "--track", name, "--out"]
    assert cli.main([*resume, "mine"]) == 0
    assert_tracked(name, run / name, run)
    if name != "mlflow":  # which has the place of its files written down in them
        run = Path("moved") / "mine"
        run.parent.mkdir()
        shutil.move("mine", run)
    for file, content in saved.items():  # as if it had been killed before it could save
        (run / file).write_bytes(content)
    assert cli.main([*resume, str(run)]) == 0
    assert max(recorded(run)) == 12
    assert_tracked(name, run / name, run)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_run_that_is_interrupted(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed; it is in the dev extra")
    words = [*TRAIN, "--steps", "100000", "--track", name, "--track-to", "all", "--out", "mine"]
    run = tmp_path / "mine"
    process = Command(words, tmp_path)
    process.wait_until(lambda: (run / "tracking.json").exists() and len((run / EVENTS).read_text().splitlines()) > 3)
    process.send(signal.SIGINT, to_group=True)
    assert process.end() == 130, process.streams()
    printed, error = process.streams()
    assert printed.endswith(f"go on with: trimtab train --resume --out mine --track {name} --track-to all\n")
    assert printed.count("\n") == 1 and "wandb:" not in error and "Traceback" not in error
    assert_tracked(name, tmp_path / "all", run, figures=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_overwriting_a_run_begins_a_new_one_there(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    for steps in ("8", "4"):
        told = [*PROBED, "--steps", steps, "--track", "tensorboard", "--out", str(run), "--force"]
        assert cli.main(told) == 0
    assert_tracked("tensorboard", run / "tensorboard", run)
    assert cli.main([*PROBED, "--steps", "4", "--out", str(run), "--force"]) == 0
    assert not (run / "tracking.json").exists()  # it says nothing of this one


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", full)  # type: ignore[arg-type]
    told = [*TRAIN, "--quiet", "--steps", "4", "--track", "tensorboard", "--out", str(tmp_path / "mine")]
    with pytest.warns(TrimtabWarning, match="no longer go to the tracker: OSError: the disk is full") as warned:
        status = cli.main(told)
    assert status == 0 and len(warned) == 1
    assert not (tmp_path / "mine" / "tracking.json").exists()


def test_a_damaged_identity_begins_a_new_run(tmp_path: Path) -> None:
    for content in ("", "[]", "[" * 100_000, json.dumps({"tracker": "wandb", "folder": "wandb", "run": 3}), "\xff"):
        (tmp_path / "tracking.json").write_text(content, encoding="latin-1")
        assert RunTracking("wandb", tmp_path)._known() is None
    (tmp_path / "tracking.json").write_text(json.dumps({"tracker": "wandb", "folder": "wandb", "run": "a"}))
    assert RunTracking("wandb", tmp_path)._known() == "a"
    assert RunTracking("wandb", tmp_path, tmp_path)._known() is None
    with pytest.raises(ValueError, match="there is no tracker 'neptune'; there are tensorboard, wandb, mlflow"):
        RunTracking("neptune", tmp_path)


@pytest.mark.parametrize(
    ("words", "missing", "sentence"),
    [
        (["--track", "neptune"], "", r"argument --track: invalid choice: 'neptune' \(choose from"),
        (["--track-to", "there"], "", "--track-to is where a tracker writes; name one with --track, or leave it out"),
        (["--track", "tensorboard"], "tensorboard", r"this needs tensorboard; pip install '\.\[tensorboard\]' in "),
        (["--track", "wandb"], "wandb", r"this needs wandb; pip install '\.\[wandb\]' in trimtab's source folder"),
        (["--track", "mlflow"], "mlflow", r"this needs mlflow-skinny; pip install '\.\[mlflow\]' in trimtab's"),
        (["--track", "tensorboard", "--track-to", "file"], "", "file is not a folder; name another with --track-to"),
        (["--track", "tensorboard", "--method", "bn", "--batch-size", "1"], "", "bn needs more than one value"),
    ],
)
def test_refused(
    words: list[str],
    missing: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; it is in the dev extra")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    assert_refused([*TRAIN, "--quiet", *words], sentence, capsys, tmp_path)
    assert list(files(tmp_path)) == [tmp_path / "file"]
