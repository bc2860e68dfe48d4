"""The outcome of a sweep: how the networks of a grid of settings have ended, and where theory puts the boundary."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

from trimtab.records.atomic import whole_file
from trimtab.records.checking import checked, read_json, shown
from trimtab.records.comparison import RESULTS

SWEEP_SCHEMA = 1
State = Literal["trained", "exploded", "dead"]
STATES: dict[State, str] = {
    "trained": "the loss stayed finite, and the network is better than chance",
    "exploded": "a loss was not finite, or a hundred times the first one",
    "dead": "the losses stayed finite, but the accuracy is that of chance",
}
R = TypeVar("R", "Restart", "PredictedBoundary")


@dataclass(frozen=True, slots=True)
class Restart:
    """How one network has ended.

    Attributes:
        seed: Its seed.
        state: One of `STATES`.
        loss: On held-out data at the end; None if it exploded.
        accuracy: Likewise; None in regression too.
        exploded_at: The step, counted from 1, at which it exploded.
    """

    seed: int
    state: State
    loss: float | None
    accuracy: float | None
    exploded_at: int | None


@dataclass(frozen=True, slots=True)
class GridCell:
    """One point of the grid.

    Attributes:
        values: Of the axes, in their order.
        restarts: Its networks; empty while they are not trained.
        why_not: Why they cannot be, if they cannot.
    """

    values: tuple[float, ...]
    restarts: tuple[Restart, ...] = ()
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class PredictedBoundary:
    """The largest stable learning rate that a theory predicts along a sweep.

    Attributes:
        name: Of the theory, in a few words.
        description: What it assumes.
        rates: For each combination of the other axes' values, as `Sweep.slices` has them; None if it cannot say.
        notes: What it leaves out for these networks, or why it cannot say anything, in sentences.
    """

    name: str
    description: str
    rates: tuple[float | None, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SweptAxis:
    """A setting and the values it takes; `geometric` says whether their ratios are equal, None if they were listed."""

    name: str
    values: tuple[float, ...]
    geometric: bool | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep. No times: one that was stopped and resumed is the same.

    Attributes:
        command: The command that was typed.
        settings: Those of all networks, with what the recipe has; of the axes, those of the first cell.
        axes: What varies.
        seeds: Of the restarts of each cell.
        steps: Of the first cell's networks.
        part: What the networks are evaluated on: `validation` or `test`.
        chance: The accuracy up to which a network is dead; None in regression.
        engine: `stacked` or `separate`.
        reason: Why this one.
        machine: The hardware.
        versions: Of trimtab, torch and Python.
        finished: Whether all networks are trained.
        cells: The results, in the order of `itertools.product` of the axes' values.
        predictions: Where theory expects explosions; empty without an axis `lr`.
        conclusion: How far the measured boundary is from each of these, in sentences.
    """

    command: str
    settings: dict[str, Any]
    axes: tuple[SweptAxis, ...]
    seeds: tuple[int, ...]
    steps: int
    part: str
    chance: float | None
    engine: str
    reason: str
    machine: str
    versions: dict[str, str]
    finished: bool
    cells: tuple[GridCell, ...]
    predictions: tuple[PredictedBoundary, ...] = ()
    conclusion: str = ""

    @property
    def rate_axis(self) -> int | None:
        """Which axis is the learning rate; None if none is."""
        return next((i for i, axis in enumerate(self.axes) if axis.name == "lr"), None)

    def slices(self) -> Iterator[tuple[tuple[float, ...], list[GridCell]]]:
        """The values of the axes but the learning rate, each combination with its cells at rising rates."""
        at = self.rate_axis
        assert at is not None
        found: dict[tuple[float, ...], list[GridCell]] = {}
        for cell in self.cells:
            found.setdefault(cell.values[:at] + cell.values[at + 1 :], []).append(cell)
        yield from found.items()

    def boundary(self, ended: Literal["exploded", "untrained"]) -> list[float | None]:
        """The measured boundary for each of `slices`; None if it is not within the grid.

        Args:
            ended: `exploded`: the smallest rate at which a restart has exploded. `untrained`: the smallest rate above
                all at which every restart was trained, whether networks there exploded or died.
        """
        at = self.rate_axis
        assert at is not None
        rates: list[float | None] = []
        for _, cells in self.slices():
            if ended == "exploded":
                first = next((i for i, c in enumerate(cells) if any(r.state == "exploded" for r in c.restarts)), None)
            else:
                good = [i for i, c in enumerate(cells) if c.restarts and all(r.state == "trained" for r in c.restarts)]
                first = good[-1] + 1 if good and good[-1] + 1 < len(cells) else None
            rates.append(cells[first].values[at] if first else None)  # at the first rate the boundary is outside
        return rates

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps({"schema": SWEEP_SCHEMA, "kind": "sweep", **asdict(self)}, indent=1, allow_nan=False)

    def write(self, folder: Path) -> None:
        """Write it to a folder, completely or not at all."""
        with whole_file(folder / RESULTS) as file:
            file.write(self.to_json().encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> "Sweep":
        """The sweep in a folder.

        Raises:
            ValueError: If there is none, or if it was written by another version.
        """
        path = folder / RESULTS
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("kind", None) != "sweep":
            raise ValueError(f"{path} is not the result of a sweep")
        if (schema := content.pop("schema", None)) != SWEEP_SCHEMA:
            raise ValueError(f"{path} has schema {schema!r}; this trimtab reads {SWEEP_SCHEMA}.")
        try:
            return _sweep(content)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is not the result of a sweep: {error}") from error


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds the results of a sweep."""
    try:
        content = json.loads((folder / RESULTS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") == "sweep"


def _sweep(content: dict[str, Any]) -> Sweep:
    axes = tuple(checked(SweptAxis, {**axis, "values": _numbers(axis, "values")}) for axis in _listed(content, "axes"))
    cells = tuple(
        checked(
            GridCell,
            {
                **cell,
                "values": _numbers(cell, "values"),
                "restarts": tuple(checked(Restart, one) for one in _listed(cell, "restarts")),
            },
        )
        for cell in _listed(content, "cells")
    )
    if [cell.values for cell in cells] != list(product(*(axis.values for axis in axes))):
        raise ValueError("its cells are not those of its axes")
    predictions = tuple(
        checked(PredictedBoundary, {**one, "rates": _numbers(one, "rates", none=True), "notes": _notes(one)})
        for one in _listed(content, "predictions")
    )
    seeds = _numbers(content, "seeds")
    made = checked(Sweep, {**content, "axes": axes, "cells": cells, "predictions": predictions, "seeds": seeds})
    if predictions and any(len(one.rates) != len(list(made.slices())) for one in predictions):
        raise ValueError("its predictions are not those of its axes")
    return made


def _listed(content: Any, name: str) -> Sequence[Any]:
    value = content.get(name) if isinstance(content, dict) else None
    if not isinstance(value, list):
        raise ValueError(f"it has no list of {name}")
    return value


def _notes(content: Any) -> tuple[str, ...]:
    """The notes of a prediction; sweeps of earlier versions have none."""
    notes = tuple(_listed(content, "notes")) if "notes" in content else ()
    for note in notes:
        if not isinstance(note, str):
            raise ValueError(f"notes has {shown(note)}, which is no text")
    return notes


def _numbers(content: Any, name: str, *, none: bool = False) -> tuple[Any, ...]:
    numbers = tuple(_listed(content, name))
    for number in numbers:
        if not (none and number is None) and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise ValueError(f"{name} has {shown(number)}, which is no number")
    return numbers
