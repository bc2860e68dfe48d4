"""landscape, Figs. 3, 5, 9, 10, 12 and 13: the deep linear network, and ℓp normalization in both networks."""

import math
from statistics import median
from typing import Any

from trimtab.claims import probed_findings as enter
from trimtab.claims import probed_runs as measures
from trimtab.claims.experiments.landscape_setup import METHODS, of_methods, setup
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import enter_runs, train_cases
from trimtab.records import History

LP = ("l1", "l2", "linf")
LINEAR: dict[str, Any] = {"data": "gaussian", "network": "dln25", "steps": 10_000, "evaluations": 20}
"""25 layers of 10×10, 1,000 samples, full batch, loss summed over samples, at the paper's rate of 1e-6."""


@experiment("dln25", "Deep linear network of 25 layers, probed along the way", small=1.6, seeds=(2, 3), paper=8)
def dln25(findings: Findings, context: Context) -> None:
    """Without normalization and with BatchNorm."""
    shared = {**LINEAR, "probe": ("landscape", "shift", "activations"), "probe_every": 250}
    findings.settings |= shared
    enter_linear(findings, enter.runs_of(train_cases(context, of_methods(*METHODS), shared, context.seeds(3))))


def enter_linear(findings: Findings, runs: enter.Runs) -> None:
    """Enter all that the claims on the deep linear network need."""
    enter.enter_training(findings, runs)
    enter.enter_line(findings, runs)
    enter.enter_edges(findings, runs)
    for case, by_seed in runs.items():
        for seed, run in by_seed.items():
            for words, part in measures.THIRDS.items():
                least = min(measures.cosines(run, part).values(), default=math.nan)
                if not math.isnan(least):
                    findings.number(f"least median cosine, {words}", case, least, seed=seed, unit="factor")
            found = measures.cosines(run)
            share = measures.share_of_layers(lambda cosine: abs(cosine) <= 0.2, found)
            if not math.isnan(share):
                findings.number("share of uncorrelated layers", case, share, seed=seed, unit="factor")
            findings.number("largest over smallest deviation", case, deviations(run), seed=seed, unit="factor")
            findings.number("fall over the last fifth", case, last_fall(run), seed=seed, unit="factor")
    enter.enter_band(findings, runs)
    enter.enter_cosines(findings, runs)


def deviations(run: History) -> float:
    """The largest deviation of a layer's activations over the smallest, over layers and steps."""
    found = [
        math.sqrt(layer["variance"]) for _, result in measures.results(run, "activations") for layer in result["layers"]
    ]
    return measures.advantage(max(found), min(found))


def last_fall(run: History) -> float:
    """By which share of itself the training loss falls over the last fifth of the steps; infinite if it diverges."""
    points = measures.training_loss(run)
    if measures.diverged(run) or not points:
        return math.inf
    return 1 - points[-1][1] / measures.value_at(points, 0.8 * measures.steps_of(run))


@experiment("lp-dln25", "ℓp normalization in the deep linear network", small=5, paper=10)
def lp_dln25(findings: Findings, context: Context) -> None:
    """Fig. 13."""
    shared = {**LINEAR, "probe": ("landscape", "activations"), "probe_every": 500}
    findings.settings |= shared
    runs = enter.runs_of(train_cases(context, of_methods(*METHODS, *LP), shared, context.seeds(2)))
    enter.enter_training(findings, runs)
    enter.enter_line(findings, runs)
    enter.enter_edges(findings, runs)
    enter.enter_band(findings, runs)


@experiment("lp-vgg", "ℓp normalization in the VGG-like network", small=9.5, gpu=20, paper=30, needs=("cifar10",))
def lp_vgg(findings: Findings, context: Context) -> None:
    """Figs. 5, 6 and 12."""
    every = 40 if context.size == "small" else 200
    shared = setup(findings, context, probe=("landscape", "activations"), probe_every=every)
    trained = train_cases(
        context, of_methods(*METHODS, *LP), shared, context.seeds(3 if context.size == "paper" else 2)
    )
    enter_runs(findings, trained, 10)
    enter_normed(findings, enter.runs_of(trained))


def enter_normed(findings: Findings, runs: enter.Runs) -> None:
    """Enter the landscape, stability and shape of activations under each norm."""
    enter.enter_training(findings, runs)
    enter.enter_line(findings, runs)
    enter.enter_edges(findings, runs)
    less_stable = enter.both_stabilities(lambda a, b: a >= 1.5 * b)
    for case in LP:
        enter.enter_share(findings, runs, "share of layers less stable", case, less_stable)
        for seed, run, bn in enter.pairs(runs, case, "bn"):
            ratio = measures.advantage(*(findings.numbers["β"][each][str(seed)] for each in (case, "bn")))
            findings.number("β over bn's", case, ratio, seed=seed, unit="factor")
            for words, examples in (("shape over bn's", True), ("shape of whole layers over bn's", False)):
                pairs = zip(shape(run, examples), shape(bn, examples), strict=True)
                largest = max(measures.advantage(a, b) for a, b in pairs)
                findings.number(words, case, largest, seed=seed, unit="factor")
    enter.enter_band(findings, runs)


def shape(run: History, examples: bool) -> tuple[float, float]:
    """The medians of abs(skewness) and abs(excess kurtosis) of activations over layers and steps.

    Args:
        run: The run.
        examples: Whether of example activations; else of all activations of a layer together.
    """
    layers = [layer for _, result in measures.results(run, "activations") for layer in result["layers"]]
    found = [one for layer in layers for one in (layer["examples"] if examples else [layer])]
    skewness, kurtosis = (
        [abs(one[name]) for one in found if not math.isnan(one[name])] for name in ("skewness", "kurtosis")
    )
    return median(skewness) if skewness else math.nan, median(kurtosis) if kurtosis else math.nan
