"""Runs experiments one after another, as far as a budget of time reaches."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from trimtab.claims.claim import Claim
from trimtab.claims.declarations import claims as declared
from trimtab.claims.experiments.registry import Context, Experiment, experiment_named
from trimtab.claims.findings import Findings
from trimtab.claims.record import Record, rounded
from trimtab.claims.store import RecordStore
from trimtab.training.device import hardware
from trimtab.training.launch import versions


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run at a size.

    Attributes:
        now: Experiments to run, in order.
        later: Those that the budget does not reach.
        done: Those that have a record.
        without: Those that have no such size.
    """

    now: tuple[Experiment, ...]
    later: tuple[Experiment, ...]
    done: tuple[Experiment, ...]
    without: tuple[Experiment, ...]


def plan(
    claims: Iterable[Claim], size: str, store: RecordStore, *, budget: float | None = None, force: bool = False
) -> Plan:
    """The experiments that claims are judged by, with those that fit into a budget of minutes.

    Args:
        claims: The claims.
        size: The size.
        store: The records that there are: what has one is not run again.
        budget: Minutes; None: no limit.
        force: Whether to run again what has a record.
    """
    wanted = dict.fromkeys(name for claim in _with_origins(claims) for name in claim.experiments)
    now, later, done, without = [], [], [], []
    left = float("inf") if budget is None else budget
    for known in map(experiment_named, wanted):
        if size not in known.minutes:
            without.append(known)
        elif not force and store.find(known.name, size) is not None:
            done.append(known)
        elif known.minutes[size] <= left:
            now.append(known)
            left -= known.minutes[size]
        else:
            later.append(known)
    return Plan(tuple(now), tuple(later), tuple(done), tuple(without))


def _with_origins(wanted: Iterable[Claim]) -> Iterable[Claim]:
    """Claims, each with those that it is derived from."""
    for claim in wanted:
        yield claim
        yield from _with_origins(declared()[part.name] for part in claim.parts if part.kind == "claim")


def run(
    chosen: Sequence[Experiment],
    context: Context,
    results: Path,
    *,
    deadline: float | None = None,
    finished: Callable[[Record], None] = lambda record: None,
) -> list[Experiment]:
    """Run experiments and write their records; each is written when it is done.

    Args:
        chosen: The experiments.
        context: What they are run with.
        results: The folder of the records.
        deadline: No experiment is begun that would end after this, by `time.monotonic`.
        finished: Called with each record.

    Returns:
        Those that were not begun.
    """
    for number, one in enumerate(chosen):
        if deadline is not None and time.monotonic() + 60 * one.minutes[context.size] > deadline:
            return list(chosen[number:])
        started, commit = time.monotonic(), _commit()
        findings = Findings()
        one.run(findings, replace(context, work=context.work / one.name))
        record = Record(
            experiment=one.name,
            size=context.size,
            date=date.today().isoformat(),
            command=f"trimtab claims run --experiment {one.name} --size {context.size}"
            + (f" --more-seeds {context.more}" if context.more > 1 else ""),
            commit=commit,
            machine=hardware(context.device),
            versions=versions(),
            seconds=rounded(time.monotonic() - started, 3),
            **vars(findings),
        )
        record.write(results)
        finished(record)
    return []


def _commit() -> str:
    """The commit of the source tree that this is run from; empty if there is none."""
    import subprocess

    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
