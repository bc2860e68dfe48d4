"""Training runs of an experiment: several cases, each with several seeds, side by side and resumable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimtab.claims.experiments.registry import Context
from trimtab.claims.findings import Findings
from trimtab.data import Dataset, load
from trimtab.records import Candidate, History, run_numbers
from trimtab.training.cells import best_rate
from trimtab.training.grid import RECORDS, TUNING_SEED, PlannedRun, around
from trimtab.training.recipes import resolve
from trimtab.training.settings import Settings, resolved
from trimtab.training.workers.local_pool import LocalEngine
from trimtab.training.workers.task import Outcome, Task, outcome_of

EVALUATIONS = 20
WIDENINGS = 2
"""So often the range of learning rates is widened while the best one is at its edge."""


@dataclass(frozen=True, slots=True)
class TrainedCase:
    """The runs of one case.

    Attributes:
        lr: The learning rate they were trained at.
        runs: By seed.
        candidates: What the rate was chosen from, on validation data; empty if there was one only.
        refused: Why it cannot be trained; empty if it can.
    """

    lr: float
    runs: Mapping[int, History]
    candidates: tuple[Candidate, ...] = ()
    refused: str = ""


def train_cases(
    context: Context,
    cases: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    rates: int = 1,
) -> dict[str, TrainedCase]:
    """Train cases with several seeds, tested 20 times along the way. What was trained before is not trained again.

    Args:
        context: Of the experiment.
        cases: The settings of each case, `method` among them.
        shared: Settings of all cases.
        seeds: Runs with one seed have the same order of data.
        rates: Candidates for the learning rate, around the recipe's or the one given; 1: that one.

    Returns:
        The runs, by case.
    """
    first = {name: resolve(Settings(**{**shared, **own})) for name, own in cases.items()}
    dataset = load(next(iter(first.values())).data, context.data_root)
    found: dict[str, TrainedCase] = {}
    if rates > 1:
        chosen = _choose_rates(context, first, dataset, rates)
    else:
        chosen = {name: (resolved(settings.lr), ()) for name, settings in first.items()}
    planned: dict[str, dict[int, PlannedRun]] = {}
    for name, settings in first.items():
        lr = chosen[name][0]
        settings = replace(settings, lr=lr, evaluate_on="test")
        if not {"evaluations", "evaluate_every"} & {*shared, *cases[name]}:
            settings = replace(settings, evaluations=EVALUATIONS)
        planned[name] = {seed: _planned(replace(settings, seed=seed), dataset) for seed in seeds}
    outcomes = _train(context, [run for runs in planned.values() for run in runs.values()])
    for name, runs in planned.items():
        refused = next((why for run in runs.values() if (why := outcomes[run.name].why_not)), None)
        histories = {} if refused else {seed: History.read(context.work / run.name) for seed, run in runs.items()}
        found[name] = TrainedCase(chosen[name][0], histories, chosen[name][1], refused or "")
    return found


def chosen_rates(
    context: Context,
    cases: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any],
    rates: int,
    *,
    seed: int = TUNING_SEED,
) -> dict[str, tuple[float, tuple[Candidate, ...]]]:
    """The best learning rate of each case on validation data, with all candidates; see `train_cases`."""
    first = {name: resolve(Settings(**{**shared, **own})) for name, own in cases.items()}
    return _choose_rates(context, first, load(next(iter(first.values())).data, context.data_root), rates, seed)


def enter_runs(findings: Findings, trained: Mapping[str, TrainedCase], classes: int, suffix: str = "") -> None:
    """Enter the numbers of all runs, and the curves of their accuracy.

    A case that cannot be trained counts as one that guesses.

    Args:
        findings: Where they are entered.
        trained: What `train_cases` returned.
        classes: Of the data.
        suffix: Added to the names of the measures.
    """
    findings.chance = 100 / classes
    seeds = sorted({seed for case in trained.values() for seed in case.runs})
    for name, case in trained.items():
        findings.settings[f"lr of {name}{suffix}"] = case.lr
        if case.candidates:
            findings.settings[f"candidates of {name}{suffix}"] = [
                [candidate.lr, candidate.value] for candidate in case.candidates
            ]
        if case.refused:
            findings.refused[name + suffix] = case.refused
            for seed in seeds or [0]:
                for measure in ("acc", "early", "late"):
                    findings.number(measure + suffix, name, findings.chance, seed=seed, unit="points")
            continue
        for seed, history in case.runs.items():
            findings.run(name, seed, run_numbers(history, 1 / classes), suffix)
        enter_accuracy_curve(findings, f"accuracy{suffix}", name, list(case.runs.values()))


def enter_accuracies(findings: Findings, trained: Mapping[str, TrainedCase], classes: int, suffix: str = "") -> None:
    """Enter the last accuracy of all runs and nothing else: for many cases of which no other number is judged."""
    everything = Findings()
    enter_runs(everything, trained, classes, suffix)
    findings.chance = everything.chance
    findings.settings |= everything.settings
    findings.refused |= everything.refused
    for name, seeds in everything.numbers.get(f"acc{suffix}", {}).items():
        for seed, value in seeds.items():
            findings.number(f"acc{suffix}", name, value, seed=seed, unit="points")


def enter_accuracy_curve(findings: Findings, panel: str, line: str, runs: Sequence[History]) -> None:
    """Enter test accuracy in points over epochs: median and range over the seeds at each evaluation."""
    by_epoch: dict[float, list[float]] = {}
    for history in runs:
        for event in history.evaluated:
            if event.accuracy is not None:
                by_epoch.setdefault(round(event.epoch, 4), []).append(100 * event.accuracy)
    points = []
    for epoch, values in sorted(by_epoch.items()):
        ordered = sorted(values)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        points.append((epoch, middle, ordered[0], ordered[-1]))
    findings.curve(panel, line, points)


def _planned(settings: Settings, dataset: Dataset) -> PlannedRun:
    samples = len(dataset.with_validation(settings.validation)[0])
    per_epoch = samples // (resolved(settings.batch_size) or samples)
    steps = settings.steps or resolved(settings.epochs) * max(per_epoch, 1)
    if settings.log_every is None:
        settings = replace(settings, log_every=max(steps // RECORDS, 1))
    return PlannedRun(settings, steps)


def _train(context: Context, runs: Sequence[PlannedRun]) -> dict[str, Outcome]:
    """Train those that have no outcome yet, the longest first; a crash costs one run at most."""
    outcomes = {run.name: outcome_of(context.work / run.name, run.settings) for run in runs}
    known = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    left = sorted({run.name: run for run in runs if run.name not in known}.values(), key=lambda run: -run.steps)
    if not left:
        return known
    engine = context.engine or LocalEngine()
    jobs = min(context.jobs or engine.default_jobs(context.device, 1), len(left))
    tasks = [Task(run, context.work / run.name, context.command, context.device, context.data_root) for run in left]
    with engine.pool(jobs, 1, context.device) as pool:
        for task, outcome in pool.run(tasks, lambda task, step: None):
            known[task.run.name] = outcome
            context.show(f"{len(known)} of {len(outcomes)} runs")
    return known


def _choose_rates(
    context: Context, cases: Mapping[str, Settings], dataset: Dataset, rates: int, seed: int = TUNING_SEED
) -> dict[str, tuple[float, tuple[Candidate, ...]]]:
    """The best rate of each case on validation data, and all candidates."""
    lower = not dataset.classes
    validation = len(dataset.train) // 10
    tried: dict[str, dict[float, Candidate]] = {name: {} for name in cases}
    wanted = {name: around(resolved(settings.lr), rates) for name, settings in cases.items()}
    for _ in range(1 + WIDENINGS):
        runs = {
            (name, lr): _planned(
                replace(
                    cases[name],
                    lr=lr,
                    seed=seed,
                    validation=cases[name].validation or validation,
                    evaluate_on="validation",
                    evaluations=1,
                    probe=(),
                ),
                dataset,
            )
            for name, lrs in wanted.items()
            for lr in lrs
        }
        outcomes = _train(context, list(runs.values()))
        for (name, lr), run in runs.items():
            last = outcomes[run.name].last
            value = None if last is None else last.accuracy if dataset.classes else last.loss
            tried[name][lr] = Candidate(lr, value, None if last is None else last.loss, run.name)
        wanted = {name: _wider(candidates, lower) for name, candidates in tried.items()}
        wanted = {name: lrs for name, lrs in wanted.items() if lrs}
        if not wanted:
            break
    return {
        name: (best_rate(list(candidates.values()), lower=lower), tuple(candidates[lr] for lr in sorted(candidates)))
        for name, candidates in tried.items()
    }


def _wider(candidates: Mapping[float, Candidate], lower: bool) -> tuple[float, ...]:
    """The rate beyond the edge at which the best one is; none if it is not at an edge, or nothing trains."""
    trainable = [candidate for candidate in candidates.values() if candidate.value is not None]
    if not trainable:
        return (min(candidates) / 3,)
    best = best_rate(trainable, lower=lower)
    if best == max(candidates):
        return (float(f"{3 * best:.6g}"),)
    return (float(f"{best / 3:.6g}"),) if best == min(candidates) else ()
