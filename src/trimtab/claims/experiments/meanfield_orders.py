"""meanfield, Secs. 3 and 6: order parameters of drawn networks, against the printed recursions and the exact ones."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from trimtab.claims.experiments.meanfield_networks import (
    DRAWS,
    PAPERS,
    SIGMAS,
    Drawn,
    drawn_network,
    product_of_pairs,
    product_of_positions,
    product_of_weight_gradients,
    see,
)
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory.mean_field import Conv, Dense, MeasuredOrder, Order, mean_field, measure_orders
from trimtab.theory.mean_field.measured import NAMES

# As in the paper, but with many outputs: the mean of their squares has less chance in it. f is the first of them.
DENSE = Drawn((*PAPERS["dense"].layers[:3], Dense(1000, 1000)), 300)
CONV = Drawn((Conv(3, 120, 3, 2, size=32), Conv(120, 240, 3, 2), Conv(240, 360, 3, 2), Dense(3240, 500)), 128)
SETTINGS: dict[str, tuple[Drawn, tuple[float | None, ...]]] = {
    "vanilla dense": (DENSE, (None,)),
    "dense with BN": (DENSE, (0.5, 1.0, 2.0, 3.0)),
    "vanilla conv": (CONV, (None,)),
    "conv with BN": (CONV, (1.0, 2.0)),
}
POSITIONS = ("q_hat_alphabeta", "q_alphabeta", "q_tilde_alphabeta")
"""Of two samples at different positions, after those of `NAMES`."""


@experiment("meanfield-orders", "Order parameters of drawn networks, 20 draws", small=0.9, paper=4)
def orders(findings: Findings, context: Context) -> None:
    """Eqs. 20 to 25 and 34 to 43, Claims 6.1 to 6.6, eqs. 53, 60, 160 and 166."""
    seed = context.seeds(1)[0]
    draws = DRAWS * context.more
    for name, (drawn, gammas) in SETTINGS.items():
        for gamma in gammas:
            told: dict[str, Any] = {"gamma": gamma, "samples": drawn.samples, "draws": draws, "seed": seed, **SIGMAS}
            found = measure_orders(drawn.layers, **told)
            measured = [{key: getattr(order, key) for key in NAMES} for order in found]
            if isinstance(drawn.layers[0], Conv):
                for numbers, more in zip(measured, at_positions(drawn, gamma, draws, seed), strict=True):
                    numbers.update(more)
            for form, predicted in forms(drawn, gamma).items():
                enter_ratios(findings, f"{form} over measured, {name}", predicted, measured, gamma)
            if name == "dense with BN" and gamma == 1.0:
                enter_gaussianity(findings, found[:-1])
            if name.endswith("conv with BN"):
                for number, numbers in enumerate(measured[:-1], start=1):
                    share = numbers["q_tilde_alphabeta"] / numbers["q_tilde_xy"]
                    findings.number(
                        "gradients at different positions over same", "conv", share, seed=_key(gamma, number)
                    )
            context.show(f"{name}, γ = {gamma}")
    for name, common in (("dense", False), ("conv", False), ("conv", True)):
        case = f"{name}-common-image" if common else name
        for number, ratio in decoupled_over_coupled(PAPERS[name], common, draws, seed):
            findings.number("decoupled over coupled", case, ratio, seed=f"layer {number}")
    findings.settings |= {"draws": draws, "seed": seed, "samples": {"dense": 300, "conv": 128}, **SIGMAS}
    findings.notes += [
        "Means over draws; each number is that of a layer (1: the first), at one γ. What is predicted to be 0, as the "
        "product of two samples of white noise, is left out.",
        "784-1000-1000-1000 and 3-120-240-360 channels, kernel 3, stride 2, on 32×32; 1000 and 500 outputs, so that "
        "the mean of their squares has little chance in it.",
        "Correlation of normalized preactivations between samples: the mean over pairs. Its root mean square beyond "
        f"what 1000 units show by chance is {_words(findings.numbers['preactivations']['correlation-spread'])}: "
        "in the first layer that of the inputs, 1/√784.",
    ]


def forms(drawn: Drawn, gamma: float | None) -> dict[str, list[dict[str, float]]]:
    """The order parameters as printed, and as corrected, layer by layer."""
    told: dict[str, Any] = SIGMAS if gamma is None else {"norm": "batch", "gamma": gamma, **SIGMAS}
    both = {
        "printed": _numbers(mean_field(drawn.layers, variant="paper", **told).layers),
        "exact": _numbers(mean_field(drawn.layers, **told).layers),
    }
    if gamma is None and isinstance(drawn.layers[0], Conv):
        for numbers, printed in zip(both["printed"], backward_of_claim_66(both["printed"]), strict=True):
            numbers.update(printed)
    return both


def backward_of_claim_66(forward: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """q̃, q̃_xy and q̃_αβ,xy as Claim 6.6 prints them, with q̃ where q̃_xy belongs, from the last layer down."""
    tilde, same, other = 1.0, 1.0, 1.0
    found = []
    for layer in reversed(range(len(forward))):
        found.append({"q_tilde": tilde, "q_tilde_xy": same, "q_tilde_alphabeta": other})
        if layer:
            q = forward[layer - 1]["q"]
            both = [
                SIGMAS["sigma_w2"] * (math.pi / 2 + math.asin(forward[layer - 1][name] / q)) / (2 * math.pi)
                for name in ("q_xy", "q_alphabeta")
            ]
            tilde, same, other = SIGMAS["sigma_w2"] * tilde / 2, both[0] * tilde, both[1] * other
    return found[::-1]


def enter_ratios(
    findings: Findings,
    measure: str,
    predicted: Sequence[dict[str, float]],
    measured: Sequence[dict[str, float]],
    gamma: float | None,
) -> None:
    """Enter predicted over measured; layers are numbered from 1, and q̃ of the last is 1 by definition."""
    for number, (told, found) in enumerate(zip(predicted, measured, strict=True), start=1):
        for name, value in found.items():
            by_definition = name.startswith("q_tilde") and number == len(predicted)
            if math.isfinite(value) and abs(told[name]) > 1e-12 and not by_definition:
                findings.number(measure, name, told[name] / value, seed=_key(gamma, number))


def enter_gaussianity(findings: Findings, layers: Sequence[MeasuredOrder]) -> None:
    """Enter how Gaussian and how correlated normalized preactivations are, layer by layer."""
    for number, order in enumerate(layers, start=1):
        key = f"layer {number}"
        findings.number("preactivations", "distance", order.distance, seed=key)
        findings.number("preactivations", "correlation", order.correlation, seed=key)
        findings.number("preactivations", "correlation-spread", order.correlation_spread, seed=key)
        findings.number("preactivations", "kurtosis", order.kurtosis, seed=key)


def at_positions(drawn: Drawn, gamma: float | None, draws: int, seed: int) -> list[dict[str, float]]:
    """Mean products of two samples at different positions, means over draws; NaN where there is one position."""
    found = []
    for draw in range(draws):
        layers = see(*drawn_network(drawn, gamma, seed + draw))
        found.append(
            [
                [
                    product_of_positions(layer.inputs, layer.inputs.shape[1]),
                    product_of_positions(layer.outputs, layer.outputs.shape[1]),
                    product_of_positions(layer.gradients, 1),
                ]
                for layer in layers
            ]
        )
    return [dict(zip(POSITIONS, map(float, row), strict=True)) for row in np.mean(found, axis=0)]


def decoupled_over_coupled(drawn: Drawn, common: bool, draws: int, seed: int) -> Iterator[tuple[int, float]]:
    """f_l with forward and backward parts averaged apart (eqs. 160, 166) over f_l as it is, layer by layer.

    Both are means over draws and pairs of different samples, BatchNorm with γ = 1. On white noise the first layer has
    f_l = 0 and is left out.

    Args:
        drawn: The network.
        common: Whether half of the variance of all samples is one image.
        draws: How many.
        seed: Of the first.
    """
    found = []
    for draw in range(draws):
        network, x = drawn_network(drawn, 1.0, seed + draw)
        if common:
            image = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(seed + draw))
            x = (x + image) / math.sqrt(2)
        rows = []
        for layer in see(network, x):
            coupled = product_of_weight_gradients(layer.gradients, layer.patches)
            apart = product_of_pairs(layer.gradients.sum(2)) * product_of_pairs(layer.patches.sum(2))
            rows.append((apart / layer.gradients.shape[2] ** 2, coupled))
        found.append(rows)
    for number, (apart, coupled) in enumerate(np.mean(found, axis=0), start=1):
        if common or number > 1:
            yield number, float(apart / coupled)


def _numbers(layers: Sequence[Order]) -> list[dict[str, float]]:
    return [{name: getattr(layer, name) for name in (*NAMES, *POSITIONS)} for layer in layers]


def _key(gamma: float | None, number: int) -> str:
    return f"layer {number}" if gamma is None else f"γ = {gamma:g}, layer {number}"


def _words(values: dict[str, float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values.values())
