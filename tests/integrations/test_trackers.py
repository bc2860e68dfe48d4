"""Trackers: what goes in is found again, by the tracker's own reader."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

import trimtab
from tests.integrations.helpers import batches, loss_of, network
from trimtab.integrations.monitoring import scalars
from trimtab.integrations.trackers import TRACKERS, MLflow, TensorBoard, TrackedResults, Tracker, WeightsAndBiases
from trimtab.probes import Landscape
from trimtab.probes.result import Result

VALUES = {0: {"landscape/loss": 1.5, "loss": 2.0}, 3: {"landscape/loss": 0.25}}


def fill(tracker: Tracker) -> None:
    for step, values in VALUES.items():
        tracker.scalars(values, step)
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    tracker.figure("curves", figure)
    tracker.close()


def found_again(pairs: list[tuple[int, str, float]]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for step, name, value in pairs:
        found.setdefault(step, {})[name] = value
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; it is an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fill(TensorBoard(tmp_path, "one"))
    reader = EventAccumulator(str(tmp_path / "one")).Reload()
    tags = reader.Tags()
    pairs = [(event.step, tag, event.value) for tag in tags["scalars"] for event in reader.Scalars(tag)]
    assert found_again(pairs) == VALUES and tags["images"] == ["curves"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed; it is an extra")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    fill(MLflow(tmp_path, "one"))
    fill(MLflow(tmp_path, "two"))  # in the experiment that is there by now
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    (experiment,) = [each for each in client.search_experiments() if each.name == "trimtab"]
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name for run in runs) == ["one", "two"]
    for run in runs:
        number = run.info.run_id
        history = [each for key in run.data.metrics for each in client.get_metric_history(number, key)]
        assert found_again([(each.step, each.key, each.value) for each in history]) == VALUES
        assert [each.path for each in client.list_artifacts(number)] == ["curves.png"]
        assert run.info.status == "FINISHED"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed; it is an extra")
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    fill(WeightsAndBiases(tmp_path, "one"))
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    store, pairs = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        pairs += [(items["_step"], name, value) for name, value in items.items() if name.endswith("loss")]
    assert found_again(pairs) == VALUES
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/images/curves_*.png"))


class Remembers:
    """A tracker of one's own."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, float]] = {}

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.seen[step] = dict(values)

    def figure(self, name: str, figure: Any) -> None: ...

    def close(self) -> None: ...


def measured() -> dict[str, Result]:
    return {"landscape": Landscape(step_size=0.1)(network(), loss_of, batches()[0])}


def test_the_numbers_of_results() -> None:
    numbers = scalars(measured())
    assert {"landscape/loss", "landscape/smoothness", "landscape/gradient_norm"} <= set(numbers)
    assert numbers["landscape/loss"] == pytest.approx(loss_of(network(), batches()[0]).item())
    assert all(type(value) is float and torch.tensor(value).isfinite() for value in numbers.values())
    assert scalars({"landscape": Landscape.result(problem="nothing")}) == {}


def test_a_tracker_that_fails_does_not_end_the_training() -> None:
    tracker = Remembers()
    track = TrackedResults(tracker)
    track(measured(), 5)
    assert set(tracker.seen) == {5}

    class Full(Remembers):
        def scalars(self, values: Mapping[str, float], step: int) -> None:
            raise OSError("the disk is full")

    track = TrackedResults(Full())
    with pytest.warns(trimtab.TrimtabWarning, match="no longer go to the tracker: OSError: the disk is full"):
        track(measured(), 5)
    track(measured(), 6)  # said once
    with pytest.raises(ValueError, match="tracker must have the methods scalars, figure and close"):
        TrackedResults(3)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning_feeds_it() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed; it is in the dev extra")
    from tests.integrations.test_lightning import Classifier, data, trainer
    from trimtab.integrations.lightning import MonitorCallback

    tracker = Remembers()
    trainer(MonitorCallback([Landscape(step_size=0.1)], every=3, tracker=tracker)).fit(Classifier(), data())
    assert set(tracker.seen) == {0, 3, 6} and "landscape/smoothness" in tracker.seen[0]


def test_the_trainer_of_transformers_feeds_it(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed; it is in the dev extra")
    from tests.integrations.test_transformers import Classifier, trainer
    from trimtab.integrations.transformers import MonitorCallback

    tracker = Remembers()
    trainer(Classifier(), tmp_path, MonitorCallback([Landscape(step_size=0.1)], every=3, tracker=tracker)).train()
    assert set(tracker.seen) == {0, 3, 6} and "landscape/smoothness" in tracker.seen[0]


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package(name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"this needs {package}; pip install '\.\[{name}\]' in trimtab's"):
        TRACKERS[name](tmp_path)
    assert not list(tmp_path.iterdir())
