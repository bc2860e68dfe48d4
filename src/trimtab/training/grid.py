"""The plan of a comparison: setups, candidates for the learning rate, runs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import product
from typing import Any

from trimtab.data import Dataset
from trimtab.networks import places
from trimtab.records import RENAMED_SETTINGS
from trimtab.training.methods import Method, unused_by
from trimtab.training.recipes import resolve
from trimtab.training.settings import Settings, resolved

TUNING_SEED = 0
RECORDS = 100  # of the training loss, per run


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Networks × batch sizes × methods, each with learning rates to choose from and seeds to train at the chosen one.

    Attributes:
        data: The data set.
        networks: By name.
        methods: By name.
        batch_sizes: Samples per step; empty: the recipe's.
        epochs: By batch size; for others, the recipe's.
        lrs: Candidates for every method; empty: `rates` of them around the recipe's own.
        rates: How many, then.
        seeds: Runs at the chosen learning rate.
        validation: Samples to choose it on; None: a tenth of the training data if there is something to choose, else 0.
        evaluations: How often the runs at the chosen learning rate are tested along the way.
        shared: Settings of all runs, except of methods that do not use them.
    """

    data: str = "digits"
    networks: tuple[str, ...] = ("small-cnn",)
    methods: tuple[str, ...] = ("vanilla", "bn", "ln", "bnp")
    batch_sizes: tuple[int, ...] = ()
    epochs: Mapping[int, int] = field(default_factory=dict)
    lrs: tuple[float, ...] = ()
    rates: int = 5
    seeds: int = 3
    validation: int | None = None
    evaluations: int = 20
    shared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chooses(self) -> bool:
        """Whether there is more than one learning rate to choose from."""
        return len(self.lrs or range(self.rates)) > 1


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of a comparison, with its length in steps."""

    settings: Settings
    steps: int

    @property
    def name(self) -> str:
        """A folder name: what identifies the run, and a hash of all settings that differ from the defaults."""
        return _name(self.settings)


@cache
def _name(s: Settings) -> str:
    # By its old name where it had one: folders that were named before are found again.
    old_names = {new: old for old, new in RENAMED_SETTINGS.items()}
    changed = {f.name: getattr(s, f.name) for f in fields(Settings) if getattr(s, f.name) != f.default}
    named = {old_names.get(name, name): value for name, value in changed.items()}
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]
    return f"{s.network}-{s.method}-b{s.batch_size}-lr{s.lr:g}-s{s.seed}-{digest}"


@dataclass(frozen=True, slots=True)
class Setup:
    """One network, batch size and method, with the runs it needs.

    Attributes:
        settings: Resolved, with the recipe's learning rate.
        rates: The candidates, rising.
        steps: Length of a run.
        seeds: How many runs at the chosen learning rate.
        evaluations: How often each of these is tested.
    """

    settings: Settings
    rates: tuple[float, ...]
    steps: int
    seeds: int
    evaluations: int

    def tuning(self) -> list[PlannedRun]:
        """A run for each candidate, evaluated on validation data; none if there is only one candidate."""
        if len(self.rates) == 1:
            return []
        common = replace(self._run(), seed=TUNING_SEED, evaluate_on="validation", evaluations=1)
        return [PlannedRun(replace(common, lr=lr), self.steps) for lr in self.rates]

    def final(self, lr: float) -> list[PlannedRun]:
        """The runs at a chosen learning rate, evaluated on test data."""
        common = replace(self._run(), lr=lr, evaluate_on="test", evaluations=self.evaluations)
        seeds = range(TUNING_SEED + 1, TUNING_SEED + 1 + self.seeds)
        return [PlannedRun(replace(common, seed=seed), self.steps) for seed in seeds]

    def _run(self) -> Settings:
        return replace(self.settings, log_every=max(self.steps // RECORDS, 1))


def setups(grid: Grid, dataset: Dataset) -> list[Setup]:
    """All setups of a grid.

    Raises:
        ValueError: If a method is not known or the settings contradict the data.
    """
    validation = grid.validation
    if validation is None:
        validation = len(dataset.train) // 10 if grid.chooses else 0
    if grid.chooses and not validation:
        raise ValueError("a learning rate is chosen on validation data; set aside some with --validation")
    train_samples = len(dataset.with_validation(validation)[0])
    for network in grid.networks:
        places(network)  # refuses those that there are not
    _check_methods(grid.methods)
    Settings(**grid.shared)  # refuses what no method can have
    without = unused_by(grid.shared, grid.methods)
    result = []
    for network, size, method in product(grid.networks, grid.batch_sizes or (None,), grid.methods):
        shared = {name: value for name, value in grid.shared.items() if method not in without.get(name, ())}
        length = {} if size is None or size not in grid.epochs else {"epochs": grid.epochs[size]}
        given = Settings(
            **{**shared, **length},
            data=grid.data,
            network=network,
            method=method,
            batch_size=size,
            validation=validation,
        )
        settings = resolve(given)
        per_epoch = train_samples // (resolved(settings.batch_size) or train_samples)
        if not per_epoch:
            raise ValueError(
                f"a batch of {settings.batch_size} is more than the {train_samples} samples to train on; take so many "
                "or less, or 0 for all of them"
            )
        steps = settings.steps or resolved(settings.epochs) * per_epoch
        rates = tuple(sorted(set(grid.lrs))) or around(resolved(settings.lr), grid.rates)
        result.append(Setup(settings, rates, steps, grid.seeds, grid.evaluations))
    return result


def _check_methods(names: Sequence[str]) -> None:
    """Refuse two names of one method, which would be compared with itself."""
    seen: dict[Method, str] = {}
    for name in names:
        method = replace(Method.parse(name), name="")
        if method in seen:
            raise ValueError(f"{seen[method]} and {name} are the same method; name it once")
        seen[method] = name


def around(lr: float, number: int) -> tuple[float, ...]:
    """Learning rates around a given one, each about three times the one before.

    >>> around(0.1, 5)
    (0.01, 0.03, 0.1, 0.3, 1.0)
    >>> around(0.5, 2)
    (0.15, 0.5)
    """
    below = number // 2
    factors = (10.0 ** (k // 2) * (3 if k % 2 else 1) for k in range(-below, number - below))
    return tuple(float(f"{lr * factor:.6g}") for factor in factors)
