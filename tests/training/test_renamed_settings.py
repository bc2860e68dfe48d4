"""`step_mode` was called `step`: what was written and typed by that name still works."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml

import trimtab
from trimtab import cli
from trimtab.data import load
from trimtab.records import EVENTS, History
from trimtab.report import collect
from trimtab.training.config import read_settings
from trimtab.training.folder import SETTINGS, resumed_settings
from trimtab.training.grid import Grid, setups
from trimtab.training.run import CHECKPOINT
from trimtab.training.settings import Settings

TRAIN = ["train", "--network", "small-mlp", "--epochs", "1", "--quiet", "--device", "cpu"]


def test_settings_can_be_made_and_read_by_the_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="step is now called step_mode") as caught:
        settings = Settings(step="eager")  # type: ignore[call-arg]
    assert caught[0].filename == __file__
    assert settings == Settings(step_mode="eager")
    assert "step" not in asdict(settings)
    with pytest.warns(DeprecationWarning, match="step_mode"):
        assert settings.step == "eager"  # type: ignore[attr-defined]


def test_the_flag_works_by_its_old_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*TRAIN, "--out", str(tmp_path / "run"), "--step", "eager"]) == 0
    assert capsys.readouterr().err == "trimtab: --step is now called --step-mode\n"
    assert read_settings(tmp_path / "run" / SETTINGS)["step_mode"] == "eager"
    assert cli.main(["train", "--help"]) == 0
    assert "--step-mode " in (shown := capsys.readouterr().out) and "--step " not in shown


def test_a_name_and_its_old_name_are_one(tmp_path: Path) -> None:
    path = tmp_path / "both.yaml"
    path.write_text("step: eager\nstep_mode: auto\n")
    with pytest.raises(ValueError, match=r"line 2: step_mode is set in line 1 already"):
        read_settings(path)


def test_a_run_written_with_the_old_name_goes_on_and_is_shown(tmp_path: Path) -> None:
    folders = tmp_path / "old", tmp_path / "new"
    for seed, folder in enumerate(folders):
        assert cli.main([*TRAIN, "--out", str(folder), "--seed", str(seed)]) == 0
    old = folders[0]
    settings = (old / SETTINGS).read_text()
    assert "step_mode: auto" in settings
    (old / SETTINGS).write_text(settings.replace("step_mode:", "step:"))
    events = (old / EVENTS).read_bytes()
    assert events.count(b'"step_mode"') == 2  # a setting, and among the defaults
    (old / EVENTS).write_bytes(events.replace(b'"step_mode"', b'"step"     '))  # of the same length
    state = torch.load(old / CHECKPOINT, weights_only=True)
    state["settings"]["step"] = state["settings"].pop("step_mode")
    torch.save(state, old / CHECKPOINT)

    assert resumed_settings(old, {}).step_mode == "auto"
    assert trimtab.load_run(old).settings.step_mode == "auto"
    started = History.read(old).started
    assert started.settings["step_mode"] == "auto"
    assert "step_mode" in started.defaults and "step" not in {*started.settings, *started.defaults}
    (panel,) = collect([tmp_path]).subjects[0].panels
    assert len(panel.curves) == 1  # alike but for the seed
    assert cli.main(["train", "--quiet", "--out", str(old), "--resume", "--epochs", "2"]) == 0
    assert "step_mode" in yaml.safe_load((old / SETTINGS).read_text())


def test_runs_of_a_comparison_keep_the_names_of_their_folders() -> None:
    """As they were when the setting was called `step`."""
    grid = Grid(
        networks=("small-mlp",),
        methods=("bnp",),
        batch_sizes=(64,),
        lrs=(0.1,),
        seeds=1,
        shared={"step_mode": "eager"},
    )
    (setup,) = setups(grid, load("digits"))
    (run,) = setup.final(0.1)
    assert run.name == "small-mlp-bnp-b64-lr0.1-s1-69181c15"
