"""What an experiment has found, in the numbers that verdicts need: one JSON file for each experiment and size."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from trimtab.records import checked, whole_file

SCHEMA = 1
Size = Literal["small", "gpu", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)
Unit = Literal["points", "loss", "time", "factor", "exact"]
UNITS: tuple[Unit, ...] = get_args(Unit)
"""What differences of a measure are judged by. `exact`: the number is computed or counted, and one is enough."""

Numbers = dict[str, dict[str, dict[str, float]]]
"""By measure, case and seed."""
Curves = dict[str, dict[str, list[list[float]]]]
"""Lines of figures: by panel and line, the points [x, y] or, of several seeds, [x, median, lowest, highest]."""


@dataclass(frozen=True, slots=True)
class Check:
    """A statement computed on random draws.

    Attributes:
        relation: How the two sides are to be to each other.
        draws: How many there were.
        holds: For how many it holds.
        left: The left side of the draw that is nearest to violate it, or does most.
        right: The right side of that draw.
        parameters: What they were drawn with: tolerance, seed, sizes.
        counterexample: The first draw that violates it: its number, and what it consists of.
    """

    relation: str
    draws: int
    holds: int
    left: float
    right: float
    parameters: dict[str, Any] = field(default_factory=dict)
    counterexample: dict[str, Any] | None = None


@dataclass(kw_only=True)
class Contents:
    """What an experiment has found.

    Attributes:
        units: By measure.
        numbers: By measure, case and seed. A run that diverged has the accuracy of guessing and infinite losses.
        checks: By name.
        chance: The accuracy of guessing, in points.
        neighbour: What the data or the network are instead of the paper's, if they are others.
        refused: Cases that cannot be trained, with the reason.
        notes: Sentences that stand beside the verdicts.
        curves: Lines of figures.
        settings: What it was run with.
    """

    units: dict[str, str] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    chance: float | None = None
    neighbour: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    curves: Curves = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Record(Contents):
    """The record of an experiment at a size: what it has found, when and where.

    Attributes:
        experiment: Its name.
        size: One of `SIZES`.
        date: When it was run.
        command: How.
        commit: Of trimtab's source, if known.
        machine: The hardware.
        versions: Of trimtab, torch and Python.
        seconds: How long the call took that finished it; training runs that were done before are not counted.
        core_seconds: How long cores have computed for that, whatever else the machine did; None: not known.
    """

    experiment: str
    size: str
    date: str
    command: str
    commit: str
    machine: str
    versions: dict[str, str]
    seconds: float
    core_seconds: float | None = None

    def write(self, folder: Path) -> Path:
        """Write the record into a folder; returns the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / file_name(self.experiment, self.size)
        about = {each.name: getattr(self, each.name) for each in fields(Record)[len(fields(Contents)) :]}
        content = {"schema": SCHEMA, **_encoded({**about, **asdict(self)})}
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        with whole_file(path) as file:
            file.write(text.encode() + b"\n")
        return path

    @classmethod
    def read(cls, path: Path) -> "Record":
        """The record in a file.

        Raises:
            ValueError: If it is none; the sentence names the file.
        """
        try:
            content = _decoded(json.loads(path.read_text(encoding="utf-8")))
            if not isinstance(content, dict):
                raise ValueError("it is not fields with their names")
            if content.pop("schema", None) != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            checks = content.pop("checks", {})
            record = checked(cls, content)
            for name, check in checks.items():
                record.checks[name] = checked(Check, check)
            _check_numbers(record)
            if path.name != file_name(record.experiment, record.size):
                raise ValueError(f"it is of {record.experiment} at size {record.size}")
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} is no record of an experiment: {error}; remove it, then it can be run anew"
            ) from error
        return record


def file_name(experiment: str, size: str) -> str:
    """The name of a record's file."""
    return f"{experiment}.{size}.json"


def _check_numbers(record: Record) -> None:
    if record.size not in SIZES:
        raise ValueError(f"size is {record.size!r}, not one of {', '.join(SIZES)}")
    for measure, cases in record.numbers.items():
        if record.units.get(measure) not in UNITS:
            raise ValueError(f"{measure!r} has no unit of {', '.join(UNITS)}")
        for seeds in cases.values() if isinstance(cases, dict) else [None]:
            if not isinstance(seeds, dict) or not all(map(_is_number, seeds.values())):
                raise ValueError(f"{measure!r} has something else than numbers by case and seed")
    for name, check in record.checks.items():
        if not 0 <= check.holds <= check.draws or check.draws == 0:
            raise ValueError(f"check {name!r} holds for {check.holds} of {check.draws} draws")
    for panel, lines in record.curves.items():
        of_lines = lines.values() if isinstance(lines, dict) else [None]
        points = [point for line in of_lines for point in (line if isinstance(line, list) else [None])]
        if not all(
            isinstance(point, list) and len(point) in (2, 4) and all(map(_is_number, point)) for point in points
        ):
            raise ValueError(f"figure {panel!r} has something else than points")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rounded(value: float, digits: int = 7) -> float:
    """A number with the digits that are kept in records."""
    if not math.isfinite(value) or value == 0:
        return float(value)
    return float(f"{value:.{digits}g}")


def _encoded(value: Any) -> Any:
    """Round numbers; infinities and NaN, which JSON does not have, become text."""
    if isinstance(value, Mapping):
        return {str(name): _encoded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(each) for each in value]
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else str(value)
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _decoded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else value
