"""What the doctor measured of each training of benchmarks/doctor.py, kept so that rules can be judged again."""

import pickle
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.doctor.record import Record
from trimtab.doctor.rules import judge

Row = dict[str, Any]


def keep(path: Path, key: str, seed: int, record: Record) -> None:
    """Append what was measured of a training to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        pickle.dump((key, seed, zlib.compress(pickle.dumps(record, protocol=5), 9)), file)


def kept(path: Path) -> Iterator[tuple[str, int, Record]]:
    """All of a file; what a killed run has not finished writing is left out."""
    with path.open("rb") as file:
        while True:
            try:
                key, seed, packed = pickle.load(file)
            except (EOFError, pickle.UnpicklingError):
                return
            yield key, seed, pickle.loads(zlib.decompress(packed))


def until(record: Record, steps: int) -> Record:
    """What the doctor knew after so many steps: a look at a step is complete at the next one."""
    return replace(
        record,
        losses=record.losses[:steps],
        looks=[look for look in record.looks if look.step < steps - 1],
        trials=[trial for trial in record.trials if trial.step < steps - 1],
        probed={name: [each for each in found if each[0] < steps - 1] for name, found in record.probed.items()},
        problems=[problem for problem in record.problems if problem.step < steps],
    )


def judged_again(rows: list[Row], records: Iterator[tuple[str, int, Record]]) -> list[Row]:
    """Rows of results with what today's rules say of the same measurements, where these are kept.

    A cure stays only if what it was the cure of is on top still.
    """
    of = {(key, seed): record for key, seed, record in records}
    found: list[Row] = []
    for row in rows:
        record = of.get((row["key"], row["seed"]))
        if row["kind"] == "case" and record is not None:
            diagnosis = judge(record)
            again: Row = {
                "found": [finding.name for finding in diagnosis.findings],
                "layers": [finding.layer for finding in diagnosis.findings],
            }
            if "early_at" in row:  # not where the loss broke before that
                early = judge(until(record, row["early_at"]))
                again["early"] = [finding.name for finding in early.findings]
            row = row | again
        found.append(row)
    top = {(row["key"], row["seed"]): row["found"][:1] for row in found if row["kind"] == "case"}
    return [row for row in found if row["kind"] != "cure" or [row["of"]] == top.get((row["key"], row["seed"]))]
