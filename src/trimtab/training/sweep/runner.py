"""Runs a sweep in a folder. What is done there is not done again."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from trimtab.data import Dataset, load
from trimtab.records import (
    RESULTS,
    RUNS,
    UNFINISHED,
    GridCell,
    Restart,
    Sweep,
    SweptAxis,
    is_sweep,
    usable_cores,
    whole_file,
)
from trimtab.training import checkpoint
from trimtab.training import folder as folders
from trimtab.training.building import batch_size_of, split_data
from trimtab.training.device import hardware, torch_threads
from trimtab.training.grid import PlannedRun
from trimtab.training.interruption import interruptible
from trimtab.training.launch import versions
from trimtab.training.settings import Settings, resolved
from trimtab.training.sweep.boundaries import conclusion, predicted_boundaries
from trimtab.training.sweep.ending import chance_accuracy, restart_of
from trimtab.training.sweep.plan import PLAN, Grid, Plan, choose_engine, definition, example_network, networks, stacks
from trimtab.training.sweep.stack import Stack
from trimtab.training.workers.local_pool import LocalEngine
from trimtab.training.workers.pool import Engine
from trimtab.training.workers.task import Task, outcome_of

STACKS = "stacks"
CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 30.0, 0.05
"""Seconds between two checkpoints of a stack; more, if they would take a larger share of the time."""
SHOW_SECONDS = 0.5
OUTCOME_BYTES = 150
"""Of a network, in the results and in the outcomes of its stack."""


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """The progress of a sweep: steps done and all steps, of all networks, and what is being done."""

    done: int
    total: int
    doing: str


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM while a stack was trained, whose checkpoint was saved.

    Attributes:
        signal: Its number.
    """

    def __init__(self, signal: int) -> None:
        """By a signal of this number."""
        super().__init__()
        self.signal = signal


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
        self._cells = grid.cells()
        self._dataset: Dataset = load(self._cells[0].data, data_root)
        _check(out)
        self._networks = networks(grid)
        self._plan = self._planned(engine)
        self.engine, self.reason = self._plan.engine, self._plan.reason
        self._workers = workers or LocalEngine()
        self._jobs = min(jobs or self._workers.default_jobs(device, threads or 1), len(self._networks))
        self._threads = threads
        self._restarts: dict[int, Restart] = {}
        self._why_not: dict[int, str] = {}
        self._steps: dict[int, int] = {}
        self._shown = 0.0
        train, held_out, self._part = split_data(self._dataset, self._cells[0])
        self._train_samples = len(train)
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
                _remove(self._out)
            self._plan.write(self._out)
            if not (self._out / RESULTS).exists():
                self._sweep().write(self._out)
            if self.engine == "stacked":
                with torch_threads(self._threads or (usable_cores() if self._device.type == "cpu" else None)):
                    self._train_stacks()
            else:
                self._train_separately()
            if len(self._why_not) == len(self._networks):
                why = next(iter(self._why_not.values()))
                _remove(self._out)
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
        engine, reason = choose_engine(wanted, self._cells[0], self._dataset, self._device)
        there = None if self._force else Plan.read(self._out)
        if there is None:
            cut = stacks(self._networks, self._dataset, self._device) if engine == "stacked" else []
            return Plan(engine, reason, self._device.type, cut, ours)
        if there.definition != ours:
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
        if self._plan.stacks:
            largest = max(len(stack) for stack in self._plan.stacks)
            needed += 2 * largest * _state_bytes(self._networks[0].settings, self._dataset)
        where = next(folder for folder in (self._out, *self._out.absolute().parents) if folder.exists())
        free = shutil.disk_usage(where).free
        if needed > free:
            raise ValueError(
                f"the sweep needs about {needed / 1e9:.1f} GB in {self._out}, and {free / 1e9:.1f} GB are free there; "
                "take fewer networks, or another place with --out"
            )

    def _train_stacks(self) -> None:
        folder = self._out / STACKS
        folder.mkdir(exist_ok=True)
        for number, members in enumerate(self._plan.stacks):
            saved, state = folder / f"{number:04}.json", folder / f"{number:04}.pt"
            outcomes = _read_outcomes(saved, len(members))
            if outcomes is None:
                doing = f"stack {number + 1} of {len(self._plan.stacks)}, {len(members)} networks"
                outcomes = self._train_stack(members, state, doing)
                with whole_file(saved) as file:
                    file.write(json.dumps(outcomes).encode())
            state.unlink(missing_ok=True)
            for member, outcome in zip(members, outcomes, strict=True):
                self._end(member, outcome)
            self._sweep().write(self._out)

    def _train_stack(self, members: Sequence[int], state: Path, doing: str) -> list[dict[str, Any]]:
        settings = [self._networks[member].settings for member in members]
        try:
            stack = self._stack(settings, state)
            saved, wait = time.monotonic(), CHECKPOINT_SECONDS
            with interruptible() as interrupted:
                while not stack.finished:
                    stack.advance()
                    self._advance(members, stack.step, doing)
                    number = interrupted()
                    if number or time.monotonic() - saved > wait:
                        began = time.monotonic()
                        checkpoint.save(state, {"stack": stack.state()})
                        saved = time.monotonic()
                        wait = max(CHECKPOINT_SECONDS, (saved - began) / CHECKPOINT_SHARE)
                    if number:
                        raise Interrupted(number)
        except ValueError as error:
            return [{"why_not": str(error)}] * len(members)
        return [asdict(outcome) for outcome in stack.outcomes()]

    def _stack(self, settings: Sequence[Settings], state: Path) -> Stack:
        """The stack as it was saved; from its first step, if nothing was that it can go on with."""
        if state.exists():
            stack = Stack(settings, self._dataset, self._device)
            with suppress(ValueError, KeyError, TypeError):
                stack.restore(checkpoint.load(state, self._device)["stack"])
                return stack
        return Stack(settings, self._dataset, self._device)

    def _train_separately(self) -> None:
        numbers = {}
        for number, one in enumerate(self._networks):
            run = PlannedRun(replace(one.settings, evaluations=1), self._length(one.settings))
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
            doing = f"{len(tasks)} networks, {self._jobs} at a time"
            done = lambda task, step: self._advance([numbers[task.run.name][0]], step, doing)  # noqa: E731
            for task, outcome in pool.run(tasks, done):
                self._end_run(numbers[task.run.name][0], outcome)
                self._advance([numbers[task.run.name][0]], task.run.steps, doing)

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

    def _advance(self, members: Sequence[int], step: int, doing: str) -> None:
        for member in members:
            self._steps[member] = step
        now = time.monotonic()
        if self._show is not None and now - self._shown > SHOW_SECONDS:
            self._shown = now
            total = sum(self._length(one.settings) for one in self._networks)
            self._show(SweepProgress(sum(self._steps.values()), total, doing))

    def _length(self, settings: Settings) -> int:
        if settings.steps:
            return settings.steps
        return resolved(settings.epochs) * (self._train_samples // batch_size_of(settings, self._train_samples))

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
            steps=self._length(self._cells[0]),
            part=self._part,
            chance=self._chance,
            engine=self.engine,
            reason=self.reason,
            machine=hardware(self._device),
            versions=versions(),
            finished=False,
            cells=tuple(cells),
        )


