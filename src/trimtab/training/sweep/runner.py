"""Runs a sweep in a folder. What is done there is not done again."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from trimtab.data import Dataset, load
from trimtab.records import RUNS, GridCell, Restart, Sweep, SweptAxis, is_sweep, usable_cores
from trimtab.training import folder as folders
from trimtab.training.building import batch_size_of, split_data
from trimtab.training.device import hardware, torch_threads
from trimtab.training.grid import PlannedRun
from trimtab.training.launch import versions
from trimtab.training.settings import Settings, resolved
from trimtab.training.sweep.boundaries import predicted_boundaries
from trimtab.training.sweep.conclusion import conclusion, counted
from trimtab.training.sweep.ending import chance_accuracy, restart_of
from trimtab.training.sweep.folder import STACKS, check_disk, check_folder, remove
from trimtab.training.sweep.plan import (
    Grid,
    Plan,
    choose_engine,
    definition,
    example_network,
    first_that_builds,
    networks,
    stacks,
)
from trimtab.training.sweep.stack_files import StackFiles
from trimtab.training.workers.local_pool import LocalEngine
from trimtab.training.workers.pool import Engine
from trimtab.training.workers.task import Task, outcome_of

SHOW_SECONDS = 0.5
OUTCOME_BYTES, RUN_BYTES = 150, 8000
"""Of a network: in the results and in the outcomes of its stack; in the records of a run of its own."""
MOST_THREADS = 64
"""Or as many as there are cores, if they are more: torch ends the process where the system has no more threads."""


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """The progress of a sweep: steps done and all steps, of all networks, and what is being done."""

    done: int
    total: int
    doing: str


class SweepRunner:
    """Trains all networks of a sweep in a folder.

    Attributes:
        engine: `stacked` or `separate`.
        reason: Why.
    """

    def __init__(
        self,
        grid: Grid,
        out: Path,
        *,
        command: str,
        device: torch.device,
        data_root: Path | None = None,
        engine: str = "auto",
        workers: Engine | None = None,
        jobs: int | None = None,
        threads: int | None = None,
        force: bool = False,
        predict: bool = True,
        show: Callable[[SweepProgress], None] | None = None,
    ) -> None:
        """Read the data and plan the networks; nothing is written yet.

        Args:
            grid: What is swept.
            out: The folder for results.
            command: The command that was typed, for the records.
            device: The device to train on.
            data_root: The folder of the data sets.
            engine: `auto`, `stacked` or `separate`.
            workers: Who trains separate networks; by default processes on this machine.
            jobs: Separate networks at a time; None: as many as do not slow each other down.
            threads: Threads of each process; None: one, and for stacks on a CPU one per core.
            force: Whether to begin anew.
            predict: Whether to predict the largest stable rates.
            show: Called with the progress.

        Raises:
            ValueError: If something about the grid, the data, the folder or the memory is wrong.
        """
        self._grid, self._out, self._command, self._device = grid, out, command, device
        self._data_root, self._force, self._predict, self._show = data_root, force, predict, show
        if threads is not None and threads > (most := max(MOST_THREADS, usable_cores())):
            raise ValueError(
                f"threads is {threads}, and {most} are the most; take as many as there are cores, or fewer"
            )
        self._cells = grid.cells()
        self._dataset: Dataset = load(self._cells[0].data, data_root)
        check_folder(out, force=force)
        self._networks = networks(grid)
        self._example = first_that_builds(self._cells, self._dataset)
        self._plan = self._planned(engine)
        self.engine, self.reason = self._plan.engine, self._plan.reason
        self._workers = workers or LocalEngine()
        self._jobs = min(jobs or self._workers.default_jobs(device, threads or 1), len(self._networks))
        self._threads = threads
        self._restarts: dict[int, Restart] = {}
        self._why_not: dict[int, str] = {}
        self._steps: dict[int, int] = {}
        self._shown = 0.0
        _, held_out, self._part = split_data(self._dataset, self._cells[0])
        self._total = sum(self._length(one.settings) for one in self._networks)
        self._chance = chance_accuracy(held_out, self._dataset.classes)
        self._check_disk()

    def run(self) -> Sweep:
        """Train what is not trained yet.

        Raises:
            ValueError: If another process is at work in the folder, or nothing can be trained.
            Interrupted: By a signal.
        """
        with folders.locked(self._out):
            if self._force:
                remove(self._out)
            self._plan.write(self._out)
            if not is_sweep(self._out):
                self._sweep().write(self._out)
            if self.engine == "stacked":
                with torch_threads(self._threads or (usable_cores() if self._device.type == "cpu" else None)):
                    self._train_stacks()
            else:
                self._train_separately()
            if len(self._why_not) == len(self._networks):
                why = next(iter(self._why_not.values()))
                remove(self._out)
                raise ValueError(f"none of these networks can be trained: {why}")
            sweep = replace(self._sweep(), finished=True)
            if self._predict and sweep.rate_axis is not None:
                sweep = replace(sweep, predictions=predicted_boundaries(sweep, self._cells, self._dataset))
            sweep = replace(sweep, conclusion=conclusion(sweep))
            sweep.write(self._out)
            return sweep

    def _planned(self, wanted: str) -> Plan:
        """The plan in the folder if it is that of this sweep, else a new one."""
        ours = definition(self._grid)
        engine, reason = choose_engine(wanted, self._example, self._dataset, self._device)
        there = None if self._force else Plan.read(self._out)
        if there is None:
            cut = stacks(self._networks, self._dataset, self._device) if engine == "stacked" else []
            return Plan(engine, reason, self._device.type, cut, ours)
        if there.definition != ours or not there.covers(len(self._networks)):
            raise ValueError(f"{self._out} holds another sweep; name another folder with --out, or use --force")
        if wanted not in ("auto", there.engine):
            raise ValueError(f"the sweep in {self._out} was begun with --engine {there.engine}; go on with that")
        if there.device != self._device.type:
            raise ValueError(
                f"the sweep in {self._out} was begun on {there.device}; go on with --device {there.device}"
            )
        return there

    def _check_disk(self) -> None:
        """Refuse a sweep whose records do not fit onto the disk."""
        needed = 2 * OUTCOME_BYTES * len(self._networks)
        state = _state_bytes(self._example, self._dataset)
        if self.engine == "stacked":
            needed += 2 * max(len(stack) for stack in self._plan.stacks) * state
        else:
            needed += RUN_BYTES * len(self._networks) + 2 * self._jobs * state
        check_disk(self._out, needed)

    def _train_stacks(self) -> None:
        folder = self._out / STACKS
        folder.mkdir(exist_ok=True)
        for number, members in enumerate(self._plan.stacks):
            settings = [self._networks[member].settings for member in members]
            doing = f"stack {number + 1} of {len(self._plan.stacks)}, {counted(len(members))}"
            advance = partial(self._advance, members, doing)
            outcomes = StackFiles(folder, number, members).outcomes(settings, self._dataset, self._device, advance)
            for member, outcome in zip(members, outcomes, strict=True):
                self._end(member, outcome)
            self._sweep().write(self._out)

    def _train_separately(self) -> None:
        numbers = {}
        for number, one in enumerate(self._networks):
            run = PlannedRun(replace(one.settings, evaluations=1, train_subset=0), self._length(one.settings))
            found = outcome_of(self._out / RUNS / run.name, run.settings)
            if found is None:
                numbers[run.name] = number, run
            else:
                self._end_run(number, found)
        tasks = [
            Task(run, self._out / RUNS / run.name, self._command, self._device, self._data_root)
            for _, run in numbers.values()
        ]
        with self._workers.pool(self._jobs, self._threads or 1, self._device) as pool:
            doing = f"{counted(len(tasks))}, {self._jobs} at a time"
            done = lambda task, step: self._advance([numbers[task.run.name][0]], doing, step)  # noqa: E731
            for task, outcome in pool.run(tasks, done):
                self._end_run(numbers[task.run.name][0], outcome)
                self._advance([numbers[task.run.name][0]], doing, task.run.steps)

    def _end_run(self, number: int, outcome: Any) -> None:
        if outcome.why_not is not None:
            self._end(number, {"why_not": outcome.why_not})
            return
        last = outcome.last
        loss, accuracy = (None, None) if last is None else (last.loss, last.accuracy)
        at = outcome.exploded_at
        if loss is None and at is None:  # it was seen in an evaluation only
            at = self._length(self._networks[number].settings)
        self._end(number, {"loss": loss, "accuracy": accuracy, "exploded_at": at})

    def _end(self, number: int, outcome: dict[str, Any]) -> None:
        if "why_not" in outcome:
            self._why_not[number] = outcome["why_not"]
        else:
            seed = self._networks[number].settings.seed
            self._restarts[number] = restart_of(seed, chance=self._chance, **outcome)
        self._steps[number] = self._length(self._networks[number].settings)

    def _advance(self, members: Sequence[int], doing: str, step: int) -> None:
        for member in members:
            self._steps[member] = step
        now = time.monotonic()
        if self._show is not None and now - self._shown > SHOW_SECONDS:
            self._shown = now
            self._show(SweepProgress(sum(self._steps.values()), self._total, doing))

    def _length(self, settings: Settings) -> int:
        """The steps of a network; 0 if it cannot be trained."""
        if settings.steps:
            return settings.steps
        samples = len(self._dataset.train) - settings.validation
        try:
            return resolved(settings.epochs) * (samples // batch_size_of(settings, samples))
        except ValueError:
            return 0

    def _sweep(self) -> Sweep:
        per_cell = len(self._grid.seeds)
        cells = []
        for number, values in enumerate(product(*(axis.values for axis in self._grid.axes))):
            members = range(number * per_cell, (number + 1) * per_cell)
            restarts = tuple(self._restarts[one] for one in members if one in self._restarts)
            why_not = next((self._why_not[one] for one in members if one in self._why_not), None)
            cells.append(GridCell(values, restarts, why_not))
        settings = json.loads(json.dumps(asdict(self._cells[0])))
        return Sweep(
            command=self._command,
            settings=settings,
            axes=tuple(SweptAxis(axis.name, axis.values, axis.geometric) for axis in self._grid.axes),
            seeds=self._grid.seeds,
            steps=self._length(self._example),
            part=self._part,
            chance=self._chance,
            engine=self.engine,
            reason=self.reason,
            machine=hardware(self._device),
            versions=versions(),
            finished=False,
            cells=tuple(cells),
        )


def _state_bytes(settings: Settings, dataset: Dataset) -> int:
    parameters = sum(p.numel() * p.element_size() for p in example_network(settings, dataset).parameters())
    return parameters * (3 if settings.optimizer != "sgd" else 2)
