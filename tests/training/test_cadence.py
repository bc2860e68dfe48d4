"""At which steps a run is recorded and evaluated."""

from pathlib import Path

import pytest
import torch

from trimtab.records import History
from trimtab.training import checkpoint
from trimtab.training.cadence import evaluation_is_due, record_every
from trimtab.training.folder import holds
from trimtab.training.launch import launch
from trimtab.training.recipes import defaults, resolve
from trimtab.training.session import Session
from trimtab.training.settings import Settings

CPU = torch.device("cpu")


def recorded(total: int, **told: int) -> list[int]:
    every = record_every(total, Settings(**told))
    return [*range(every, total, every), total]


def evaluated(total: int, steps_per_epoch: int, network: str = "small-mlp", **told: int) -> list[int]:
    settings = resolve(Settings(network=network, **told))
    return [step for step in range(1, total + 1) if evaluation_is_due(step, total, settings, steps_per_epoch)]


def test_a_short_run_has_a_curve_of_its_training_loss() -> None:
    assert recorded(24) == [*range(1, 25)]
    assert recorded(105) == [*range(5, 106, 5)]
    assert recorded(1000) == recorded(1000, log_every=50) == [*range(50, 1001, 50)]
    assert len(recorded(100_000)) == 2000
    # What was asked for is done.
    assert recorded(24, log_every=50) == [24]
    assert recorded(24, log_every=10) == [10, 20, 24]


def test_a_run_of_few_epochs_is_evaluated_more_than_twice() -> None:
    assert evaluated(24, 21) == [6, 12, 18, 24]
    assert evaluated(20, 20) == [5, 10, 15, 20]
    assert evaluated(40, 20) == [10, 20, 30, 40]
    assert evaluated(60, 20) == [20, 40, 60]
    assert evaluated(2, 20) == [1, 2]
    assert evaluated(60, 20, evaluate_every=2) == [40, 60]
    assert evaluated(24, 21, evaluations=1) == [24]


def test_whoever_says_how_often_in_epochs_is_not_overruled_by_a_recipe() -> None:
    assert evaluated(10_000, 1, "dln25") == [*range(100, 10_001, 100)]
    assert evaluated(10_000, 1, "dln25", evaluate_every=5000) == [5000, 10_000]
    assert len(evaluated(50, 1, "dln25")) == 50


@pytest.mark.parametrize("method", ["bn", "bnp"])
def test_how_often_is_recorded_does_not_change_the_training(method: str, tmp_path: Path) -> None:
    weights = []
    for name, told in (("often", {}), ("rarely", {"log_every": 50, "evaluations": 1})):
        settings = resolve(Settings(network="small-mlp", method=method, batch_size=64, steps=30, **told))
        launch(Session(settings, CPU), tmp_path / name, resume=False, command="")
        weights.append(checkpoint.load(tmp_path / name / "checkpoint.pt", CPU)["session"]["model"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    often = History.read(tmp_path / "often")
    assert len(often.trained) == 30 and len(often.evaluated) == 4
    assert len(History.read(tmp_path / "rarely").trained) == 1


def test_the_records_tell_which_settings_nobody_asked_for(tmp_path: Path) -> None:
    told = resolve(Settings(network="small-mlp", method="bnp", batch_size=32, steps=3, rho=0.9))
    launch(Session(told, CPU), tmp_path, resume=False, command="")
    usual = History.read(tmp_path).started.defaults
    assert usual == defaults(told)
    assert {"lr", "momentum", "eps1", "augment", "seed"} <= {*usual}
    assert not {"steps", "epochs", "rho"} & {*usual}
    # A folder from before short runs were recorded more often is still this run's.
    text = (tmp_path / "settings.yaml").read_text()
    (tmp_path / "settings.yaml").write_text(text.replace("log_every: null", "log_every: 50"))
    assert holds(tmp_path, told)
