"""What is to be run: experiments in two passes, as far as a budget of minutes reaches.

The first pass has the experiments that decide claims at the papers' learning rates, with their first seeds: two, since
a verdict by the range of differences needs two. The second has what is left: all seeds, searches for learning rates and
other experiments that take long, the runs that stand beside, and more seeds where a part of a criterion is undecided.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trimtab.claims.claim import Claim
from trimtab.claims.declarations import claims as declared
from trimtab.claims.experiments.registry import Experiment, experiment_named
from trimtab.claims.needs import FIRST_SEEDS, MORE_SEEDS, with_origins
from trimtab.claims.record import Record
from trimtab.claims.store import RecordStore

MORE = 2
"""Times the usual number of seeds, where that left something undecided."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An experiment that is to be run.

    Attributes:
        experiment: The experiment.
        minutes: How long that takes.
        how: How it differs from a usual run, in a few words.
        at_most: So many seeds at most; None: no limit.
        more: How many times the usual number of seeds.
    """

    experiment: Experiment
    minutes: float
    how: str = ""
    at_most: int | None = None
    more: int = 1

    def __str__(self) -> str:
        """The experiment, how it is run, and how long that takes."""
        how = f", {self.how}" if self.how else ""
        return f"{self.experiment.name}: {self.experiment.title}{how}, about {self.minutes:.2g} min"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run at a size.

    Attributes:
        now: What to run, in order.
        later: What the budget does not reach.
        done: Experiments that have a record.
        without: Experiments that have no such size.
    """

    now: tuple[Planned, ...]
    later: tuple[Planned, ...] = ()
    done: tuple[Experiment, ...] = ()
    without: tuple[Experiment, ...] = ()

    @property
    def minutes(self) -> float:
        """How long what is to be run takes, what is left for later included."""
        return sum(one.minutes for one in (*self.now, *self.later))


def plan(
    claims: Iterable[Claim], size: str, store: RecordStore, *, budget: float | None = None, force: bool = False
) -> Plan:
    """The experiments that claims are judged by, with all seeds.

    Args:
        claims: The claims.
        size: The size.
        store: The records that there are: what has one with all seeds is not run again.
        budget: Minutes; None: no limit.
        force: Whether to run again what has a record.
    """
    return plan_named(_deciding(claims), size, store, budget=budget, force=force)


def plan_first(
    claims: Iterable[Claim], size: str, store: RecordStore, *, budget: float | None = None, force: bool = False
) -> Plan:
    """The first pass; see `plan`. What has a record of either pass is not run again."""
    names = [name for name in _deciding(claims) if not experiment_named(name).second_pass]
    return plan_named(names, size, store, first=True, budget=budget, force=force)


def plan_named(
    names: Iterable[str],
    size: str,
    store: RecordStore,
    *,
    first: bool = False,
    budget: float | None = None,
    force: bool = False,
) -> Plan:
    """Experiments by name, with all seeds or with those of the first pass."""

    def planned(one: Experiment) -> Planned:
        seeds = one.first_seeds(size) if first else None
        if seeds is None:
            return Planned(one, one.minutes[size])
        return Planned(one, one.first_minutes(size), f"with the first {seeds} seeds", at_most=seeds)

    def is_done(record: Record) -> bool:
        return not force and (first or FIRST_SEEDS not in record.command)

    return _within(_that_have(size, dict.fromkeys(names), store, planned, is_done), budget)


def plan_second(claims: Iterable[Claim], size: str, store: RecordStore, *, budget: float | None = None) -> Plan:
    """The second pass over claims: what the first leaves out.

    Its minutes are those beyond the first pass, whose training runs are found again. What was run with more seeds than
    usual is left as it is.
    """
    several = list(with_origins(claims, declared()))
    beside = [claim.other_inputs for claim in several if claim.other_inputs is not None]
    left_out = [name for name in _deciding(several) if _left_out(experiment_named(name), size)]

    def planned(one: Experiment) -> Planned:
        if one.name in beside:
            return Planned(one, one.minutes[size], "with standardized inputs")
        if one.second_pass:
            return Planned(one, one.minutes[size], "left out of the first pass")
        return Planned(one, one.minutes[size] - one.first_minutes(size), "with all seeds")

    def is_done(record: Record) -> bool:
        return FIRST_SEEDS not in record.command

    found = _that_have(size, dict.fromkeys([*left_out, *beside]), store, planned, is_done)
    again = [
        Planned(one, MORE * one.minutes[size], "with twice the seeds", more=MORE)
        for one in _undecided(several, size, store)
    ]
    return _within(Plan((*found.now, *again), (), found.done, found.without), budget)


def _deciding(claims: Iterable[Claim]) -> dict[str, None]:
    """The names of the experiments that claims are judged by."""
    return dict.fromkeys(name for claim in with_origins(claims, declared()) for name in claim.deciding)


def _left_out(one: Experiment, size: str) -> bool:
    """Whether the first pass leaves out an experiment, or some of its seeds."""
    return size in one.minutes and (one.second_pass or one.first_seeds(size) is not None)


def _undecided(claims: Iterable[Claim], size: str, store: RecordStore) -> Iterator[Experiment]:
    """Experiments that leave a part undecided with all of their seeds, and were not run with more."""
    from trimtab.claims import verdict_on

    names: dict[str, None] = {}
    for claim in claims:
        for outcome in verdict_on(claim, size, store).outcomes:
            name = outcome.part.experiment or claim.experiment
            if outcome.state == "undecided" and outcome.part.kind != "claim" and name is not None:
                names[name] = None
    for name in names:
        record = store.find(name, size)
        if record is not None and not any(flag in record.command for flag in (MORE_SEEDS, FIRST_SEEDS)):
            yield experiment_named(name)


def _that_have(
    size: str,
    names: Iterable[str],
    store: RecordStore,
    planned: Callable[[Experiment], Planned],
    is_done: Callable[[Record], bool],
) -> Plan:
    """Experiments that have a size, those that are done apart."""
    now, done, without = [], [], []
    for one in map(experiment_named, names):
        if size not in one.minutes:
            without.append(one)
        elif (record := store.find(one.name, size)) is not None and is_done(record):
            done.append(one)
        else:
            now.append(planned(one))
    return Plan(tuple(now), (), tuple(done), tuple(without))


def _within(whole: Plan, budget: float | None) -> Plan:
    """A plan of which is done now what fits into a budget of minutes."""
    left = float("inf") if budget is None else budget
    now: list[Planned] = []
    later: list[Planned] = []
    for one in whole.now:
        fits = one.minutes <= left
        (now if fits else later).append(one)
        left -= one.minutes if fits else 0
    return Plan(tuple(now), tuple(later), whole.done, whole.without)
