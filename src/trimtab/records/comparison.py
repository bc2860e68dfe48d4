"""The outcome of training networks by several methods at several batch sizes."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

from trimtab.records.atomic import whole_file
from trimtab.records.checking import checked, read_json

SCHEMA = 2
RESULTS = "results.json"
RUNS = "runs"
"""The folder of a comparison's runs, beside its results."""
Metric = Literal["accuracy", "loss"]
R = TypeVar("R", "Candidate", "Trial")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A learning rate that was tried.

    Attributes:
        lr: The learning rate.
        value: Accuracy (in regression: loss) on validation data at the end; None if the run diverged.
        loss: Loss on validation data at the end, which decides between equals.
        run: The name of its folder.
    """

    lr: float
    value: float | None
    loss: float | None
    run: str


@dataclass(frozen=True, slots=True)
class Trial:
    """A run at the chosen learning rate.

    Attributes:
        seed: Its seed.
        value: Accuracy (in regression: loss) on test data at the end. A run that diverged counts as one that guesses,
            in regression as an infinite loss.
        diverged: Whether the run diverged.
        run: The name of its folder.
    """

    seed: int
    value: float
    diverged: bool
    run: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One network, batch size and method.

    Attributes:
        network: The network's name.
        batch_size: Samples per step; 0: all of them.
        method: The method's name.
        epochs: Passes over the training data; None if steps are given.
        steps: Steps, where these are given instead.
        optimizer: Its name.
        candidates: The learning rates that were tried, in rising order; empty if there was nothing to choose from.
        lr: The chosen one; None if it is not chosen yet, or cannot be.
        trials: The runs at the chosen learning rate.
        why_not: Why the method cannot train here, if it cannot.
    """

    network: str
    batch_size: int
    method: str
    epochs: int | None
    steps: int | None
    optimizer: str
    candidates: tuple[Candidate, ...] = ()
    lr: float | None = None
    trials: tuple[Trial, ...] = ()
    why_not: str | None = None

    @property
    def values(self) -> tuple[float, ...]:
        """Test accuracies (or losses), seed by seed."""
        return tuple(trial.value for trial in self.trials)

    @property
    def mean(self) -> float | None:
        """The mean of the values; None if there are none."""
        return fmean(self.values) if self.trials else None

    @property
    def lr_at_edge(self) -> bool:
        """Whether the chosen rate is the smallest or the largest one tried, so that a better one may lie outside."""
        rates = [candidate.lr for candidate in self.candidates]
        return len(rates) > 1 and self.lr in (min(rates), max(rates))


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cells, with the command that repeats them. No times: a comparison that was stopped and resumed is the same.

    Attributes:
        command: The command that was typed.
        data: The data set's name.
        parts: How many samples are trained on, validated on and tested on.
        metric: `accuracy`, or `loss` in regression.
        machine: The hardware it was measured on.
        versions: Of trimtab, torch and Python.
        side_by_side: How many runs shared the machine at a time.
        seeds: How many runs there are to be at the chosen learning rate.
        finished: Whether all runs are done.
        cells: The results.
        conclusion: What they show, in a few sentences.
        notes: What else there is to know about how it was done, such as settings that a method cannot have.
    """

    command: str
    data: str
    parts: tuple[int, int, int]
    metric: Metric
    machine: str
    versions: dict[str, str]
    side_by_side: int
    seeds: int
    finished: bool
    cells: tuple[Cell, ...]
    conclusion: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As JSON, with the means beside the single values."""
        content: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        for cell, entry in zip(self.cells, content["cells"], strict=True):
            entry["mean"] = _finite(cell.mean)
            for trial in entry["trials"]:
                trial["value"] = _finite(trial["value"])
        return json.dumps(content, indent=2, allow_nan=False)

    def write(self, folder: Path) -> None:
        """Write it to a folder, completely or not at all."""
        with whole_file(folder / RESULTS) as file:
            file.write(self.to_json().encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> "Comparison":
        """The comparison in a folder.

        Raises:
            ValueError: If there is none, or if it was written by another version.
        """
        path = folder / RESULTS
        content = read_json(path)
        schema = content.pop("schema", None) if isinstance(content, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"{path} has schema {schema!r}; this trimtab reads {SCHEMA}.")
        try:
            parts = tuple(_listed(content, "parts"))
            if len(parts) != 3 or not all(type(part) is int and part >= 0 for part in parts):
                raise ValueError("parts are not three numbers of samples")
            cells = tuple(_cell(entry) for entry in _listed(content, "cells"))
            notes = tuple(_listed({"notes": [], **content}, "notes"))
            if not all(isinstance(note, str) for note in notes):
                raise ValueError("notes are not sentences")
            return checked(cls, {**content, "parts": parts, "cells": cells, "notes": notes})
        except ValueError as error:
            raise ValueError(f"{path} is not the result of a comparison: {error}") from error


def _cell(entry: Any) -> Cell:
    if not isinstance(entry, dict):
        raise ValueError("cells are not all fields with their names")
    candidates = tuple(_run(Candidate, candidate) for candidate in _listed(entry, "candidates"))
    # JSON has no infinity
    trials = (_infinite(trial) for trial in _listed(entry, "trials"))
    content = {**entry, "candidates": candidates, "trials": tuple(_run(Trial, trial) for trial in trials)}
    content.pop("mean", None)
    return checked(Cell, content)


def _listed(content: dict[str, Any], name: str) -> list[Any]:
    value = content.get(name)
    if not isinstance(value, list):
        raise ValueError(f"it has no list of {name}")
    return value


def _run(cls: type[R], entry: Any) -> R:
    """A candidate or a trial; its run is a folder beside the others, not somewhere else."""
    made = checked(cls, entry)
    if made.run in ("", ".", "..") or "/" in made.run or "\\" in made.run or "\0" in made.run:
        raise ValueError(f"run is {made.run!r}, not the name of a folder")
    return made


def _infinite(trial: Any) -> Any:
    return {**trial, "value": math.inf} if isinstance(trial, dict) and trial.get("value", 0) is None else trial


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: an infinite loss is null there."""
    return None if value is None or math.isinf(value) else value
