"""Where the numbers of a training can go: TensorBoard, Weights & Biases (offline), MLflow (files).

from trimtab.integrations.trackers import TensorBoard

tracker = TensorBoard("runs")
MonitorCallback(probes, tracker=tracker)

Each of the three has an attribute `run`, the identity of its run. Made with that and with the step at which a training
is resumed, a tracker goes on with that run.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
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
        run: The run to go on with. By default a new one, which hides what is in that folder already.
        step: Where it goes on: what is there of later steps is hidden.

    Raises:
        ModuleNotFoundError: If tensorboard is not installed.
    """

    def __init__(self, folder: str | Path, name: str = "run", *, run: str | None = None, step: int = -1) -> None:
        needed("tensorboard", extra="tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.run = run or name
        self._step = max(step, 0)
        self._writer: Any = SummaryWriter(str(Path(folder) / self.run), purge_step=0 if run is None else step + 1)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write down numbers of a step."""
        self._step = step
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def figure(self, name: str, figure: Any) -> None:
        """Keep a figure of matplotlib."""
        self._writer.add_figure(name, figure, self._step, close=False)

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
        run: The run to go on with; by default a new one. Offline each part has files of its own, and all are sent.
        step: Where it goes on.

    Raises:
        ModuleNotFoundError: If wandb is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str = "run",
        *,
        project: str = "trimtab",
        mode: str = "offline",
        run: str | None = None,
        step: int = -1,
    ) -> None:
        self._wandb: Any = needed("wandb", extra="wandb")
        Path(folder).mkdir(parents=True, exist_ok=True)  # wandb would take another folder
        settings = self._wandb.Settings(console="off", silent=True)  # the output of the training is its own
        resume = "allow" if run and mode == "online" else None  # offline the identity is enough
        where = {"project": project, "name": name, "dir": str(folder), "mode": mode}
        self._run = self._wandb.init(**where, id=run, resume=resume, settings=settings)
        self.run: str = self._run.id
        self._step = max(step, 0)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write down numbers of a step."""
        self._step = step
        self._run.log(dict(values), step=step)

    def figure(self, name: str, figure: Any) -> None:
        """Keep a figure of matplotlib."""
        from PIL import Image  # matplotlib needs it, too

        file = io.BytesIO()
        figure.savefig(file, format="png")
        # Of a figure it would ask pyplot; and each without a step would be a step of its own.
        self._run.log({name: self._wandb.Image(Image.open(file))}, step=self._step)

    def close(self) -> None:
        """Write down what is not yet on disk."""
        self._run.finish()


class MLflow:
    """A run in MLflow's files.

    Args:
        folder: Where they go.
        name: The name of the run.
        experiment: The experiment that it belongs to, made if it is not there.
        run: The run to go on with; by default a new one.
        step: Where it goes on. MLflow forgets nothing: later steps that are there already are not written again.

    Raises:
        ModuleNotFoundError: If mlflow is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str = "run",
        *,
        experiment: str = "trimtab",
        run: str | None = None,
        step: int = -1,
    ) -> None:
        mlflow = needed("mlflow", extra="mlflow")
        with _files_allowed():
            self._client: Any = mlflow.MlflowClient(tracking_uri=Path(folder).absolute().as_uri())
        self._last: dict[str, int] = {}  # the last step of each metric that was there already
        if run is None:
            found = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if found is None else found.experiment_id
            self.run: str = self._client.create_run(number, run_name=name).info.run_id
        else:
            self.run = run
            for key in self._client.get_run(run).data.metrics:
                self._last[key] = max(each.step for each in self._client.get_metric_history(run, key))
            self._client.update_run(run, status="RUNNING")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write down numbers of a step."""
        for key, value in values.items():
            if step > self._last.get(key, -1):
                self._client.log_metric(self.run, key, value, step=step)

    def figure(self, name: str, figure: Any) -> None:
        """Keep a figure of matplotlib."""
        self._client.log_figure(self.run, figure, f"{name}.png")

    def close(self) -> None:
        """Say that the run is finished."""
        self._client.set_terminated(self.run)


TRACKERS: dict[str, type[TensorBoard | WeightsAndBiases | MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""By name; each is made with a folder and the name of a run."""


class GuardedTracker:
    """A tracker whose failures do not reach the training, except as a warning, after which it is no longer fed.

    Args:
        make: Makes the tracker.
    """

    def __init__(self, make: Callable[[], Tracker]) -> None:
        self._tracker: Tracker | None = None

        def begin() -> None:
            self._tracker = make()

        self._attempt(begin)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step; there may be none."""
        if self._tracker is not None and values:
            self._attempt(partial(self._tracker.scalars, values, step))

    def figure(self, name: str, figure: Any) -> None:
        """A figure of matplotlib."""
        if self._tracker is not None:
            self._attempt(partial(self._tracker.figure, name, figure))

    def close(self) -> None:
        """Nothing comes after."""
        if self._tracker is not None:
            self._attempt(self._tracker.close)

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # a training of days must not end because of a full disk
            self._tracker = None
            warn_user(f"Measurements no longer go to the tracker: {type(error).__name__}: {error}")


class TrackedResults:
    """Hands results of probes to a tracker, whose failures do not reach the training, except as a warning.

    Args:
        tracker: None hands them to nobody.
    """

    def __init__(self, tracker: Tracker | None) -> None:
        if tracker is not None and not isinstance(tracker, Tracker):
            raise ValueError(f"tracker must have the methods scalars, figure and close, which {tracker!r} has not.")
        self._tracker = None if tracker is None else GuardedTracker(lambda: tracker)

    def __call__(self, found: dict[str, Result], step: int) -> None:
        """Results of a step; there may be none."""
        if self._tracker is not None:
            self._tracker.scalars(scalars(found), step)


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
