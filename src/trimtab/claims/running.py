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
from trimtab.claims.needs import with_origins
from trimtab.claims.record import Record, rounded
from trimtab.claims.store import RecordStore
from trimtab.training.device import hardware
from trimtab.training.launch import versions

MORE = 2
"""Times the usual number of seeds, where that left something undecided."""
MORE_SEEDS = "--more-seeds"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run at a size.

    Attributes:
        now: Experiments to run, in order.
        later: Those that the budget does not reach.
        done: Those that have a record.
        without: Those that have no such size.
        again: Those to run again with `MORE` times the seeds; their minutes are so many times as long.
    """

    now: tuple[Experiment, ...]
    later: tuple[Experiment, ...] = ()
    done: tuple[Experiment, ...] = ()
    without: tuple[Experiment, ...] = ()
    again: tuple[Experiment, ...] = ()

    def minutes(self, size: str) -> float:
        """How long what is to be run takes, what is left for later included."""
        return sum(one.minutes[size] for one in (*self.now, *self.again, *self.later))


def plan(
    claims: Iterable[Claim], size: str, store: RecordStore, *, budget: float | None = None, force: bool = False
) -> Plan:
    """The first pass: the experiments that claims are judged by, with those that fit into a budget of minutes.

    Args:
        claims: The claims.
        size: The size.
        store: The records that there are: what has one is not run again.
        budget: Minutes; None: no limit.
        force: Whether to run again what has a record.
    """
    wanted = dict.fromkeys(name for claim in with_origins(claims, declared()) for name in claim.deciding)
    return _planned(map(experiment_named, wanted), (), size, store, budget, force)


def plan_named(
    names: Iterable[str], size: str, store: RecordStore, *, budget: float | None = None, force: bool = False
) -> Plan:
    """Experiments by name, with those that fit into a budget of minutes."""
    return _planned(map(experiment_named, dict.fromkeys(names)), (), size, store, budget, force)


def plan_second(claims: Iterable[Claim], size: str, store: RecordStore, *, budget: float | None = None) -> Plan:
    """The second pass: what stands beside, and more seeds where a part of a criterion is undecided.

    Runs with standardized inputs stand beside. What was run with more seeds already is left as it is.

    Args:
        claims: The claims.
        size: The size.
        store: The records that there are.
        budget: Minutes; None: no limit.
    """
    from trimtab.claims import verdict_on

    several = list(with_origins(claims, declared()))
    beside = dict.fromkeys(claim.other_inputs for claim in several if claim.other_inputs is not None)
    undecided: dict[str, None] = {}
    for claim in several:
        for outcome in verdict_on(claim, size, store).outcomes:
            name = outcome.part.experiment or claim.experiment
            if outcome.state == "undecided" and outcome.part.kind != "claim" and name is not None:
                undecided[name] = None
    again = []
    for name in undecided:
        record, one = store.find(name, size), experiment_named(name)
        if record is not None and MORE_SEEDS not in record.command:
            again.append(replace(one, minutes={size: MORE * one.minutes[size]}))
    return _planned(map(experiment_named, beside), again, size, store, budget, False)


def _planned(
    wanted: Iterable[Experiment],
    again: Iterable[Experiment],
    size: str,
    store: RecordStore,
    budget: float | None,
    force: bool,
) -> Plan:
    repeated: list[Experiment] = []
    now, later, done, without = [], [], [], []
    left = float("inf") if budget is None else budget
    for known in wanted:
        if size not in known.minutes:
            without.append(known)
        elif not force and store.find(known.name, size) is not None:
            done.append(known)
        elif known.minutes[size] <= left:
            now.append(known)
            left -= known.minutes[size]
        else:
            later.append(known)
    for known in again:
        fits = known.minutes[size] <= left
        (repeated if fits else later).append(known)
        left -= known.minutes[size] if fits else 0
    return Plan(tuple(now), tuple(later), tuple(done), tuple(without), tuple(repeated))


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
            + (f" {MORE_SEEDS} {context.more}" if context.more > 1 else ""),
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
