"""What the bnp paper reports of others' work, by training runs."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from trimtab.claims.experiments.landscape_setup import CNN, NEIGHBOUR, STEPS
from trimtab.claims.experiments.regcnn import diverged, enter_ends
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import EVALUATIONS, TrainedCase, enter_runs, train_cases
from trimtab.data import load
from trimtab.records import History, run_numbers

CIFAR = ("cifar10",)
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
GOOD = 5.0
"""Points below the best accuracy within which a rate is good."""


def vgg(findings: Findings, size: str) -> dict[str, Any]:
    """The VGG-like network of the landscape paper, or at size small the neighbour that its own claims have."""
    common: dict[str, Any] = {"data": "cifar10", "batch_size": 128, "optimizer": "sgd"}
    if size != "small":
        return {**common, "network": "vgg", "steps": 15_000 if size == "paper" else 4000}
    findings.neighbour = NEIGHBOUR
    return {**common, **CNN, "steps": STEPS["small"]}


def enter_good_rates(
    findings: Findings, context: Context, shared: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int]
) -> None:
    """Train methods at all rates, and enter which rates are good: how many, and the largest."""
    cases = {f"{method}/{rate:g}": {"method": method, "lr": rate} for method in methods for rate in RATES}
    trained = train_cases(context, cases, {**shared, "evaluations": 1, "train_subset": 0}, seeds)
    classes = load(shared["data"], context.data_root).classes
    for method in methods:
        points = []
        for seed in seeds:
            accuracies = {}
            for rate in RATES:
                case = trained[f"{method}/{rate:g}"]
                guessed = 100 / classes
                numbers = None if case.refused else run_numbers(case.runs[seed], 1 / classes)
                accuracies[rate] = guessed if numbers is None or numbers.acc is None else numbers.acc
            good = good_rates(accuracies)
            findings.number("number of good rates", method, len(good), seed=seed, unit="factor")
            findings.number("largest good rate", method, good[-1], seed=seed, unit="factor")
            points.append(accuracies)
        line = [(rate, *_spread([each[rate] for each in points])) for rate in RATES]
        findings.curve("accuracy over the learning rate", method, line)
    findings.settings |= {**shared, "rates": RATES, "points below the best": GOOD}


def good_rates(accuracies: Mapping[float, float]) -> list[float]:
    """The rates with an accuracy within five points of the best, rising."""
    best = max(accuracies.values())
    return sorted(rate for rate, accuracy in accuracies.items() if accuracy >= best - GOOD)


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2, ordered[0], ordered[-1]


@experiment(
    "cited-rates-cnn5",
    "Learning rates of cnn5 with and without BN",
    small=10,
    second_pass=True,
    gpu=10,
    paper=60,
    needs=CIFAR,
)
def rates_cnn5(findings: Findings, context: Context) -> None:
    """Bjorck et al. in the 5-layer CNN; SGD for both, since rates are compared."""
    epochs, seeds = {"small": (2, 2), "gpu": (20, 1), "paper": (20, 3)}[context.size]
    shared = {"data": "cifar10", "network": "cnn5", "batch_size": 128, "optimizer": "sgd", "epochs": epochs}
    enter_good_rates(findings, context, shared, ("vanilla", "bn"), context.seeds(seeds))


@experiment(
    "cited-rates-vgg",
    "Learning rates of a VGG with BN, GN and BNP",
    small=15,
    second_pass=True,
    gpu=20,
    paper=200,
    needs=CIFAR,
)
def rates_vgg(findings: Findings, context: Context) -> None:
    """Bjorck et al. and Arora et al. in the VGG-like network."""
    seeds = context.seeds({"small": 2, "gpu": 1, "paper": 3}[context.size])
    enter_good_rates(findings, context, vgg(findings, context.size), ("vanilla", "bn", "gn", "bnp"), seeds)


@experiment(
    "cited-affine",
    "Trained γ and β in Preact-ResNet-18",
    small=2.6,
    seeds=(2, 3),
    gpu=12,
    paper=36,
    needs={"small": (), "gpu": CIFAR, "paper": CIFAR},
)
def affine(findings: Findings, context: Context) -> None:
    """Frankle et al."""
    cases: dict[str, dict[str, Any]] = {
        "trained": {"method": "bn"},
        "fixed": {"method": "bn", "fixed_gamma": True, "fixed_beta": True},
    }
    shared: dict[str, Any] = {"data": "cifar10", "network": "preact18", "epochs": 20, "evaluations": EVALUATIONS}
    if context.size == "small":
        findings.neighbour = "digits instead of CIFAR-10"
        shared |= {"data": "digits", "augment": False}  # cropped or flipped, an 8×8 digit may be another one
    if context.device.type == "cuda":
        shared |= {"precision": "bf16", "compile": True}
    trained = train_cases(context, cases, shared, context.seeds(1 if context.size == "gpu" else 3))
    enter_runs(findings, trained, load(shared["data"], context.data_root).classes)
    enter_differences(findings)
    findings.settings |= shared


def enter_differences(findings: Findings) -> None:
    """Enter by how much accuracy is better with trained γ and β."""
    accuracies = findings.numbers["acc"]
    for seed, value in accuracies["trained"].items():
        difference = value - accuracies["fixed"][seed]
        findings.number("difference of acc", "trained", difference, seed=seed, unit="points")


@experiment(
    "cited-small-batch", "BN with 4 Things at batch size 2", small=3.1, seeds=(2, 3), gpu=15, paper=30, needs=CIFAR
)
def small_batch(findings: Findings, context: Context) -> None:
    """Summers and Dinneen in the 5-layer CNN."""
    size = context.size
    shared: dict[str, Any] = {"data": "cifar10", "network": "cnn5", "batch_size": 2, "evaluations": EVALUATIONS}
    shared |= {"train_subset": 0}
    shared |= {"steps": 8000} if size == "small" else {"epochs": 3 if size == "gpu" else 20}
    cases = {method: {"method": method} for method in ("bn", "bn4")}
    rates, seeds = (1, 3) if size == "small" else (3, 5)
    trained = train_cases(context, cases, shared, context.seeds(seeds), rates=rates)
    enter_runs(findings, trained, load("cifar10", context.data_root).classes)
    findings.settings |= {**shared, "rates": rates}


@experiment(
    "cited-robustness",
    "One-step sign perturbations with and without BN",
    small=3.6,
    seeds=(2, 3),
    gpu=8,
    paper=25,
    needs=CIFAR,
)
def robustness(findings: Findings, context: Context) -> None:
    """Galloway et al. in the VGG-like network: where runs have the same accuracy on what is not perturbed."""
    shared = vgg(findings, context.size)
    looks, seeds = 20, context.seeds({"small": 3, "gpu": 1, "paper": 3}[context.size])
    at = tuple(round((number + 1) * shared["steps"] / looks) - 1 for number in range(looks))
    shared |= {"evaluations": EVALUATIONS, "train_subset": 0, "lr": 0.1, "probe": ("robustness",), "probe_at": at}
    cases = {method: {"method": method} for method in ("vanilla", "bn")}
    trained = train_cases(context, cases, shared, seeds)
    enter_ends(findings, trained, load("cifar10", context.data_root).classes)
    enter_robustness(findings, trained, seeds)
    findings.settings |= shared


def enter_robustness(findings: Findings, trained: Mapping[str, TrainedCase], seeds: Sequence[int]) -> None:
    """Enter accuracies under perturbations at the best clean accuracy that all runs with a seed have."""
    for seed in seeds:
        lines = {name: clean_and_perturbed(case.runs[seed]) for name, case in trained.items()}
        if any(diverged(case.runs[seed]) for case in trained.values()) or not all(lines.values()):
            findings.notes.append(f"A run with seed {seed} diverged; nothing is compared there.")
            continue
        level = min(max(clean for clean, *_ in line) for line in lines.values())
        for name, line in lines.items():
            for number, eps in ((1, "2/255"), (2, "4/255")):
                value = at_level([(point[0], point[number]) for point in line], level)
                measure = f"accuracy under {eps} at equal clean accuracy"
                findings.number(measure, name, 100 * value, seed=seed, unit="points")
            findings.number("clean accuracy that is compared at", name, 100 * level, seed=seed, unit="points")


def clean_and_perturbed(history: History) -> list[tuple[float, float, float]]:
    """Along a run: accuracy, and that under each of the two perturbations."""
    found = [
        event.result for event in history.probed if event.probe == "robustness" and not event.result.get("problem")
    ]
    return [(one["accuracy"], *one["accuracies"]) for one in found]


def at_level(points: Sequence[tuple[float, float]], level: float) -> float:
    """The second number where the first one first comes up to a level, on straight lines between the points.

    >>> at_level([(0.2, 0.1), (0.6, 0.3)], 0.4)
    0.2
    """
    if points[0][0] >= level:
        return points[0][1]
    for (before, low), (after, high) in pairwise(points):
        if after >= level > before:
            return low + (high - low) * (level - before) / (after - before)
    return math.nan