def _read_outcomes(path: Path, number: int) -> list[dict[str, Any]] | None:
    """What was written of a finished stack; None if there is nothing that can be read."""
    try:
        outcomes = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    names = {"loss", "accuracy", "exploded_at"}
    if not isinstance(outcomes, list) or len(outcomes) != number:
        return None
    return outcomes if all(isinstance(one, dict) and one.keys() in (names, {"why_not"}) for one in outcomes) else None


def _state_bytes(settings: Settings, dataset: Dataset) -> int:
    parameters = sum(p.numel() * p.element_size() for p in example_network(settings, dataset).parameters())
    return parameters * (3 if settings.optimizer != "sgd" else 2)


def _check(out: Path) -> None:
    """Refuse a folder that holds something else."""
    if not out.exists():
        return
    if not out.is_dir() or ((out / RESULTS).exists() and not is_sweep(out)):
        raise ValueError(f"{out} holds something else than a sweep; name another folder with --out")
    others = [path.name for path in out.iterdir() if not path.name.endswith(UNFINISHED)]
    if others and not {PLAN, RESULTS} & set(others):
        raise ValueError(f"{out} holds other files ({others[0]}); name another folder with --out")


def _remove(out: Path) -> None:
    """Remove what a sweep has written, and nothing else that someone may have put there."""
    for path in (out / STACKS).glob("[0-9]*.*"):
        path.unlink()
    for run in (out / RUNS).glob("*/"):
        folders.remove(run)
        with suppress(OSError):
            run.rmdir()
    for name in (STACKS, RUNS):
        with suppress(OSError):
            (out / name).rmdir()
    for name in (RESULTS, PLAN):
        (out / name).unlink(missing_ok=True)
