"""meanfield, Fig. 1 and Claim 3.1: λ_max over γ, by the printed theory, by the exact one and of drawn networks."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from torch import nn

from trimtab.claims.experiments.meanfield_networks import (
    DRAWS,
    PAPERS,
    SIGMAS,
    Drawn,
    drawn_network,
    freeze_statistics,
)
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.probes import fisher_lambda_max
from trimtab.theory.mean_field import Dense, mean_field

GAMMAS = (0.1, 0.3, 0.5, 1.0, 2.0, 2.5, 3.0, 4.0)
BIAS_GAMMAS = (0.1, 0.5, 1.0, 3.0)
BIAS_SAMPLES = {"dense": 2000, "conv": 256}
SIZES = (30, 100, 300, 1000)
MANY, DRAWS_OF_MANY = {"small": 4000, "paper": 8000}, {"small": 10, "paper": DRAWS}
"""Those of the paper would take longer at size small than its block has time."""
VANILLA = "vanilla"
EIGENVALUE = "largest eigenvalue"
FORMS: dict[str, dict[str, Any]] = {"printed": {"variant": "paper"}, "exact": {}}


@experiment("meanfield-dense", "λ_max over γ of the fully connected network, 20 draws", small=1.3, paper=4)
def dense(findings: Findings, context: Context) -> None:
    """Figs. 1a and 1b."""
    over_gamma(findings, context, "dense")


@experiment("meanfield-conv", "λ_max over γ of the convolutional network, 20 draws", small=0.5, paper=4)
def conv(findings: Findings, context: Context) -> None:
    """Figs. 1c and 1d."""
    over_gamma(findings, context, "conv")


@experiment("meanfield-finite-data", "λ_max over the number of samples", small=3, paper=10)
def finite_data(findings: Findings, context: Context) -> None:
    """Claim 6.1: how far a finite data set is from the limit of many samples."""
    seeds, many = context.seeds(DRAWS_OF_MANY[context.size]), MANY[context.size]
    found = {
        size: fmean(eigenvalue(PAPERS["dense"], 1.0, seed, samples=size, tolerance=1e-4) for seed in seeds)
        for size in (*SIZES, many)
    }
    limit = predicted(PAPERS["dense"], 1.0, bias_terms=True)
    for name, value in (("drawn", found[many]), ("mean-field", limit)):
        away = [abs(found[size] - value) for size in SIZES]
        findings.number("slope of the error over m", name, float(np.polyfit(np.log(SIZES), np.log(away), 1)[0]))
        findings.curve("difference to the limit of many samples", name, list(zip(SIZES, away, strict=True)))
    findings.settings |= {"gamma": 1.0, "draws": len(seeds), "seed": seeds[0], "sizes": [*SIZES, many], **SIGMAS}
    findings.notes.append(
        f"The limit is that of the same networks on {many} samples, {found[many]:.5g}; mean field's, {limit:.5g}, has "
        "the error of a finite width beside, and its slope stands beside."
    )
    if context.size == "small":
        findings.notes.append(f"{len(seeds)} draws, not {DRAWS}, and {many} samples: more would take too long.")


# ---- Over γ ----------------------------------------------------------------------------------------------------------


def over_gamma(findings: Findings, context: Context, name: str) -> None:
    """λ_max for each γ and without BatchNorm, and what the claims make of it."""
    drawn, seeds = PAPERS[name], context.seeds(DRAWS)
    for seed in seeds:
        for case, gamma in settings().items():
            findings.number(EIGENVALUE, f"drawn-{case}", eigenvalue(drawn, gamma, seed), seed=seed, unit="factor")
        context.show(f"draw {seed}")
    by_setting = {case: list(findings.numbers[EIGENVALUE][f"drawn-{case}"].values()) for case in settings()}
    means = {case: fmean(values) for case, values in by_setting.items()}
    enter_theory(findings, drawn, means)
    lines: dict[str, dict[str, Mapping[str, float]]] = {
        "drawn": {
            str(seed): {case: by_setting[case][number] for case in settings()} for number, seed in enumerate(seeds)
        }
    }
    for form in FORMS:
        lines[form] = {"all": {case: predicted(drawn, gamma, **FORMS[form]) for case, gamma in settings().items()}}
    for form, lines_of_seeds in lines.items():
        for seed_of, values in lines_of_seeds.items():
            enter_figure(findings, form, values, seed_of)
    enter_figure(findings, "means-of-draws", means, "all")
    for form, values in (("drawn", means), *((form, lines[form]["all"]) for form in FORMS)):
        points = [(gamma, values[case]) for case, gamma in settings().items() if gamma is not None]
        findings.curve("largest eigenvalue over γ", f"BN, {form}", points)
        findings.curve(
            "largest eigenvalue over γ", f"without BN, {form}", [(gamma, values[VANILLA]) for gamma, _ in points]
        )
        findings.curve(
            "largest learning rate over γ, momentum 0.9",
            f"BN, {form}",
            [(gamma, 3.8 / value) for gamma, value in points],
        )
    enter_bias_terms(findings, name, seeds)
    findings.settings |= {"draws": len(seeds), "seed": seeds[0], "samples": drawn.samples, "outputs": "one", **SIGMAS}
    findings.notes += [
        "Statistics of BatchNorm are frozen, as in the paper; λ_max of drawn networks is of all parameters. Figures "
        f"and Claim 3.1 at γ = {', '.join(f'{gamma:g}' for gamma in GAMMAS)} and without BatchNorm.",
        "Exact theory beside Claim 3.1 has the weights alone; beside λ_max it has biases, γ and β and the number of "
        "samples too.",
    ]


def settings() -> dict[str, float | None]:
    """The cases: BatchNorm at each γ, and none."""
    return {**{f"γ={gamma:g}": gamma for gamma in GAMMAS}, VANILLA: None}


def eigenvalue(
    drawn: Drawn, gamma: float | None, seed: int, *, samples: int | None = None, tolerance: float = 1e-3
) -> float:
    """λ_max of one output of a drawn network on white noise."""
    network, x = drawn_network(drawn, gamma, seed, samples)
    return fisher_lambda_max(network, x, outputs=0, method="lanczos", tolerance=tolerance)


def predicted(drawn: Drawn, gamma: float | None, **told: Any) -> float:
    """λ_max by mean field."""
    norm: dict[str, Any] = {} if gamma is None else {"norm": "batch", "gamma": gamma}
    return mean_field(drawn.layers, **norm, **told, **SIGMAS).lambda_max


def enter_theory(findings: Findings, drawn: Drawn, means: Mapping[str, float]) -> None:
    """Claim 3.1: Σ f_l as a lower bound of the mean λ_max, and how near it is; one number for each setting."""
    full: dict[str, Any] = {"bias_terms": True, "samples": drawn.samples}
    for case, gamma in settings().items():
        for form, told in FORMS.items():
            bound = predicted(drawn, gamma, **told)
            findings.number("measured over the sum of f", form, means[case] / bound, seed=case)
            near = bound if form == "printed" else predicted(drawn, gamma, **told, **full)
            findings.number("predicted over measured", form, near / means[case], seed=case)


def enter_figure(findings: Findings, form: str, values: Mapping[str, float], seed: str) -> None:
    """What Fig. 1 says of the eigenvalues over γ of one drawn network, or of a formula."""
    plain = values[VANILLA]
    over = {gamma: values[case] / plain for case, gamma in settings().items() if gamma is not None}
    source, unit = ("by theory", "exact") if form in FORMS else ("of drawn networks", "factor")
    for measure, value in (
        ("largest ratio for γ ≤ 2", max(ratio for gamma, ratio in over.items() if gamma <= 2)),
        ("crossing", crossing(over)),
        ("smallest gain of η* for γ ≤ 1", min(1 / ratio for gamma, ratio in over.items() if gamma <= 1)),
    ):
        findings.number(f"{measure}, {source}", form, value, seed=seed, unit=unit)  # type: ignore[arg-type]


def crossing(over: Mapping[float, float]) -> float:
    """The γ at which λ_max is that without BatchNorm, by lines in the logarithms; infinite if it is always smaller."""
    logs = [(math.log(gamma), math.log(ratio)) for gamma, ratio in sorted(over.items())]
    for (x0, y0), (x1, y1) in pairwise(logs):
        if y0 < 0 <= y1:
            return math.exp(x0 - y0 * (x1 - x0) / (y1 - y0))
    return math.inf if logs[-1][1] < 0 else 0.0


# ---- Biases, γ and β -------------------------------------------------------------------------------------------------


def enter_bias_terms(findings: Findings, name: str, seeds: Sequence[int]) -> None:
    """Sec. 6.3: the terms of b, γ and β, times the widths, over those of the weights; drawn, printed and exact."""
    drawn, measure = PAPERS[name], "(b, γ, β) × width over weights"
    for gamma in BIAS_GAMMAS:
        both = np.mean([mean_gradients(drawn, gamma, seed, BIAS_SAMPLES[name]) for seed in seeds], axis=0)
        findings.number(measure, "drawn", both[1] / both[0], seed=f"γ={gamma:g}")
        for form, told in FORMS.items():
            terms = mean_field(drawn.layers, norm="batch", gamma=gamma, bias_terms=True, **told, **SIGMAS).terms
            widths = _widths(drawn)
            names = list(dict.fromkeys(term.layer for term in terms if term.parameter == "weight"))
            norms = list(dict.fromkeys(term.layer for term in terms if term.parameter == "gamma"))
            place = {layer: number for several in (names, norms) for number, layer in enumerate(several)}
            weights = sum(term.value for term in terms if term.parameter == "weight")
            others = sum(widths[place[term.layer]] * term.value for term in terms if term.parameter != "weight")
            findings.number(measure, form, others / weights, seed=f"γ={gamma:g}")
    findings.settings |= {"samples for biases": BIAS_SAMPLES[name], "widths": _widths(drawn)}


def mean_gradients(drawn: Drawn, gamma: float, seed: int, samples: int) -> tuple[float, float]:
    """‖E ∂f/∂W‖², and that of the other parameters, each times its layer's width: eqs. 154 to 157 with all pairs."""
    network, x = drawn_network(drawn, gamma, seed, samples)
    freeze_statistics(network, x)
    network.zero_grad()
    network(x)[:, 0].mean().backward()
    weights, others, number = 0.0, 0.0, -1
    widths = _widths(drawn)
    for module in network.modules():
        is_layer = isinstance(module, nn.Linear | nn.Conv2d)
        if not is_layer and not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            continue
        number += is_layer
        squares = {key: float(p.grad.square().sum()) for key, p in module.named_parameters() if p.grad is not None}
        if is_layer:
            weights += squares.pop("weight")
        others += widths[number] * sum(squares.values())
    return weights, others


def _widths(drawn: Drawn) -> tuple[int, ...]:
    """What the paper divides by in each layer: N = 1000, or the channels C_l; at the output those below it."""
    if drawn.hidden is not None:
        return (drawn.hidden,) * len(drawn.layers)
    channels = [layer.channels_out for layer in drawn.layers if not isinstance(layer, Dense)]  # type: ignore[union-attr]
    return (*channels, channels[-1])
