"""The plan of a sweep: its cells, which engine trains them, and which networks go into one stack."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trimtab.data import Dataset
from trimtab.records import whole_file
from trimtab.training.building import batch_size_of, split_data
from trimtab.training.conversion import LIMIT
from trimtab.training.network import Interface, network
from trimtab.training.recipes import resolve
from trimtab.training.settings import Settings, as_it_was
from trimtab.training.sweep.axes import Axis
from trimtab.training.sweep.memory import networks_at_once
from trimtab.training.sweep.stack import OF_ONE_NETWORK
from trimtab.training.unused_settings import check_unused_settings

PLAN = "plan.json"
LARGEST_GRID = 1_000_000


@dataclass(frozen=True, slots=True)
class Grid:
    """What a sweep is over.

    Attributes:
        given: Settings of all networks, by name.
        axes: What varies.
        restarts: Networks per cell, with consecutive seeds.
    """

    given: Mapping[str, Any]
    axes: tuple[Axis, ...]
    restarts: int

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the restarts of each cell."""
        first = self.given.get("seed", 0)
        return tuple(range(first, first + self.restarts))

    def cells(self) -> list[Settings]:
        """The settings of each cell, with the seed of its first restart.

        Raises:
            ValueError: If the axes make no sense.
        """
        names = [axis.name for axis in self.axes]
        if len(names) < 2:
            raise ValueError("a sweep has two axes or more; give --axis for each")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} is an axis twice; give each once")
        if both := [name for name in names if name in self.given]:
            raise ValueError(f"{both[0]} is an axis and has a value of its own; leave out one of them")
        if "validation" in names and self.given.get("evaluate_on") != "test":
            raise ValueError(
                "validation is an axis, so that networks would be evaluated on other samples; give --evaluate-on test"
            )
        if self.seeds[-1] >= LIMIT:
            raise ValueError(f"the seed of the last restart is {self.seeds[-1]}, and seeds are below 2^63; give --seed")
        number = self.restarts
        for axis in self.axes:
            number *= len(axis.values)
        if number > LARGEST_GRID:
            raise ValueError(f"the grid has {number:,} networks, and {LARGEST_GRID:,} are the most; take fewer values")
        cells = []
        for values in product(*(axis.values for axis in self.axes)):
            settings = resolve(Settings(**{**self.given, **dict(zip(names, values, strict=True))}))
            check_unused_settings([*self.given, *names], settings)
            cells.append(settings)
        return cells


@dataclass(frozen=True, slots=True)
class Network:
    """One network of a sweep: the number of its cell, and its settings."""

    cell: int
    settings: Settings


def networks(grid: Grid) -> list[Network]:
    """All networks, cell by cell."""
    return [Network(i, replace(cell, seed=seed)) for i, cell in enumerate(grid.cells()) for seed in grid.seeds]


def choose_engine(wanted: str, settings: Settings, dataset: Dataset, device: torch.device) -> tuple[str, str]:
    """The engine that trains a sweep, and why.

    Args:
        wanted: `auto`, `stacked` or `separate`.
        settings: Of one of the networks.
        dataset: What they are trained on.
        device: And where.

    Raises:
        ValueError: If stacks are wanted that there cannot be.
    """
    why_not = not_stackable(settings, dataset)
    if wanted == "separate":
        return wanted, "it was asked for"
    if wanted == "stacked":
        if why_not:
            raise ValueError(f"--engine stacked: {why_not}; use --engine separate")
        return wanted, "it was asked for"
    if why_not:
        return "separate", why_not
    if device.type == "cpu" and any(isinstance(m, nn.Conv2d) for m in example_network(settings, dataset).modules()):
        return "separate", "on a CPU stacked convolutions are no faster than one network at a time"
    return "stacked", "networks of one architecture are trained as one batched computation"


def not_stackable(settings: Settings, dataset: Dataset) -> str:
    """Why networks with such settings cannot be stacked; empty if they can."""
    if settings.probe:
        return "probes measure one network at a time"
    if settings.compile:
        return "stacks are not compiled"
    if not isinstance(dataset, Dataset):
        return f"{settings.data} is read from files, batch by batch, for one network"
    if settings.parsed_method.bnp:
        model = example_network(settings, dataset)
        if type(model) is not nn.Sequential or any(isinstance(m, nn.Conv2d) for m in model.modules()):
            return f"BNP is stacked for dense networks only, and {settings.network} has convolutions"
    return ""


