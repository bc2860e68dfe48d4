"""What happened in a training run, event by event: one line of JSON each.

A file of events begins with `RunStarted`. Lines are appended and flushed as things happen, so that a file is readable
at any moment; a line that was cut off by a crash is passed over when reading.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

from trimtab.records.checking import checked, shown

SCHEMA = 2
READABLE = (1, 2)
"""Schemas that are read. Schema 2 added fields that have defaults, `LayerSeries` and `Checked`."""
EVENTS = "events.jsonl"
"""The name of a run's file of events."""
END = 1 << 16
"""So many bytes at the end of the file are searched for the last step."""
Verdict = Literal["finished", "diverged", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins.

    Attributes:
        settings: All settings, resolved.
        command: What was typed.
        machine: The hardware.
        versions: Of trimtab, torch and Python.
        parameters: The number of parameters of the network.
        execution: How the steps are taken: eagerly or captured, by which kernels, in which precision.
        defaults: The names of the settings that were left at their defaults.
        initial: Where the first weights come from, if they are another run's: `run`, `step`, `folded` and `digest`, the
            SHA-256 of the weights as they were taken over.
    """

    kind: ClassVar[str] = "run_started"
    settings: dict[str, Any]
    command: str
    machine: str
    versions: dict[str, str]
    parameters: int
    execution: str = ""
    defaults: list[str] = field(default_factory=list)
    initial: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run was resumed from a checkpoint; `changed` are the settings that changed then, such as a larger length."""

    kind: ClassVar[str] = "resumed"
    step: int
    machine: str
    execution: str = ""
    changed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trained:
    """A stretch of training steps.

    Attributes:
        step: Steps taken so far.
        epoch: Passes over the training data so far, as a fraction.
        loss: The mean training loss over the stretch.
        accuracy: The mean training accuracy over the stretch; None in regression.
        lr: The learning rate of its last step.
        seconds: Training time so far, the device's work included, without evaluations, probes and checkpoints.
    """

    kind: ClassVar[str] = "trained"
    step: int
    epoch: float
    loss: float
    accuracy: float | None
    lr: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation of the network on validation or test data.

    Attributes:
        step: Steps taken so far.
        epoch: Passes over the training data so far.
        part: `validation` or `test`.
        loss: Mean loss.
        accuracy: None in regression.
        seconds: Training time so far.
        train_loss: The same on a fixed subset of the training data, in evaluation mode and without augmentation. The
            loss of `Trained` has the noise of the batches' statistics in it, and is a mean over changing weights. None
            if it was not asked for, or in records of schema 1.
        train_accuracy: Likewise; None in regression too.
    """

    kind: ClassVar[str] = "evaluated"
    step: int
    epoch: float
    part: str
    loss: float
    accuracy: float | None
    seconds: float
    train_loss: float | None = None
    train_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe, measured on the network with the batch of the next step.

    Attributes:
        step: Steps taken so far.
        probe: The name of the probe.
        result: The result; if there is none, `problem` in it says why.
        seconds: The time of the measurement.
    """

    kind: ClassVar[str] = "probed"
    step: int
    probe: str
    result: dict[str, Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class LayerSeries:
    """A point of a series that has a value, or several, for each layer.

    Attributes:
        step: Steps taken so far.
        series: The name of the series, such as `weight_norm`.
        values: A number, or a list of numbers, by the name of the layer.
    """

    kind: ClassVar[str] = "layer_series"
    step: int
    series: str
    values: dict[str, Any]

    def __post_init__(self) -> None:
        """Refuse what are no numbers."""
        for layer, value in self.values.items() if isinstance(self.values, dict) else ():
            if not all(map(_is_number, value if isinstance(value, list | tuple) else [value])):
                raise ValueError(f"values has {shown(value)} for {shown(layer)}, not a number or a list of numbers")


@dataclass(frozen=True, slots=True)
class Checked:
    """A computed check of a statement, such as a theorem, on random draws.

    Attributes:
        name: What was checked.
        relation: How the two sides are to be to each other, as in `<=`.
        left: The left side; of several draws, that of the draw that is nearest to violate it, or does most.
        right: The right side of the same draw.
        holds: Whether it holds for all draws.
        draws: How many there were.
        parameters: What the draws were made with: sizes, tolerance, seed.
        counterexample: The draw that violates it, if one does.
    """

    kind: ClassVar[str] = "checked"
    name: str
    relation: str
    left: float
    right: float
    holds: bool
    draws: int
    parameters: dict[str, Any] = field(default_factory=dict)
    counterexample: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse a check that contradicts itself."""
        if self.holds and self.counterexample is not None:
            raise ValueError("it holds, and has a counterexample")


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run ends, for now or for good.

    `execution` is how the last steps were taken, `exploded_at` the first step whose loss was not finite or a hundred
    times the first one. `last_epoch_loss` and `last_epoch_accuracy` are the means over the training steps of the last
    epoch, or over all steps of a run shorter than that; None if the run did not finish, in records of schema 1, and in
    a run that was made longer by less than an epoch.
    """

    kind: ClassVar[str] = "run_ended"
    verdict: Verdict
    step: int
    seconds: float
    images_per_second: float
    execution: str = ""
    exploded_at: int | None = None
    last_epoch_loss: float | None = None
    last_epoch_accuracy: float | None = None


Event = RunStarted | Resumed | Trained | Evaluated | Probed | LayerSeries | Checked | RunEnded
_KINDS: dict[str, type[Event]] = {
    cls.kind: cls for cls in (RunStarted, Resumed, Trained, Evaluated, Probed, LayerSeries, Checked, RunEnded)
}


class EventLog:
    """Appends events to a file."""

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        """Open the file; `keep` is the number of bytes to keep of an existing one (None: replace it).

        Raises:
            ValueError: If there are not so many, or if they do not end with an event.
        """
        if keep is None:
            self._file: BinaryIO = path.open("wb")
            return
        try:
            self._file = path.open("r+b")
        except FileNotFoundError:
            raise ValueError(f"{path} is missing") from None
        try:
            self._file.seek(max(keep - 1, 0))
            last = self._file.read(1)
            if keep and not last:
                raise ValueError(f"{path} was cut off: records are missing that the run had written")
            if keep and last != b"\n":
                raise ValueError(f"{path} was edited, or is another run's")
        except ValueError:
            self._file.close()
            raise
        self._file.truncate(keep)

    def write(self, event: Event) -> None:
        """Append one event."""
        self._file.write(encoded(event))
        self._file.flush()

    def position(self) -> int:
        """Flush the file to disk, and return its length."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def encoded(event: Event) -> bytes:
    """An event as its line in a file."""
    line = {"schema": SCHEMA, "kind": event.kind, **_encoded(asdict(event))}
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, in order.

    Raises:
        ValueError: If a line other than the last is no event, or was written by a newer trimtab.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            content = json.loads(line)
            kind, schema = _KINDS[content.pop("kind")], content.pop("schema")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            if number == len(lines):  # cut off: no line break after it
                return
            raise ValueError(f"{path}, line {number}: this is no event of a run.") from error
        if type(schema) is not int or schema not in READABLE:
            raise ValueError(f"{path} has schema {schema!r}; this trimtab reads {' and '.join(map(str, READABLE))}.")
        try:
            event = checked(kind, _decoded(content))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: this is no event of a run: {error}.") from error
        yield event


def last_step(path: Path) -> int | None:
    """How far the run is that writes this file, by its last events; None if they do not say, or there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - END, 0))
            lines = file.read().split(b"\n")[:-1]  # without what is being written
    except OSError:
        return None
    for line in reversed(lines):
        try:
            step = json.loads(line).get("step")
        except (ValueError, AttributeError, RecursionError):  # the end of a line, or damaged
            continue
        if isinstance(step, int):
            return step
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encoded(value: Any) -> Any:
    """Encode infinities and NaN, which JSON does not have, as strings."""
    if isinstance(value, dict):
        return {name: _encoded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _decoded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else value
