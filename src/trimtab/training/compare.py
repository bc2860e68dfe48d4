"""Runs a comparison of methods.

For every network, batch size and method the learning rate is chosen on validation data, among equally many candidates
for each; when all are chosen, new seeds are trained at these rates and tested. Nothing is chosen by test data.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from trimtab.data import load
from trimtab.records import RESULTS, RUNS, UNFINISHED, Comparison, History
from trimtab.renamed import renamed_members
from trimtab.training import folder as folders
from trimtab.training.cells import cell_of
from trimtab.training.device import hardware, torch_threads
from trimtab.training.estimate import Estimate, in_a_comparison
from trimtab.training.grid import Grid, PlannedRun, setups
from trimtab.training.launch import check_first_step, cost_of, versions
from trimtab.training.methods import left_out_notes, unused_by
from trimtab.training.session import Session
from trimtab.training.workers.local_pool import LocalEngine
from trimtab.training.workers.pool import Engine, WorkerPool
from trimtab.training.workers.task import Outcome, Task, outcome_of


@dataclass(frozen=True, slots=True)
class ComparisonProgress:
    """The progress of a comparison: steps done, all steps, and which phase it is in."""

    done: int
    total: int
    doing: str


class ComparisonRunner:
    """Trains all runs of a comparison in a folder. Runs that are done there are not done again."""

    def __init__(
        self,
        grid: Grid,
        out: Path,
        *,
        command: str,
        device: torch.device,
        data_root: Path | None = None,
        jobs: int | None = None,
        threads: int = 1,
        force: bool = False,
        engine: Engine | None = None,
        show: Callable[[ComparisonProgress], None] | None = None,
    ) -> None:
        """Read the data and plan the runs; nothing is written yet.

        Args:
            grid: What is compared.
            out: The folder for runs and results.
            command: The command that was typed, for the records.
            device: The device to train on.
            data_root: The folder of the data sets.
            jobs: Runs at a time; None: as many as do not slow each other down.
            threads: Threads of each run. Results depend on their number in the last digits, as they do on the hardware.
            force: Whether to repeat runs that are done.
            engine: Who trains the runs; `engines.engine_named` has one on Ray. By default processes on this machine.
            show: Called with the progress.

        Raises:
            ValueError: If something about the grid, the data or the folder is wrong.
        """
        dataset = self._dataset = load(grid.data, data_root)
        self._grid, self._out, self._force, self._show = grid, out, force, show
        self._command, self._device, self._data_root = command, device, data_root
        self._setups = setups(grid, dataset)
        self._classes = dataset.classes
        validation = self._setups[0].settings.validation
        self._parts = len(dataset.train) - validation, validation, len(dataset.test)
        self._outcomes: dict[str, Outcome] = {}
        self._steps: dict[str, int] = {}
        self._total = sum(setup.steps * (len(setup.tuning()) + setup.seeds) for setup in self._setups)
        self._doing = ""
        _check(out)
        self._engine = engine or LocalEngine()
        runs = sum(max(len(setup.rates), grid.seeds) for setup in self._setups)
        self._jobs, self._threads = min(jobs or self._engine.default_jobs(device, threads), runs), threads

    @property
    def notes(self) -> tuple[str, ...]:
        """Which settings are left out for which methods."""
        return left_out_notes(unused_by(self._grid.shared, self._grid.methods))

    def run(self, conclude: Callable[[Comparison], str]) -> Comparison:
        """Train what is not trained yet.

        Args:
            conclude: Returns the conclusion of a finished comparison, in sentences.

        Raises:
            ValueError: If another process is at work in the folder, or no method can train.
            TrainingFailed: If a run fails otherwise.
        """
        with folders.locked(self._out):
            if not self._force:
                self._recall(self._tuning())
                self._recall(self._final())  # of what is chosen already
            if not self._outcomes and (self._out / RESULTS).exists():
                self._check_first_steps()  # before the results that are there are lost
            if self._force:
                self._remove_runs()
            with self._engine.pool(self._jobs, self._threads, self._device) as pool:
                self._train("choosing learning rates", self._tuning(), pool)
                final = self._final()
                self._recall(final)
                self._total = sum(run.steps for run in (*self._tuning(), *final))  # without what cannot train
                self._train("testing", final, pool)
            comparison = replace(self._so_far(), finished=True)
            if all(cell.why_not for cell in comparison.cells):
                (self._out / RESULTS).unlink(missing_ok=True)
                with suppress(OSError):  # there may be runs of another comparison
                    (self._out / RUNS).rmdir()
                raise _nothing_trains(comparison.cells[0].why_not)
            comparison = self._with_machines(comparison)
            return self._write(replace(comparison, conclusion=conclude(comparison)))

    def estimate(self) -> tuple[Estimate, dict[str, str]]:
        """Estimate the time and memory of the runs that are left, from a few steps of each; nothing is written.

        Returns:
            The estimate, and for each setup that cannot be trained the reason.
        """
        if not self._force:
            self._recall(self._tuning(), tidy=False)
            self._recall(self._final(), tidy=False)
        costs, cannot = [], {}
        with torch_threads(self._threads):
            for setup, cell in zip(self._setups, self._so_far().cells, strict=True):
                tuning, final = len(setup.tuning()) - len(cell.candidates), setup.seeds - len(cell.trials)
                if cell.why_not or not tuning + final:
                    continue
                run = setup.final(setup.rates[0])[0].settings
                try:
                    tested = cost_of(Session(run, self._device, dataset=self._dataset))
                except ValueError as error:
                    cannot[f"{run.network}, batch size {run.batch_size}, {run.method}"] = str(error)
                else:
                    costs += [(replace(tested, evaluations=1), tuning), (tested, final)]
        return in_a_comparison(costs, self._jobs), cannot

    def _check_first_steps(self) -> None:
        """Refuse a comparison in which nothing can be trained; nothing is written."""
        problems = []
        for setup in self._setups:
            first = (setup.tuning() or setup.final(setup.rates[0]))[0]
            try:
                check_first_step(first.settings, self._device, self._dataset)
            except ValueError as error:
                problems.append(str(error))
            else:
                return
        raise _nothing_trains(problems[0])

    def _remove_runs(self) -> None:
        """Remove the runs, and nothing else that someone may have put there."""
        for folder in (self._out / RUNS).glob("*/"):
            folders.remove(folder)
            with suppress(OSError):
                folder.rmdir()

    def _recall(self, runs: Sequence[PlannedRun], *, tidy: bool = True) -> None:
        """Read the outcomes of runs that were done before."""
        for run in runs:
            outcome = outcome_of(self._out / RUNS / run.name, run.settings, tidy=tidy)
            if outcome is not None:
                self._outcomes[run.name] = outcome
                self._steps[run.name] = run.steps

    def _train(self, doing: str, runs: Sequence[PlannedRun], pool: WorkerPool) -> None:
        """Train those runs that have no outcome yet: the longest first, so that no core is idle at the end."""
        self._doing = doing
        left = sorted((run for run in runs if run.name not in self._outcomes), key=lambda run: -run.steps)
        if left:
            self._write(self._so_far())
        tasks = [Task(run, self._out / RUNS / run.name, self._command, self._device, self._data_root) for run in left]
        for task, outcome in pool.run(tasks, self._advance):
            self._outcomes[task.run.name] = outcome
            self._advance(task, task.run.steps)
            self._write(self._so_far())

    def _tuning(self) -> list[PlannedRun]:
        return [run for setup in self._setups for run in setup.tuning()]

    def _final(self) -> list[PlannedRun]:
        cells = zip(self._setups, self._so_far().cells, strict=True)
        return [run for setup, cell in cells if cell.lr is not None for run in setup.final(cell.lr)]

    def _advance(self, task: Task, step: int) -> None:
        self._steps[task.run.name] = step
        if self._show is not None:
            self._show(ComparisonProgress(sum(self._steps.values()), self._total, self._doing))

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
            cells=tuple(cell_of(setup, self._outcomes, self._classes) for setup in self._setups),
            notes=self.notes,
        )

    def _with_machines(self, comparison: Comparison) -> Comparison:
        """Add the machines and versions of the runs, which may have been trained elsewhere and earlier."""
        names = [trial.run for cell in comparison.cells for trial in cell.trials]
        starts = [History.read(self._out / RUNS / name).started for name in names]
        versions = {
            key: ", ".join(dict.fromkeys(start.versions[key] for start in starts)) for key in comparison.versions
        }
        return replace(
            comparison, machine="; ".join(dict.fromkeys(start.machine for start in starts)), versions=versions
        )

    def _write(self, comparison: Comparison) -> Comparison:
        comparison.write(self._out)
        return comparison


def _nothing_trains(why: str | None) -> ValueError:
    return ValueError(f"none of these can be trained: {why}")


def _check(out: Path) -> None:
    """Refuse a folder that holds something else."""
    if not out.exists():
        return
    if not out.is_dir() or ((out / RESULTS).exists() and not _is_comparison(out)):
        raise ValueError(f"{out} holds something else than a comparison; name another folder with --out")
    others = [path.name for path in out.iterdir() if not path.name.endswith(UNFINISHED)]
    if others and RESULTS not in others:
        raise ValueError(f"{out} holds other files ({others[0]}); name another folder with --out")


def _is_comparison(out: Path) -> bool:
    try:
        Comparison.read(out)
    except ValueError:
        return False
    return True


__getattr__ = renamed_members(globals(), Comparing="ComparisonRunner")