def example_network(settings: Settings, dataset: Dataset) -> nn.Module:
    """The initial network of these settings, to look at.

    Raises:
        ValueError: If there is none.
    """
    train, _, _ = split_data(dataset, settings)
    with torch.random.fork_rng([]):
        torch.manual_seed(settings.seed)
        return network(settings, Interface.of(dataset, settings, batch_size_of(settings, len(train))))


def first_that_builds(cells: Sequence[Settings], dataset: Dataset) -> Settings:
    """The first settings that there is a network for.

    Raises:
        ValueError: If there is none at all.
    """
    problem = None
    for settings in dict.fromkeys(_in_common(cells)):
        try:
            example_network(settings, dataset)
        except ValueError as error:
            problem = problem or error
        else:
            return settings
    assert problem is not None
    raise ValueError(f"none of these networks can be trained: {problem}")


def _in_common(cells: Sequence[Settings]) -> list[Settings]:
    """The settings with those of the first one, wherever the networks of one stack may differ."""
    usual = {name: getattr(cells[0], name) for name in OF_ONE_NETWORK}
    return [replace(cell, **usual) for cell in cells]


def stacks(every: Sequence[Network], dataset: Dataset, device: torch.device) -> list[list[int]]:
    """The networks by their numbers, in stacks: those that differ in numbers only, as many at once as memory allows.

    Raises:
        ValueError: If not even one network fits.
    """
    alike: dict[Settings, list[int]] = {}
    for number, settings in enumerate(_in_common([one.settings for one in every])):
        alike.setdefault(settings, []).append(number)
    cut = []
    for settings, members in alike.items():
        try:
            model = example_network(settings, dataset)
        except ValueError:  # which the stack will say too, and that goes into the records
            cut.append(members)
            continue
        train, _, _ = split_data(dataset, settings)
        most = networks_at_once(model, settings, dataset.input_shape, batch_size_of(settings, len(train)), device)
        number = -(-len(members) // most)
        # Equal shares: neighbours in the grid explode at similar steps, so each stack has some of every region.
        cut += [members[i::number] for i in range(number)]
    return cut


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided before the first step, and holds when a sweep is resumed.

    Attributes:
        engine: `stacked` or `separate`.
        reason: Why.
        device: Where the networks are trained: `cpu` or `cuda`.
        stacks: The numbers of the networks in each stack; empty for `separate`.
        definition: Settings, axes and seeds, to know the sweep by.
    """

    engine: str
    reason: str
    device: str
    stacks: list[list[int]]
    definition: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write it to a folder, completely or not at all."""
        with whole_file(folder / PLAN) as file:
            file.write(json.dumps(asdict(self)).encode())

    def covers(self, number: int) -> bool:
        """Whether it is a plan for so many networks, each in one stack."""
        return self.engine == "separate" or sorted(n for stack in self.stacks for n in stack) == list(range(number))

    @classmethod
    def read(cls, folder: Path) -> "Plan | None":
        """The plan in a folder; None if there is none that can be read."""
        try:
            content = json.loads((folder / PLAN).read_bytes())
            content["definition"]["settings"] = _of_now(content["definition"]["settings"])
            plan = cls(**content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        if plan.engine not in ("stacked", "separate") or not isinstance(plan.stacks, list):
            return None
        members = [n for stack in plan.stacks for n in (stack if isinstance(stack, list) and stack else [None])]
        return plan if all(type(n) is int for n in members) else None


def _of_now(saved: dict[str, Any]) -> dict[str, Any]:
    """The settings of a sweep that was begun, with the defaults of those that there were not yet."""
    usual: dict[str, Any] = json.loads(json.dumps(asdict(Settings())))
    return {**usual, **as_it_was(saved)}


def definition(grid: Grid) -> dict[str, Any]:
    """Settings, axes and seeds of a sweep, as JSON has them."""
    content = {
        "settings": asdict(grid.cells()[0]),
        "axes": [[axis.name, axis.values] for axis in grid.axes],
        "seeds": grid.seeds,
    }
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]
