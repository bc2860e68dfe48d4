"""What a claim needs that is not run at a size, or undecided there: the command, how long it takes, and the data."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from trimtab.claims.claim import Claim
from trimtab.claims.judging import MOST_SEEDS, Outcome
from trimtab.claims.record import SIZES, Record

if TYPE_CHECKING:
    from trimtab.claims.experiments.registry import Experiment

MACHINES = {"small": "two CPU cores", "gpu": "one H200", "paper": "one H200"}
DATA = {
    "mnist": "MNIST (`trimtab data fetch mnist`)",
    "cifar10": "CIFAR-10 (`trimtab data fetch cifar10`)",
    "cifar100": "CIFAR-100 (`trimtab data fetch cifar100`)",
    "imagefolder": "ImageNet (train/CLASS/*.JPEG and val/CLASS/*.JPEG below `--data-root`)",
}
"""Data sets that do not come with trimtab, and how they are got."""
MORE_SEEDS, FIRST_SEEDS = "--more-seeds", "--pass first"
"""How the command of a record says that it has more seeds than usual, or those of the first pass only."""


class Records(Protocol):
    """Finds the record of an experiment at a size."""

    def find(self, experiment: str, size: str) -> Record | None:
        """The record; None if there is none."""


def with_origins(wanted: Iterable[Claim], claims: Mapping[str, Claim]) -> Iterator[Claim]:
    """Claims, each with those that it is derived from."""
    for claim in wanted:
        yield claim
        yield from with_origins((claims[part.name] for part in claim.parts if part.kind == "claim"), claims)


def what_is_missing(claim: Claim, size: str, records: Records, claims: Mapping[str, Claim], lacks: str = "") -> str:
    """Why a claim is not run at a size, in a sentence, with the command that would run it and what that takes.

    Args:
        claim: The claim.
        size: The size.
        records: The records that there are.
        claims: All claims, for those that are derived from others.
        lacks: What a record lacks, where there is one of each experiment.
    """
    from trimtab.claims.experiments.registry import experiments

    names = dict.fromkeys(name for one in with_origins([claim], claims) for name in one.deciding)
    if not names:
        return claim.needs
    if unknown := [name for name in names if name not in experiments()]:
        return claim.needs or f"experiment {unknown[0]} was not run at size {size}"
    wanted = [experiments()[name] for name in names]
    missing = [one for one in wanted if records.find(one.name, size) is None]
    why = claim.needs or ("" if missing else lacks)
    too_small = not missing or (size == "small" and bool(claim.needs))
    at = _size_to_run(wanted, SIZES.index(size) + too_small)
    if at is None:
        return why or f"no experiment that decides it has a size {size} or a larger one"
    told = what_it_takes([one for one in wanted if records.find(one.name, at) is None] or wanted, at)
    if why:
        return f"{why}; {told}"
    return told if at == size else f"there is no size {size} of it; {told}"


def what_it_takes(wanted: Sequence["Experiment"], size: str) -> str:
    """The command that runs experiments at a size, how long it takes on which machine, and with which data."""
    return f"needs size {size}: {_command(wanted, size)}"


def what_decides(outcomes: Iterable[tuple[Outcome, str]], size: str, records: Mapping[str, Record]) -> str:
    """The commands that run experiments with more seeds, for parts that are undecided at a size; empty if none is.

    As the second pass does: all seeds, where a record has those of the first pass only; else twice as many, up to ten.

    Args:
        outcomes: What came out for parts, each with the name of its experiment.
        size: The size.
        records: The records that they are judged by, by experiment.
    """
    from trimtab.claims.experiments.registry import experiments

    seeds: dict[str, int] = {}
    for outcome, name in outcomes:
        if outcome.state == "undecided" and name in experiments() and size in experiments()[name].minutes:
            fewest = MOST_SEEDS if outcome.interval is None else outcome.interval.seeds
            seeds[name] = min(seeds.get(name, MOST_SEEDS), fewest)
    by_times: dict[int, list[Experiment]] = {}
    for name, number in seeds.items():
        by_times.setdefault(_times(records[name].command, number), []).append(experiments()[name])
    commands = [_command(several, size, times) for times, several in by_times.items()]
    return f"more seeds may decide it: {' and '.join(commands)}" if commands else ""


def _times(command: str, seeds: int) -> int:
    """How many times the usual number of seeds is to be run, where a command gave that many."""
    if FIRST_SEEDS in command:
        return 1
    found = re.search(rf"{MORE_SEEDS} (\d+)", command)
    before = int(found[1]) if found else 1
    usual = max(seeds // before, 1)
    return max(min(2 * before, math.ceil(MOST_SEEDS / usual)), before + 1)


def _command(wanted: Sequence["Experiment"], size: str, times: int | None = None) -> str:
    """A command with its time, machine and data; `times` the usual number of seeds, where there is a record."""
    words = ["trimtab claims run", *(f"--experiment {one.name}" for one in wanted), f"--size {size}"]
    words += [f"--force {MORE_SEEDS} {times}"] if times is not None and times > 1 else []
    data = dict.fromkeys(name for one in wanted for name in one.needs.get(size, ()))
    on = f", with {' and '.join(DATA[name] for name in data)}" if data else ""
    took = duration((times or 1) * sum(one.minutes[size] for one in wanted))
    return f"`{' '.join(words)}`, about {took} on {MACHINES[size]}{on}"


def duration(minutes: float) -> str:
    """Minutes, or hours where they are many."""
    return f"{minutes:.2g} min" if minutes < 1 else f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.3g} h"


def not_run_at(claim: Claim, records: Records, claims: Mapping[str, Claim]) -> dict[str, str]:
    """What a claim needs at each size at which its experiments can be run and were not."""
    from trimtab.claims.experiments.registry import experiments

    names = dict.fromkeys(name for one in with_origins([claim], claims) for name in one.deciding)
    wanted = [experiments()[name] for name in names if name in experiments()]
    found: dict[str, str] = {}
    for size in SIZES:
        missing = [one for one in wanted if records.find(one.name, size) is None]
        if missing and all(size in one.minutes for one in wanted):
            found[size] = what_it_takes(missing, size)
    return found


def _size_to_run(wanted: Sequence["Experiment"], first: int) -> str | None:
    """The first size from that number on that all experiments have: a claim is judged by records of one size."""
    return next((at for at in SIZES[first:] if all(at in one.minutes for one in wanted)), None)
