"""The records of a training run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.records.events import (
    EVENTS,
    Checked,
    Evaluated,
    LayerSeries,
    Probed,
    Resumed,
    RunEnded,
    RunStarted,
    Trained,
    read_events,
)

RENAMED_SETTINGS = {"step": "step_mode"}
"""Settings that had another name before, by that name. Flags, files and records with it are still read."""


@dataclass(frozen=True, slots=True)
class History:
    """All records of a run so far.

    Attributes:
        folder: The folder of the run.
        started: How it began, with its settings (the last ones, if it was made longer) under their current names.
        trained: The stretches of training.
        evaluated: The evaluations.
        ended: How it ended; None while it runs, and after a crash.
        probed: The measurements.
        layer_series: Series with values for each layer.
        checked: Computed checks.
    """

    folder: Path
    started: RunStarted
    trained: tuple[Trained, ...]
    evaluated: tuple[Evaluated, ...]
    ended: RunEnded | None
    probed: tuple[Probed, ...] = ()
    layer_series: tuple[LayerSeries, ...] = ()
    checked: tuple[Checked, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "History":
        """The history in a folder.

        Raises:
            ValueError: If there is none, or if the records are not those of a run.
        """
        path = folder / EVENTS
        try:
            events = list(read_events(path))
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        if not events or not isinstance(events[0], RunStarted):
            raise ValueError(f"{path} does not begin with the start of a run.")
        started = _with_current_names(events[0])
        for event in events:
            if isinstance(event, Resumed) and event.changed:
                started = replace(started, settings={**started.settings, **event.changed})
        return cls(
            folder,
            started,
            tuple(event for event in events if isinstance(event, Trained)),
            tuple(event for event in events if isinstance(event, Evaluated)),
            events[-1] if isinstance(events[-1], RunEnded) else None,
            tuple(event for event in events if isinstance(event, Probed)),
            tuple(event for event in events if isinstance(event, LayerSeries)),
            tuple(event for event in events if isinstance(event, Checked)),
        )


def _with_current_names(started: RunStarted) -> RunStarted:
    settings = {RENAMED_SETTINGS.get(name, name): value for name, value in started.settings.items()}
    return replace(started, settings=settings, defaults=[RENAMED_SETTINGS.get(name, name) for name in started.defaults])


def find_runs(folders: Iterable[Path]) -> Iterator[Path]:
    """The folders of runs in and below these, each once, in the order of their names."""
    seen = set()
    for folder in folders:
        for events in sorted(folder.rglob(EVENTS)):
            if events.resolve() not in seen:
                seen.add(events.resolve())
                yield events.parent
