"""meanfield, Sec. 5: the exact theory on residual networks."""

from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from trimtab.claims.experiments.meanfield_networks import DRAWS, SIGMAS, Drawn, drawn_network
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.networks import build
from trimtab.norms import Norm
from trimtab.probes import fisher_lambda_max
from trimtab.theory.from_model import mean_field_prediction
from trimtab.theory.mean_field import Dense, Residual, mean_field

BLOCKS = {
    "preactivation": Residual([Dense(500, 500)] * 2),
    "plain": Residual([Dense(500, 500)] * 2, preactivation=False),
}
NUMBER, SAMPLES = 3, 300
NETWORKS = ("resnet18", "preact18")
IMAGES, DRAWS_OF_IMAGES = 32, {"small": 3, "gpu": 10, "paper": DRAWS}
MEASURE = "predicted over measured"


@experiment("meanfield-resnets", "λ_max of residual networks against the exact theory", small=0.5, gpu=3, paper=5)
def resnets(findings: Findings, context: Context) -> None:
    """Blocks of dense layers, drawn 20 times, and the two ResNets of 18 layers."""
    for name, block in BLOCKS.items():
        drawn = Drawn((Dense(200, 500), *[block] * NUMBER, Dense(500, 10)), SAMPLES)
        found = []
        for seed in context.seeds(DRAWS):
            network, x = drawn_network(drawn, 1.0, seed)
            found.append(_measured(network, x))
        told: dict[str, Any] = {"norm": "batch", "gamma": 1.0, "bias_terms": True, "samples": SAMPLES, **SIGMAS}
        _enter(findings, name, mean_field(drawn.layers, **told).lambda_max, found)
    draws = DRAWS_OF_IMAGES[context.size]
    for name in NETWORKS:
        found, predictions = [], []
        for seed in context.seeds(draws):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                network = build(name, Norm("bn"), input_shape=(3, 32, 32), classes=10)
                x = torch.randn(IMAGES, 3, 32, 32)
            predictions.append(mean_field_prediction(network, (3, 32, 32), samples=IMAGES).lambda_max)
            found.append(_measured(network.to(context.device), x.to(context.device)))
            context.show(f"{name}, seed {seed}")
        _enter(findings, name, fmean(predictions), found)
    findings.settings |= {"draws": DRAWS, "draws of 18 layers": draws, "samples": SAMPLES, "images": IMAGES}
    findings.notes.append(
        "One output, frozen statistics, white noise; blocks have two layers of 500 units, γ = 1, three blocks; ResNets "
        f"as their paper initializes them, 3×32×32, {IMAGES} images, {draws} draws."
    )


def _measured(network: nn.Module, x: torch.Tensor) -> float:
    return fisher_lambda_max(network, x, outputs=0, method="lanczos", tolerance=1e-3)


def _enter(findings: Findings, name: str, prediction: float, found: list[float]) -> None:
    findings.number(MEASURE, name, prediction / fmean(found))
    findings.number("spread over draws", name, stdev(found) / fmean(found))
