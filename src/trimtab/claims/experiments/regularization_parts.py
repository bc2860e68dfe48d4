"""regularization, Fig. 4: BatchNorm, its parts and weight normalization in a convolutional network."""

import math
from collections.abc import Mapping

from trimtab.claims.experiments.regcnn import (
    PER_64,
    diverged,
    enter_ends,
    enter_gaps_at_equal_loss,
    enter_losses,
    lab,
)
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import TrainedCase, enter_runs
from trimtab.records import History

METHODS = ("vanilla", "bn", "wn", "wn+mean-bn", "wn+var-bn")
PARTS = ("bn", "wn+mean-bn", "wn+var-bn")
SIZES = {"small": (30, 3), "gpu": (40, 1), "paper": (100, 3)}
"""Epochs and seeds."""
ENOUGH = 0.9
"""The training accuracy that steps are counted to."""


@experiment(
    "regcnn-parts",
    "CNN with BN, its parts and WN",
    small=3.1,
    seeds=(2, 3),
    gpu=12,
    paper=115,
    needs={"gpu": ("cifar10",), "paper": ("cifar10",)},
)
def parts(findings: Findings, context: Context) -> None:
    """Fig. 4."""
    (epochs, seeds), common = SIZES[context.size], lab(findings, context)
    cases = {method: {"method": method} for method in METHODS}
    shared = common.shared(epochs)
    trained = common.train(cases, shared, context.seeds(seeds))
    enter_runs(findings, trained, common.classes)
    enter_losses(findings, trained, 1 / common.classes)
    enter_gaps_at_equal_loss(findings, trained)
    enter_steps(findings, {name: trained[name] for name in PARTS}, 1 / common.classes)
    findings.settings |= shared
    if context.size == "gpu":  # where one seed of all methods fills the time
        return
    for rate in PER_64:
        if rate != common.rate:
            beside = common.train(cases, {**shared, "lr": rate}, context.seeds(1))
            enter_ends(findings, beside, common.classes, f" at rate {rate:g}")


def enter_steps(findings: Findings, trained: Mapping[str, TrainedCase], chance: float) -> None:
    """Enter after how many steps runs have a training accuracy of 90 %, or what the slowest of them reaches."""
    runs = [history for case in trained.values() for history in case.runs.values() if not diverged(history)]
    level = min([ENOUGH, *(max(event.train_accuracy or 0.0 for event in history.evaluated) for history in runs)])
    findings.settings["training accuracy that steps are counted to"] = level
    for name, case in trained.items():
        for seed, history in case.runs.items():
            steps = math.inf if diverged(history) else steps_to(history, level, chance)
            findings.number("steps to 90 % training accuracy", name, steps, seed=seed, unit="time")


def steps_to(history: History, accuracy: float, chance: float) -> float:
    """The steps after which the training accuracy is so high: on straight lines between evaluations, from guessing on.

    Infinite if it does not get there.
    """
    before, low = 0, min(chance, accuracy)
    for event in history.evaluated:
        high = event.train_accuracy or 0.0
        if high >= accuracy:
            return before + (event.step - before) * (accuracy - low) / (high - low) if high > low else before
        before, low = event.step, high
    return math.inf
