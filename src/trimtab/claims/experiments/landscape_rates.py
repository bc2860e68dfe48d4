"""landscape, Sec. 3 and App. A: many learning rates, and scales of the first weights."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from trimtab.claims import probed_findings as enter
from trimtab.claims import probed_runs as measures
from trimtab.claims.experiments.landscape_setup import METHODS, setup
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import enter_runs, train_cases

PRINTED = {"vgg": 0.1, "dln": 1e-6}
RATES: dict[str, tuple[float, ...]] = {
    "vgg": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "dln": (3e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5),
}
"""A factor of three apart, the printed ones in the middle."""
NEAR_THE_PRINTED = slice(1, 6)
LARGER = {"bn": (0.5,), "vanilla": (0.4, 0.5, 0.8)}
"""Others that claims on the VGG are about."""
SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)
POINTS = 5.0
"""An accuracy is near the best if it is within so many points."""
LENGTHS = {"small": (300, 2000), "gpu": (4000, 10_000), "paper": (15_000, 10_000)}
"""Steps of the VGG and of the deep linear network."""


def case_of(method: str, lr: float) -> str:
    """The name of a case."""
    return f"{method}-{lr:g}"


@experiment(
    "landscape-rates",
    "VGG-like and deep linear network at many rates",
    small=6,
    second_pass=True,
    gpu=25,
    needs=("cifar10",),
)
def rates(findings: Findings, context: Context) -> None:
    """Which rates train, and which train best."""
    steps, linear_steps = LENGTHS[context.size]
    seeds = context.seeds(3 if context.size == "paper" else 2)
    cases = {
        case_of(method, lr): {"method": method, "lr": lr}
        for method in METHODS
        for lr in sorted({*RATES["vgg"], *LARGER[method]})
    }
    trained = train_cases(context, cases, setup(findings, context, steps, evaluations=1), seeds)
    enter_runs(findings, trained, 10)
    runs = enter.runs_of(trained)
    for case, by_seed in runs.items():
        for seed, run in by_seed.items():
            points = measures.training_accuracy(run)
            reached = points[-1][1] if points and not measures.diverged(run) else 10.0
            findings.number("training accuracy", case, reached, seed=seed, unit="points")
            findings.number("diverged", case, float(measures.diverged(run)), seed=seed)
    for method in METHODS:
        for seed in seeds:
            accuracies = {lr: findings.numbers["acc"][case_of(method, lr)][str(seed)] for lr in RATES["vgg"]}
            near = near_the_best(accuracies)
            findings.number("rates near the best", method, len(near), seed=seed, unit="factor")
            findings.number("largest rate near the best", method, max(near), seed=seed, unit="factor")
    enter_losses(findings, "vgg", runs)
    linear: dict[str, Any] = {"data": "gaussian", "network": "dln25", "steps": linear_steps, "evaluations": 1}
    cases = {case_of(m, lr): {"method": m, "lr": lr} for m in METHODS for lr in RATES["dln"]}
    enter_losses(findings, "dln", enter.runs_of(train_cases(context, cases, linear, seeds)))
    findings.settings["steps of the deep linear network"] = linear_steps
    del findings.curves["accuracy"]  # of one point each


def near_the_best(accuracies: Mapping[float, float]) -> list[float]:
    """The rates whose accuracy is near the best one."""
    best = max(accuracies.values())
    return [lr for lr, accuracy in accuracies.items() if accuracy >= best - POINTS]


def decades_near_the_best(losses: Mapping[float, float]) -> float:
    """How many decades of rates, a factor of three apart, reach a loss of at most twice the best one."""
    best = min(losses.values())
    if not math.isfinite(best):
        return 0.0
    return sum(loss <= 2 * best for loss in losses.values()) * math.log10(3)


def steps_from(printed: float, rates: Sequence[float], losses: Mapping[float, float]) -> float:
    """How many factors of three the rate of the least loss is away from the printed one."""
    best = min(rates, key=lambda lr: losses[lr])
    return abs(rates.index(best) - rates.index(printed)) if math.isfinite(losses[best]) else math.inf


def enter_losses(findings: Findings, network: str, runs: enter.Runs) -> None:
    """Enter the training losses at the end, and what they say of the printed rate and of the range of rates."""
    grid = RATES[network]
    for method in METHODS:
        found = {lr: _final(runs[case_of(method, lr)]) for lr in grid}
        seeds = set[int]().union(*(each for each in found.values()))
        case = f"{network}-{method}"
        for seed in sorted(seeds):
            decades = decades_near_the_best({lr: each[seed] for lr, each in found.items()})
            findings.number("decades of rates near the best loss", case, decades, seed=seed, unit="factor")
            away = steps_from(PRINTED[network], grid[NEAR_THE_PRINTED], {lr: each[seed] for lr, each in found.items()})
            findings.number("factors of three from the printed rate", case, away, seed=seed, unit="factor")
        means = {lr: fmean(each.values()) for lr, each in found.items()}
        lines = [[lr, means[lr], min(each.values()), max(each.values())] for lr, each in found.items()]
        findings.curve(f"training loss by rate, {network}", method, lines)


def _final(runs: Mapping[int, Any]) -> dict[int, float]:
    return {seed: measures.final_training_loss(run) for seed, run in runs.items()}


@experiment(
    "landscape-init",
    "VGG-like network with larger and smaller first weights",
    small=2.6,
    gpu=15,
    paper=40,
    needs=("cifar10",),
)
def init(findings: Findings, context: Context) -> None:
    """Sec. 3.1: how much accuracy depends on the scale of the initial weights."""
    seeds = context.seeds(3 if context.size == "paper" else 2)
    cases = {f"{m}-{scale:g}": {"method": m, "init_scale": scale} for m in METHODS for scale in SCALES}
    steps = LENGTHS[context.size][0]
    trained = train_cases(context, cases, setup(findings, context, steps, evaluations=1), seeds)
    enter_runs(findings, trained, 10)
    del findings.curves["accuracy"]
    for method in METHODS:
        for seed in seeds:
            several = [findings.numbers["acc"][f"{method}-{scale:g}"][str(seed)] for scale in SCALES]
            findings.number("spread of accuracy", method, max(several) - min(several), seed=seed, unit="points")
