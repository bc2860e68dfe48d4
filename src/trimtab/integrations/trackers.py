"""Where the numbers of a training can go: TensorBoard, Weights & Biases (offline), MLflow (files).

from trimtab.integrations.trackers import TensorBoard

tracker = TensorBoard("runs")
MonitorCallback(probes, tracker=tracker)
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trimtab.integrations.monitoring import scalars
from trimtab.integrations.needed import needed
from trimtab.notice import warn_user
from trimtab.probes.result import Result


@runtime_checkable
class Tracker(Protocol):
    """What a tracker can do. An object of your own that has these methods will do."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write down numbers of a step; steps do not go backwards."""

    def figure(self, name: str, figure: Any) -> None:
        """Keep a figure of matplotlib."""

    def close(self) -> None:
        """Write down what is not yet on disk; nothing comes after."""


class TensorBoard:
    """Files that `tensorboard --logdir FOLDER` shows.

    Args:
        folder: Where they go.
        name: A folder within, for one run of several.

    Raises:
        ModuleNotFoundError: If tensorboard is not installed.
    """

    def __init__(self, folder: str | Path, name: str = "run") -> None:
        needed("tensorboard", extra="tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(Path(folder) / name))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write down numbers of a step."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def figure(self, name: str, figure: Any) -> None:
        """Keep a figure of matplotlib."""
        self._writer.add_figure(name, figure, close=False)

    def close(self) -> None:
        """Write down what is not yet on disk."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases that stays on this machine; `wandb sync FOLDER/wandb/offline-run-*` sends it.

    Args:
        folder: Where it goes.
        name: The name of the run.
        project: The project that it belongs to.
        mode: `"online"` sends it at once, and needs a login.

    Raises:
        ModuleNotFoundError: If wandb is not installed.
    """

    def __init__(
        self, folder: str | Path, name: str = "run", *, project: str = "trimtab", mode: str = "offline"
    ) -> None:
        self._wandb: Any = needed("wandb", extra="wandb")
        Path(folder).mkdir(parents=True, exist_ok=True)  # wandb would take another folder
        self._run = self._wandb.init(project=project, name=name, dir=str(folder), mode=mode)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write down numbers of a step."""
        self._run.log(dict(values), step=step)

    def figure(self, name: str, figure: Any) -> None:
        """Keep a figure of matplotlib."""
        self._run.log({name: self._wandb.Image(figure)})

    def close(self) -> None:
        """Write down what is not yet on disk."""
        self._run.finish()


class MLflow:
    """A run in MLflow's files.

    Args:
        folder: Where they go.
        name: The name of the run.
        experiment: The experiment that it belongs to, made if it is not there.

    Raises:
        ModuleNotFoundError: If mlflow is not installed.
    """

    def __init__(self, folder: str | Path, name: str = "run", *, experiment: str = "trimtab") -> None:
        mlflow = needed("mlflow", extra="mlflow")
        with _files_allowed():
            self._client: Any = mlflow.MlflowClient(tracking_uri=Path(folder).absolute().as_uri())
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._run: str = self._client.create_run(number, run_name=name).info.run_id

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write down numbers of a step."""
        for key, value in values.items():
            self._client.log_metric(self._run, key, value, step=step)

    def figure(self, name: str, figure: Any) -> None:
        """Keep a figure of matplotlib."""
        self._client.log_figure(self._run, figure, f"{name}.png")

    def close(self) -> None:
        """Say that the run is finished."""
        self._client.set_terminated(self._run)


TRACKERS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}
"""By name; each is made with a folder and the name of a run."""


class TrackedResults:
    """Hands results of probes to a tracker, whose failures do not reach the training, except as a warning.

    Args:
        tracker: None hands them to nobody.
    """

    def __init__(self, tracker: Tracker | None) -> None:
        if tracker is not None and not isinstance(tracker, Tracker):
            raise ValueError(f"tracker must have the methods scalars, figure and close, which {tracker!r} has not.")
        self._tracker = tracker

    def __call__(self, found: dict[str, Result], step: int) -> None:
        """Results of a step; there may be none."""
        numbers = scalars(found)
        if self._tracker is None or not numbers:
            return
        try:
            self._tracker.scalars(numbers, step)
        except Exception as error:  # a training of days must not end because of a full disk
            self._tracker = None
            warn_user(f"Measurements no longer go to the tracker: {type(error).__name__}: {error}")


@contextmanager
def _files_allowed() -> Iterator[None]:
    """MLflow 3 advises a database and refuses files unless this is set; files are what was asked for here."""
    name = "MLFLOW_ALLOW_FILE_STORE"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
