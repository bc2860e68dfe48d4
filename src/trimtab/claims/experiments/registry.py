"""The registry of experiments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol

import torch

from trimtab.claims.findings import Findings
from trimtab.nearest import nearest
from trimtab.training.workers.pool import Engine

FIRST_SEED = 101
"""Runs that were seen when criteria were written had seeds below."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an experiment is run with.

    Attributes:
        size: One of `trimtab.claims.record.SIZES`.
        device: Where networks are trained.
        data_root: The folder of the data sets; None: as everywhere.
        work: The folder for training runs, which are found again there.
        jobs: Runs at a time; None: as many as do not slow each other down.
        engine: Who trains; None: processes on this machine.
        more: How many times the usual number of seeds.
        at_most: So many seeds at most, in a first pass; None: no limit.
        command: As it was typed.
        show: Called with a sentence on the progress.
    """

    size: str
    device: torch.device
    data_root: Path | None
    work: Path
    jobs: int | None = None
    engine: Engine | None = None
    more: int = 1
    at_most: int | None = None
    command: str = ""
    show: Callable[[str], None] = field(default=lambda text: None)

    def seeds(self, number: int) -> tuple[int, ...]:
        """The seeds of so many runs; fewer of them in a first pass, more where something was undecided."""
        number *= self.more
        return tuple(range(FIRST_SEED, FIRST_SEED + min(number, self.at_most or number)))


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment.

    Attributes:
        name: Its name.
        title: What is done, in a few words.
        minutes: By size, how long it takes: small on two cores of a CPU, gpu and paper on one H200.
        needs: Data sets that it reads, by size; embedded ones are not named.
        run: Runs it.
        seeds: At size small, of the first pass and of both; None: the first pass has all of them.
        second_pass: Whether it belongs to the second pass altogether: it searches for learning rates, compares many, or
            does on larger data what another one does.
    """

    name: str
    title: str
    minutes: Mapping[str, float]
    needs: Mapping[str, tuple[str, ...]]
    run: Callable[[Findings, Context], None]
    seeds: tuple[int, int] | None = None
    second_pass: bool = False

    def first_seeds(self, size: str) -> int | None:
        """Seeds of the first pass, if they are fewer than all."""
        return None if self.seeds is None or size != "small" else self.seeds[0]

    def first_minutes(self, size: str) -> float:
        """How long it takes in the first pass."""
        first = self.first_seeds(size)
        return self.minutes[size] if first is None or self.seeds is None else self.minutes[size] * first / self.seeds[1]


_KNOWN: dict[str, Experiment] = {}


def experiment(
    name: str,
    title: str,
    *,
    small: float | None = None,
    gpu: float | None = None,
    paper: float | None = None,
    needs: tuple[str, ...] | Mapping[str, tuple[str, ...]] = (),
    seeds: tuple[int, int] | None = None,
    second_pass: bool = False,
) -> Callable[[Callable[[Findings, Context], None]], Callable[[Findings, Context], None]]:
    """Register a function as an experiment; the sizes that it has are those with a number of minutes.

    See `Experiment` for the arguments.
    """

    def register(run: Callable[[Findings, Context], None]) -> Callable[[Findings, Context], None]:
        if name in _KNOWN:
            raise ValueError(f"there is an experiment {name!r} already")
        minutes = {size: m for size, m in (("small", small), ("gpu", gpu), ("paper", paper)) if m is not None}
        by_size = needs if isinstance(needs, Mapping) else dict.fromkeys(minutes, needs)
        _KNOWN[name] = Experiment(name, title, minutes, by_size, run, seeds, second_pass)
        return run

    return register


class RunWithInputs(Protocol):
    """Runs an experiment with inputs normalized in a way."""

    def __call__(self, findings: Findings, context: Context, normalize: str) -> None:
        """Fill the findings."""


def with_both_inputs(
    name: str,
    title: str,
    *,
    paper: float | None = None,
    seeds: tuple[int, int] | None = None,
    second_pass: bool = False,
    **about: Any,
) -> Callable[[RunWithInputs], RunWithInputs]:
    """Register a function that takes `normalize` as two experiments: inputs in [0, 1], and standardized ones beside.

    The second is called `name`-standard, has no size paper, and is run in the second pass.
    """

    def register(run: RunWithInputs) -> RunWithInputs:
        judged = experiment(name, title, paper=paper, seeds=seeds, second_pass=second_pass, **about)
        judged(partial(run, normalize="unit"))
        beside = experiment(f"{name}-standard", "The same with standardized inputs", second_pass=True, **about)
        beside(partial(run, normalize="standard"))
        return run

    return register


@cache
def _load() -> None:
    package = import_module("trimtab.claims.experiments")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def experiments() -> Mapping[str, Experiment]:
    """All experiments, by name."""
    _load()
    return _KNOWN


def experiment_named(name: str) -> Experiment:
    """The experiment with a name.

    Raises:
        ValueError: If there is none.
    """
    known = experiments()
    if name not in known:
        near = nearest(name, known)
        raise ValueError(f"there is no experiment {name!r}" + (f"; did you mean {near!r}?" if near else ""))
    return known[name]
