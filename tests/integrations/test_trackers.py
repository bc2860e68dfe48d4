"""Trackers: what goes in is found again, by the tracker's own reader."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

import trimtab
from tests.integrations.helpers import batches, loss_of, network
from tests.integrations.tracker_readers import READERS
from trimtab.integrations.monitoring import scalars
from trimtab.integrations.trackers import TRACKERS, TrackedResults, Tracker
from trimtab.probes import Landscape, LandscapeResult
from trimtab.probes.result import Result

VALUES = {0: {"landscape/loss": 1.5, "loss": 2.0}, 3: {"landscape/loss": 0.25}}


def fill(tracker: Tracker) -> None:
    for step, values in VALUES.items():
        tracker.scalars(values, step)
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1])
    tracker.figure("curves", figure)
    tracker.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRACKERS)
def test_what_goes_in_is_found_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed; it is in the dev extra")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    for run in ("one", "two"):
        fill(TRACKERS[name](tmp_path, run))
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ
    found = [(run.run, run.scalars, run.figures) for run in READERS[name](tmp_path)]
    assert found == [("one", VALUES, ["curves"]), ("two", VALUES, ["curves"])]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_that_goes_on(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed; it is in the dev extra")
    first = TRACKERS[name](tmp_path, "one")
    first.scalars({"loss": 3.0}, 1)
    first.scalars({"loss": 2.0}, 2)  # after the checkpoint, which is of step 1
    first.close()
    second = TRACKERS[name](tmp_path, "one", run=first.run, step=1)
    assert second.run == first.run
    second.scalars({"loss": 2.0}, 2)
    second.scalars({"loss": 1.0}, 3)
    second.close()
    (found,) = READERS[name](tmp_path)
    assert found.scalars == {1: {"loss": 3.0}, 2: {"loss": 2.0}, 3: {"loss": 1.0}}
    if name != "wandb":  # whose parts are put together when they are sent
        assert all(len(values) == 1 for values in found.written.values())


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
    found = measured()["landscape"]
    assert isinstance(found, LandscapeResult)
    assert numbers["landscape/smoothness_multiple"] == found.smoothness_multiple
    assert numbers["landscape/smoothness_at_edge"] == (1.0 if found.smoothness_at_edge else 0.0)
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
