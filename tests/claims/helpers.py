"""Records made by hand."""

from collections.abc import Mapping

from trimtab.claims.claim import Claim, digest_of
from trimtab.claims.findings import Findings
from trimtab.claims.part import parse_parts
from trimtab.claims.record import Check, Record


def record(
    numbers: Mapping[str, Mapping[str, list[float]]] | None = None,
    units: Mapping[str, str] | None = None,
    checks: Mapping[str, Check] | None = None,
    *,
    experiment: str = "e",
    chance: float | None = 10.0,
    neighbour: str = "",
    size: str = "small",
) -> Record:
    """A record; the numbers of a case are those of the seeds 101, 102, ..."""
    numbers = numbers or {}
    return Record(
        experiment=experiment,
        size=size,
        date="2030-01-02",
        command="trimtab claims run",
        commit="0123456789",
        machine="a machine",
        versions={"torch": "2.13"},
        seconds=1.0,
        units={"acc": "points", "loss": "loss", "time": "time", "range": "factor", "count": "exact", **(units or {})},
        numbers={
            measure: {case: {str(101 + i): float(v) for i, v in enumerate(values)} for case, values in cases.items()}
            for measure, cases in numbers.items()
        },
        checks=dict(checks or {}),
        chance=chance,
        neighbour=neighbour,
    )


def recorded(findings: Findings, experiment: str = "e", size: str = "small") -> Record:
    """The record of what was found."""
    about = {"date": "2030-01-02", "command": "", "commit": "", "machine": "", "versions": {}, "seconds": 1.0}
    return Record(experiment=experiment, size=size, **about, **vars(findings))  # type: ignore[arg-type]


class Store:
    """Records in memory."""

    def __init__(self, *records: Record) -> None:
        self.records = {(one.experiment, one.size): one for one in records}

    def find(self, experiment: str, size: str) -> Record | None:
        return self.records.get((experiment, size))


def claim(
    *parts: str, name: str = "c", experiment: str | None = "e", corrected: tuple[str, ...] = (), **more: object
) -> Claim:
    """A claim with these parts."""
    settings: dict[str, object] = {
        "id": name,
        "paper": "bnp",
        "block": "1.1",
        "place": "3",
        "kind": "C",
        "statement": "A statement.",
        "criterion": "words",
        "digest": digest_of("words", list(parts), list(corrected)),
        "parts": parse_parts(list(parts)),
        "corrected": parse_parts(list(corrected)),
        "experiment": experiment,
        "other_inputs": None,
        "needs": "",
        "why": "",
        "seen": False,
        "disagrees": "",
        "supersedes": (),
        **more,
    }
    return Claim(**settings)  # type: ignore[arg-type]
