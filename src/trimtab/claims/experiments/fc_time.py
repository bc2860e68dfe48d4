"""bnp, Fig. 9 and Table 1: the time of an epoch with BN and with BNP."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import train_cases
from trimtab.records import History

BATCH_SIZES = (16, 256, 512)


@experiment("fc-time", "Time of BN and BNP, two layers of 100", small=3, gpu=10, paper=20, needs=("cifar10",))
def fc_time(findings: Findings, context: Context) -> None:
    """Train by turns: of two runs that are compared, one begins when the other has ended."""
    shared = {
        "data": "cifar10",
        "network": "mlp2x100",
        "epochs": 5 if context.size == "small" else 20,
        "evaluate_every": 1,
        "train_subset": 0,
        "step_mode": "eager",
    }
    alone = replace(context, jobs=1)
    curves: dict[str, dict[str, list[History]]] = {}
    for number, seed in enumerate(context.seeds(3)):
        methods = ("bn", "bnp") if number % 2 == 0 else ("bnp", "bn")
        cases = {
            f"{method} {size}": {"method": method, "batch_size": size} for size in BATCH_SIZES for method in methods
        }
        for name, case in train_cases(alone, cases, shared, (seed,)).items():
            method, size = name.split()
            history = case.runs[seed]
            curves.setdefault(f"seconds, batch {size}", {}).setdefault(method, []).append(history)
            per_epoch = median(epoch_seconds(history))
            findings.number(f"seconds per epoch at batch {size}", method, per_epoch, seed=seed, unit="time")
            total = history.evaluated[-1].seconds
            findings.number(f"seconds after the last epoch at batch {size}", method, total, seed=seed, unit="time")
    for panel, lines in curves.items():
        for method, runs in lines.items():
            findings.curve(panel, method, cumulative(runs))
    findings.settings |= shared


def epoch_seconds(history: History) -> list[float]:
    """The training time of each epoch, without evaluations."""
    times = [0.0, *(event.seconds for event in history.evaluated)]
    return [after - before for before, after in pairwise(times)]


def cumulative(runs: Sequence[History]) -> list[tuple[float, float, float, float]]:
    """Training time after each epoch: median and range over the runs."""
    points = []
    for events in zip(*(run.evaluated for run in runs), strict=True):
        seconds = [event.seconds for event in events]
        points.append((events[0].epoch, median(seconds), min(seconds), max(seconds)))
    return points
