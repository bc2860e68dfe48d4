"""Feeds a tracker with what a run records. A run that is resumed goes on in the same run of the tracker."""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimtab.integrations.monitoring import scalars
from trimtab.integrations.trackers import TRACKERS, GuardedTracker, Tracker
from trimtab.probes.result import Result
from trimtab.records import Evaluated, Event, LayerSeries, Probed, Resumed, RunEnded, Trained, whole_file
from trimtab.training.folder import TRACKING


class RunTracking:
    """An observer of a run that hands its numbers to a tracker.

    The tracker is made when there are numbers for it, so that a run that is refused leaves nothing behind. If it fails,
    that is warned of, and the run goes on.

    Args:
        name: One of `TRACKERS`.
        run: The folder of the run, where the identity of the tracker's run is kept.
        folder: Where the tracker writes; None: a folder of its name in that of the run.

    Raises:
        ValueError: If there is no such tracker.
    """

    def __init__(self, name: str, run: Path, folder: Path | None = None) -> None:
        if name not in TRACKERS:
            raise ValueError(f"there is no tracker {name!r}; there are {', '.join(TRACKERS)}")
        self._name, self._run = name, run
        self._folder = Path(name) if folder is None else folder.absolute()  # within that of the run, which may be moved
        self._goes_on_at: int | None = None
        self._tracker: GuardedTracker | None = None

    def __call__(self, event: Event, result: Result | None = None) -> None:
        """Hand over the numbers of an event."""
        if isinstance(event, Resumed):
            self._goes_on_at = event.step
        elif isinstance(event, Trained):
            self._scalars(_finite("train", event, ("loss", "accuracy", "lr")), event.step)
        elif isinstance(event, Evaluated):
            on_train = {"train_eval/loss": event.train_loss, "train_eval/accuracy": event.train_accuracy}
            self._scalars(_finite(event.part, event, ("loss", "accuracy")) | _numbers(on_train), event.step)
        elif isinstance(event, LayerSeries):
            named = {f"{event.series}/{layer}": value for layer, value in event.values.items()}
            self._scalars(_numbers(named), event.step)
        elif isinstance(event, RunEnded):
            at_the_end = {"loss": event.last_epoch_loss, "accuracy": event.last_epoch_accuracy}
            named = {f"train/last_epoch_{name}": value for name, value in at_the_end.items()}
            self._scalars(_numbers(named), event.step)
        elif isinstance(event, Probed) and result is not None:
            self._scalars(scalars({event.probe: result}), event.step)

    def _scalars(self, values: Mapping[str, float], step: int) -> None:
        if self._tracker is None:
            self._tracker = GuardedTracker(self._make)
        self._tracker.scalars(values, step)

    def finish(self, figures: Iterable[tuple[str, Any]]) -> None:
        """Hand over figures of the run, and close the tracker."""
        if self._tracker is not None:
            for name, figure in figures:
                self._tracker.figure(name, figure)
            self._tracker.close()

    def _make(self) -> Tracker:
        """The tracker, whose identity is written down for a run that will be resumed."""
        run, step = (None, -1) if self._goes_on_at is None else (self._known(), self._goes_on_at)
        tracker = TRACKERS[self._name](self._run / self._folder, self._run.name or "run", run=run, step=step)
        identity = {"tracker": self._name, "folder": str(self._folder), "run": tracker.run}
        with whole_file(self._run / TRACKING) as file:
            file.write(json.dumps(identity, indent=2).encode() + b"\n")
        return tracker

    def _known(self) -> str | None:
        """The tracker's run that this run had before; None if it had none there."""
        known: Any = None
        with suppress(OSError, ValueError, RecursionError):
            known = json.loads((self._run / TRACKING).read_text(encoding="utf-8"))
        place = {"tracker": self._name, "folder": str(self._folder)}
        if not isinstance(known, Mapping) or {key: known.get(key) for key in place} != place:
            return None
        return known["run"] if isinstance(known.get("run"), str) else None


def _finite(prefix: str, event: Event, names: Iterable[str]) -> dict[str, float]:
    return _numbers({f"{prefix}/{name}": getattr(event, name) for name in names})


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those that are finite numbers; of a layer that has several, none."""
    return {name: value for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}
