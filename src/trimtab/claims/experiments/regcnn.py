"""What the experiments with the convolutional network of the regularization paper (its Sec. 5) share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from trimtab.claims.experiments.registry import Context
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import EVALUATIONS, TrainedCase, train_cases
from trimtab.data import load
from trimtab.records import History, gap_at, run_numbers
from trimtab.training.grid import TUNING_SEED

NEIGHBOUR = "digits instead of CIFAR-10"
PER_64 = (0.003, 0.01, 0.03)
"""Candidates for the learning rate, per 64 samples; the paper leaves it open."""
RATE_EPOCHS = 10


@dataclass(frozen=True, slots=True)
class Lab:
    """The network on the data of a size, with the one learning rate of all methods.

    Attributes:
        context: Of the experiment.
        data: The data set.
        classes: How many it has.
        samples: Training samples.
        rate: The learning rate per 64 samples.
    """

    context: Context
    data: str
    classes: int
    samples: int
    rate: float

    def shared(self, epochs: int, batch_size: int = 64) -> dict[str, Any]:
        """The settings of all runs of a batch size."""
        return {
            **{"network": "regcnn", "data": self.data, "epochs": epochs, "evaluations": EVALUATIONS},
            **self.at(batch_size),
        }

    def at(self, batch_size: int) -> dict[str, Any]:
        """A batch size, with the learning rate in proportion."""
        return {"batch_size": batch_size, "lr": float(f"{self.rate * batch_size / 64:.6g}")}

    def last_step(self, epochs: int, batch_size: int) -> int:
        """The step, counted from 0, before which a probe sees the network last."""
        return epochs * (self.samples // batch_size) - 1

    def train(
        self, cases: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any], seeds: Sequence[int], folder: str = ""
    ) -> dict[str, TrainedCase]:
        """Train cases; a folder can be named that experiments share which have runs in common."""
        context = self.context
        if folder:
            context = replace(context, work=context.work.parent / folder)
        return train_cases(context, cases, shared, seeds)


def lab(findings: Findings, context: Context) -> Lab:
    """The network on digits at size small and on CIFAR-10 else; enters the learning rate and what it was chosen from.

    It is that of the candidates with the lowest sum of vanilla's and BN's training losses after ten epochs. The runs
    for this are the same in all experiments, and done once.
    """
    data = "digits" if context.size == "small" else "cifar10"
    if data == "digits":
        findings.neighbour = NEIGHBOUR
    dataset = load(data, context.data_root)
    settings = {"network": "regcnn", "data": data, "batch_size": 64, "epochs": RATE_EPOCHS, "evaluations": 1}
    cases = {f"{method} {rate:g}": {"method": method, "lr": rate} for rate in PER_64 for method in ("vanilla", "bn")}
    trained = train_cases(replace(context, work=context.work.parent / "regcnn-rate"), cases, settings, (TUNING_SEED,))
    losses = {
        name: math.inf if (loss := run_numbers(case.runs[TUNING_SEED], 1 / dataset.classes).tloss) is None else loss
        for name, case in trained.items()
    }
    sums = {rate: losses[f"vanilla {rate:g}"] + losses[f"bn {rate:g}"] for rate in PER_64}
    chosen = min(PER_64, key=lambda rate: sums[rate])
    findings.settings["learning rate per 64 samples"] = chosen
    findings.settings["training losses of vanilla and bn after 10 epochs, summed, by rate"] = {
        f"{rate:g}": value for rate, value in sums.items()
    }
    return Lab(context, data, dataset.classes, len(dataset.train), chosen)


def enter_losses(findings: Findings, trained: Mapping[str, TrainedCase], chance: float) -> None:
    """Enter the lowest test loss and the best accuracy along each run, and the lines of both losses."""
    for name, case in trained.items():
        for seed, history in case.runs.items():
            lowest, best = lowest_and_best(history, chance)
            findings.number("lowest vloss", name, lowest, seed=seed, unit="loss")
            findings.number("best acc", name, best, seed=seed, unit="points")
        enter_loss_curves(findings, name, list(case.runs.values()))


def enter_ends(findings: Findings, trained: Mapping[str, TrainedCase], classes: int, suffix: str = "") -> None:
    """Enter the numbers of runs without the lines of figures."""
    findings.chance = 100 / classes
    for name, case in trained.items():
        for seed, history in case.runs.items():
            findings.run(name, seed, run_numbers(history, 1 / classes), suffix)


def lowest_and_best(history: History, chance: float) -> tuple[float, float]:
    """The lowest test loss along a run, and the best accuracy in points; of one that diverged, those of guessing."""
    if diverged(history):
        return float("inf"), 100 * chance
    accuracies = [event.accuracy for event in history.evaluated if event.accuracy is not None]
    return min(event.loss for event in history.evaluated), 100 * max(accuracies)


def enter_loss_curves(findings: Findings, line: str, runs: Sequence[History]) -> None:
    """Enter training and test loss over epochs: the mean over the seeds, and their range."""
    for panel, name in (("training loss", "train_loss"), ("test loss", "loss")):
        by_epoch: dict[float, list[float]] = {}
        for history in runs:
            for event in history.evaluated:
                if (value := getattr(event, name)) is not None:
                    by_epoch.setdefault(round(event.epoch, 3), []).append(value)
        points = [(epoch, fmean(several), min(several), max(several)) for epoch, several in sorted(by_epoch.items())]
        findings.curve(panel, line, points)


def enter_gaps_at_equal_loss(
    findings: Findings, trained: Mapping[str, TrainedCase], measure: str = "gap at equal loss"
) -> None:
    """Enter each run's gap where its training loss comes down to the lowest that all of them reach.

    A run whose first evaluation is below that has its gap there; one that diverged has an infinite one.
    """
    runs = [history for case in trained.values() for history in case.runs.values() if not diverged(history)]
    if not runs:
        return
    level = max(min(event.train_loss or 0.0 for event in history.evaluated) for history in runs)
    findings.settings[measure.replace("gap at", "level of")] = level
    for name, case in trained.items():
        for seed, history in case.runs.items():
            gap = float("inf")
            if not diverged(history):
                found, first = gap_at(history, level), history.evaluated[0]
                gap = first.loss - (first.train_loss or 0.0) if found is None else found
            findings.number(measure, name, gap, seed=seed, unit="loss")


def enter_best(
    findings: Findings,
    measures: Sequence[str],
    trained: Mapping[str, TrainedCase],
    among: Sequence[str],
    name: str,
    chance: float,
    suffix: str = "",
) -> str:
    """Enter the runs of that of some cases which has the best mean accuracy at the end, under a name of their own."""
    means = {
        case: fmean(run_numbers(history, chance).acc or 0.0 for history in trained[case].runs.values())
        for case in among
    }
    best = max(means, key=lambda case: means[case])
    for seed, history in trained[best].runs.items():
        numbers = run_numbers(history, chance)
        for measure in measures:
            unit = "points" if measure == "acc" else "loss"
            findings.number(measure + suffix, name, getattr(numbers, measure), seed=seed, unit=unit)  # type: ignore[arg-type]
    findings.settings[f"best of {name}{suffix}"] = best
    return best


def diverged(history: History) -> bool:
    """Whether a run has diverged."""
    return history.ended is not None and history.ended.verdict == "diverged"
