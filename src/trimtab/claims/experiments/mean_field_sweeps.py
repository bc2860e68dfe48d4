"""meanfield, Figs. 2 and 3: which learning rates explode, over γ and over σ_w²."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.claims.experiments.mean_field_slices import Slice, explore, mean_loss
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.experiments.regularization_gamma import rank_correlation
from trimtab.claims.findings import Findings
from trimtab.data import load

NEAR = 0.3
"""Decades within which η_c agrees with η*."""
GAMMAS = {
    "small": (0.1, 0.17, 0.3, 0.5, 1.0, 1.7, 3.0),
    "gpu": (0.1, 0.17, 0.3, 0.5, 0.75, 1.0, 1.7, 3.0),
    "paper": (0.1, 0.14, 0.19, 0.26, 0.36, 0.5, 0.7, 1.0, 1.3, 1.7, 2.3, 3.0),
}
SIGMAS = {
    "small": (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
    "gpu": (0.5, 0.7, 1.0, 1.4, 1.7, 2.0, 2.8, 4.0),
    "paper": (0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8, 4.0),
}
RATES = {"small": 9, "gpu": 10, "paper": 17}
RESTARTS = {"small": 2, "gpu": 2, "paper": 5}
SHORT_STEPS = {"mf-mlp": 200, "mf-conv": 100}
EPOCHS = 5
MNIST = ("mnist",)
CIFAR = ("cifar10",)


@dataclass(frozen=True, slots=True)
class Map:
    """A heat map: its slices, and one of networks without BatchNorm."""

    slices: tuple[Slice, ...]
    vanilla: Slice


def length(size: str, network: str) -> dict[str, int]:
    """How long networks are trained."""
    return {"steps": SHORT_STEPS[network]} if size == "small" else {"epochs": EPOCHS}


def panel(findings: Findings, context: Context, data: str, network: str) -> None:
    """One panel of Fig. 2 with the squared error, and what stands beside it: vanilla networks, cross-entropy."""
    size = context.size
    common: dict[str, Any] = {"data": data, "network": network, "loss": "squared", **length(size, network)}
    how: dict[str, Any] = {"rates": RATES[size], "restarts": RESTARTS[size]}
    found = Map(
        tuple(explore(context, {**common, "method": "bn"}, "gamma", gamma, **how) for gamma in GAMMAS[size]),
        explore(context, {**common, "method": "vanilla"}, "sigma_w2", 2.0, **how),
    )
    enter_map(findings, found, context.seeds(RESTARTS[size]))
    if size != "small":
        other = {**common, "method": "bn", "loss": "cross_entropy"}
        slices = [explore(context, other, "gamma", gamma, widen=False, **how) for gamma in GAMMAS[size]]
        enter_agreement(findings, slices, "γ", " with cross-entropy")
    findings.settings |= {**common, "γ": GAMMAS[size], **how}
    findings.notes.append(
        "Rates are those around the η* with the gradient through the statistics, and more until the boundary is among "
        "them. The share for that η* is the case train."
    )
    beside = "it was not trained at this size" if size == "small" else "its numbers stand beside, named so"
    findings.notes.append(f"The squared error is judged. Cross-entropy: {beside}.")


def enter_map(findings: Findings, found: Map, seeds: Sequence[int]) -> None:
    """Enter what a heat map over γ shows."""
    slices = found.slices
    share = sum(one.monotone for one in slices) / len(slices)
    findings.number("share of γ with monotone convergence", "all", share)
    enter_agreement(findings, slices, "γ")
    for theory in ("paper", "exact", "train"):
        near = [one.best is not None and 0.5 <= one.best[0] / (one.predicted[theory] / 2) <= 2 for one in slices]
        findings.number("share of γ whose best rate is near η*/2", theory, sum(near) / len(near))
    for seed in seeds:
        losses = [one.lowest_loss(seed) for one in slices]
        value = rank_correlation([one.value for one in slices], losses)
        findings.number("rank correlation of γ and test loss", "all", value, seed=seed, unit="factor")
    at = {one.value: one for one in slices}
    for case, one in (("bn", at[1.0]), ("vanilla", found.vanilla)):
        # If no rate explodes, the smallest that does is larger than all: a claim is judged by that, not left out.
        findings.number("η_c", case, math.inf if one.boundary is None else one.boundary)
    for case, one in (("bn", at[0.5]), ("vanilla", found.vanilla)):
        for seed in seeds:
            restarts = one.best[1] if one.best is not None else ()
            loss = next((each.loss for each in restarts if each.seed == seed), None)
            findings.number("lowest test loss", case, math.inf if loss is None else loss, seed=seed, unit="loss")


def enter_agreement(findings: Findings, slices: Sequence[Slice], name: str, suffix: str = "") -> None:
    """Enter how near the boundary is to each η*, and the lines of the figure."""
    import numpy as np

    boundaries = [one.boundary for one in slices]
    logs = np.array([math.nan if rate is None else math.log10(rate) for rate in boundaries])
    there = np.isfinite(logs)
    if there.any():
        findings.number(f"decades of η_c{suffix}", "all", float(np.ptp(logs[there])))
    for theory in slices[0].predicted:
        predicted = np.log10([one.predicted[theory] for one in slices])
        near = np.abs(logs - predicted) <= NEAR
        findings.number(f"share of {name} within 0.3 decades of η*{suffix}", theory, float(near.mean()))
        correlation = float(np.corrcoef(logs[there], predicted[there])[0, 1]) if there.sum() > 2 else 0.0
        findings.number(f"correlation of log η_c and log η*{suffix}", theory, correlation)
        findings.curve(f"η over {name}{suffix}", f"η* {theory}", [(one.value, one.predicted[theory]) for one in slices])
    drawn = [(one.value, one.boundary) for one in slices if one.boundary is not None]
    findings.curve(f"η over {name}{suffix}", "η_c", drawn)
    best = [(one.value, one.best[0]) for one in slices if one.best is not None]
    findings.curve(f"η over {name}{suffix}", "best rate", best)
    for one in slices:
        points = [(rate, loss) for rate, cells in one.cells.items() if math.isfinite(loss := mean_loss(cells))]
        findings.curve(f"test loss over η{suffix}", f"{name} = {one.value:g}", points)
    if not there.all():
        findings.notes.append(f"No rate that was tried explodes at {int((~there).sum())} values of {name}{suffix}.")


@experiment("sweep-mnist-dense", "η and γ, MNIST, dense", small=9, gpu=10, paper=40, needs=MNIST)
def mnist_dense(findings: Findings, context: Context) -> None:
    """Fig. 2."""
    panel(findings, context, "mnist", "mf-mlp")


@experiment("sweep-mnist-conv", "η and γ, MNIST, convolutions", small=3.5, gpu=10, paper=60, needs=MNIST)
def mnist_conv(findings: Findings, context: Context) -> None:
    """Fig. 2."""
    panel(findings, context, "mnist", "mf-conv")


@experiment(
    "sweep-cifar10-dense", "η and γ, CIFAR-10, dense", small=12, second_pass=True, gpu=10, paper=60, needs=CIFAR
)
def cifar10_dense(findings: Findings, context: Context) -> None:
    """Fig. 2."""
    panel(findings, context, "cifar10", "mf-mlp")


@experiment(
    "sweep-cifar10-conv", "η and γ, CIFAR-10, convolutions", small=6, second_pass=True, gpu=10, paper=80, needs=CIFAR
)
def cifar10_conv(findings: Findings, context: Context) -> None:
    """Fig. 2."""
    panel(findings, context, "cifar10", "mf-conv")


@experiment("sweep-sigma-w", "η and σ_w², MNIST, dense, vanilla", small=5, gpu=5, paper=20, needs=MNIST)
def sigma_w(findings: Findings, context: Context) -> None:
    """Fig. 3."""
    size = context.size
    common = {"data": "mnist", "network": "mf-mlp", "method": "vanilla", "loss": "squared", **length(size, "mf-mlp")}
    how: dict[str, Any] = {"rates": RATES[size], "restarts": RESTARTS[size]}
    slices = [explore(context, common, "sigma_w2", value, **how) for value in SIGMAS[size]]
    enter_agreement(findings, slices, "σ_w²")
    findings.settings |= {**common, "σ_w²": SIGMAS[size], **how}


@experiment("sweep-momentum", "η_c with and without momentum, MNIST, dense", small=4, gpu=5, paper=15, needs=MNIST)
def momentum(findings: Findings, context: Context) -> None:
    """Sec. 4, eq. 7."""
    size = context.size
    common = {"data": "mnist", "network": "mf-mlp", "method": "bn", "loss": "squared", **length(size, "mf-mlp")}
    how: dict[str, Any] = {"rates": RATES[size], "restarts": RESTARTS[size]}
    for gamma in (0.5, 1.0, 2.0):
        found = {mu: explore(context, {**common, "momentum": mu}, "gamma", gamma, **how) for mu in (0.9, 0.0)}
        for mu, one in found.items():
            if one.boundary is not None:
                findings.number("η_c", f"γ={gamma:g}/μ={mu:g}", one.boundary)
        top, bottom = found[0.9].boundary, found[0.0].boundary
        value = math.inf if top is None or bottom is None else top / bottom
        findings.number("η_c with momentum over that without", f"γ={gamma:g}", value)
    findings.settings |= {**common, **how}


@experiment("sweep-full-batch", "η_c of vanilla networks, full batch", small=1.8, gpu=2, paper=20, needs=MNIST)
def full_batch(findings: Findings, context: Context) -> None:
    """Sec. 2.1, Karakida et al.: three dense layers on all samples at once, of which there are few at size small."""
    samples = {"small": 1000, "gpu": 10_000, "paper": 50_000}[context.size]
    steps = {"small": 50, "gpu": 200, "paper": 500}[context.size]
    left_out = len(load("mnist", context.data_root).train) - samples
    common = {"data": "mnist", "network": "mf-mlp", "method": "vanilla", "depth": 3, "loss": "squared", "momentum": 0.0}
    common |= {"batch_size": 0, "validation": left_out, "evaluate_on": "test", "steps": steps}
    one = explore(context, common, "sigma_w2", 2.0, rates=13, restarts=RESTARTS[context.size], step=0.0625)
    for theory, rate in one.predicted.items():
        findings.number("η_c over η*", theory, math.inf if one.boundary is None else one.boundary / rate)
    points = [(rate, loss) for rate, cells in one.cells.items() if math.isfinite(loss := mean_loss(cells))]
    findings.curve("test loss over η", "vanilla", points)
    findings.settings |= {**common, "samples": samples}
    findings.notes.append(f"The full batch is {samples} samples of MNIST, and rates are a 16th of a decade apart.")
