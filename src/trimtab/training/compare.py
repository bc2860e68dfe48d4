"""Which method is better here?

For every network, batch size and method the learning rate is chosen on validation data, among equally many candidates
for each; when all are chosen, new seeds are trained at these rates and tested. Nothing is chosen by test data.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from trimtab.data import load
from trimtab.records import RESULTS, Candidate, Cell, Comparison, Evaluated, History, Trial, usable_cores
from trimtab.training import folder as folders
from trimtab.training.grid import Grid, Place, Planned, places
from trimtab.training.launch import versions
from trimtab.training.run import hardware
from trimtab.training.session import settled
from trimtab.training.workers import Outcome, Task, outcome_of, workers

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Stand:
    """How far a comparison is: steps done and to be done, and what is being done."""

    done: int
    total: int
    doing: str


class Comparing:
    """A comparison in its folder. Runs that are done there are not done again."""

    def __init__(
        self,
        grid: Grid,
        out: Path,
        *,
        command: str,
        device: torch.device,
        data_root: Path | None = None,
        jobs: int | None = None,
        force: bool = False,
        show: Callable[[Stand], None] | None = None,
    ) -> None:
        """Read the data and lay out the runs; nothing is written yet.

        Args:
            grid: What is compared.
            out: The folder.
            command: What was typed.
            device: Where to train.
            data_root: The folder of the data sets.
            jobs: Runs at a time; None: as many as do not slow each other down.
            force: Whether to do all runs anew.
            show: Told how far it is.

        Raises:
            ValueError: If something about the grid, the data or the folder is wrong.
        """
        dataset = load(grid.data, data_root)
        self._grid, self._out, self._force, self._show = grid, out, force, show
        self._command, self._device, self._data_root = command, device, data_root
        self._places = places(grid, dataset)
        self._classes = dataset.classes
        validation = self._places[0].settings.validation
        self._parts = len(dataset.train) - validation, validation, len(dataset.test)
        runs = sum(max(len(place.rates), grid.seeds) for place in self._places)
        self._jobs, self._threads = side_by_side(runs, jobs, device)
        self._outcomes: dict[str, Outcome] = {}
        self._steps: dict[str, int] = {}
        self._total = sum(place.steps * (len(place.tuning()) + place.seeds) for place in self._places)
        self._doing = ""
        if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / RESULTS).exists())):
            raise ValueError(f"{out} holds something else than a comparison; name another folder with --out")

    def run(self, conclude: Callable[[Comparison], str]) -> Comparison:
        """Do what is left to do.

        Args:
            conclude: Says what a finished comparison shows.

        Raises:
            ValueError: If another process is at work in the folder, or no method can train.
            TrainingFailed: If a run fails otherwise.
        """
        with folders.locked(self._out):
            if self._force:
                shutil.rmtree(self._out / RUNS, ignore_errors=True)
            self._keep(self._so_far())
            with workers(self._jobs, self._threads) as team:
                for doing, runs in (("choosing learning rates", self._tuning), ("testing", self._final)):
                    left = self._left(runs())
                    if runs == self._final:
                        self._total = sum(self._steps.values()) + sum(task.run.steps for task in left)
                    self._doing = doing
                    for task, outcome in team.run(left, self._advance):
                        self._outcomes[task.run.name] = outcome
                        self._advance(task, task.run.steps)
                        self._keep(self._so_far())
            comparison = replace(self._so_far(), finished=True)
            if all(cell.why_not for cell in comparison.cells):
                raise ValueError(f"none of these can be trained: {comparison.cells[0].why_not}")
            comparison = self._where(comparison)
            return self._keep(replace(comparison, conclusion=conclude(comparison)))

    def _tuning(self) -> list[Planned]:
        return [run for place in self._places for run in place.tuning()]

    def _final(self) -> list[Planned]:
        cells = zip(self._places, self._so_far().cells, strict=True)
        return [run for place, cell in cells if cell.lr is not None for run in place.final(cell.lr)]

    def _left(self, runs: list[Planned]) -> list[Task]:
        """What is not done yet, the longest first, so that no core waits for another at the end."""
        tasks = []
        for run in runs:
            folder = self._out / RUNS / run.name
            outcome = outcome_of(folder, run.settings)
            if outcome is None:
                tasks.append(Task(run, folder, self._command, self._device, self._data_root))
            else:
                self._outcomes[run.name] = outcome
                self._steps[run.name] = run.steps
        return sorted(tasks, key=lambda task: -task.run.steps)

    def _advance(self, task: Task, step: int) -> None:
        self._steps[task.run.name] = step
        if self._show is not None:
            self._show(Stand(sum(self._steps.values()), self._total, self._doing))

    def _so_far(self) -> Comparison:
        return Comparison(
            command=self._command,
            data=self._grid.data,
            parts=self._parts,
            metric="accuracy" if self._classes else "loss",
            machine=hardware(self._device),
            versions=versions(),
            side_by_side=self._jobs,
            seeds=self._grid.seeds,
            finished=False,
            cells=tuple(assemble(place, self._outcomes, self._classes) for place in self._places),
        )

    def _where(self, comparison: Comparison) -> Comparison:
        """With the machines and versions of the runs, which may have been done elsewhere and earlier."""
        names = [trial.run for cell in comparison.cells for trial in cell.trials]
        starts = [History.read(self._out / RUNS / name).started for name in names]
        found = {key: ", ".join(dict.fromkeys(start.versions[key] for start in starts)) for key in comparison.versions}
        return replace(comparison, machine="; ".join(dict.fromkeys(start.machine for start in starts)), versions=found)

    def _keep(self, comparison: Comparison) -> Comparison:
        comparison.write(self._out)
        return comparison


def assemble(place: Place, outcomes: Mapping[str, Outcome], classes: int) -> Cell:
    """What is known of a place so far; the learning rate is chosen when all candidates are known."""
    tuning = [(run, outcomes[run.name]) for run in place.tuning() if run.name in outcomes]
    cell = Cell(
        place.settings.network,
        settled(place.settings.batch_size),
        place.settings.method,
        place.settings.epochs,
        place.settings.steps,
        settled(place.settings.optimizer),
        candidates=tuple(
            Candidate(settled(run.settings.lr), _value(outcome.last, classes), _loss(outcome.last), run.name)
            for run, outcome in tuning
            if outcome.why_not is None
        ),
        why_not=next((outcome.why_not for _, outcome in tuning if outcome.why_not), None),
    )
    if cell.why_not or len(tuning) < len(place.tuning()):
        return cell
    lr = best(cell.candidates, lower=not classes) if tuning else place.rates[0]
    final = [(run, outcomes[run.name]) for run in place.final(lr) if run.name in outcomes]
    why_not = next((outcome.why_not for _, outcome in final if outcome.why_not), None)
    if why_not:
        return replace(cell, why_not=why_not)
    guess = 1 / classes if classes else math.inf
    trials = []
    for run, outcome in final:
        value = _value(outcome.last, classes)
        trials.append(Trial(run.settings.seed, guess if value is None else value, value is None, run.name))
    return replace(cell, lr=lr, trials=tuple(trials))


def best(candidates: Sequence[Candidate], *, lower: bool) -> float:
    """The learning rate with the best value on validation data; among equals the one with the lowest loss."""

    def quality(candidate: Candidate) -> tuple[float, float]:
        if candidate.value is None or candidate.loss is None:
            return -math.inf, -math.inf
        return -candidate.value if lower else candidate.value, -candidate.loss

    return max(candidates, key=quality).lr


def side_by_side(runs: int, jobs: int | None, device: torch.device) -> tuple[int, int]:
    """How many runs at a time, and how many threads each.

    A core for each run is what keeps them from slowing each other down; cores that are left over become threads. On a
    GPU they share more than that: of `cnn5` at batch size 128 on an H200 with 16 cores, 4 at a time are each as fast as
    one alone, 8 take 1.6 times as long.
    """
    cores = usable_cores()
    most = cores if device.type == "cpu" else max(cores // 4, 1)
    jobs = min(jobs or most, runs)
    return jobs, max(cores // jobs, 1)


def _value(last: Evaluated | None, classes: int) -> float | None:
    return None if last is None else last.accuracy if classes else last.loss


def _loss(last: Evaluated | None) -> float | None:
    return None if last is None else last.loss
