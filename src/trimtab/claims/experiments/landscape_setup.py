"""What the experiments on the landscape paper's VGG-like network share, and its neighbour at size small."""

from typing import Any

from trimtab.claims.experiments.registry import Context
from trimtab.claims.findings import Findings

METHODS = ("vanilla", "bn")
NEIGHBOUR = "the 5-layer CNN, normalized before the activation, instead of the VGG-like network"
STEPS = {"small": 600, "gpu": 15_000, "paper": 15_000}
ALONG = ("landscape", "random", "shift", "activations")

CNN: dict[str, Any] = {
    "network": "cnn5",
    "before_activation": True,
    "norm_momentum": 0.1,  # those of bnp's TensorFlow networks are the recipe's for this one
    "norm_eps": 1e-5,
}


def setup(findings: Findings, context: Context, steps: int | None = None, **settings: Any) -> dict[str, Any]:
    """The settings of all methods: SGD at 0.1 on CIFAR-10 with batches of 128, as the paper has it.

    Args:
        findings: At size small, what the network is a neighbour of is entered.
        context: The size.
        steps: The length; None: 600 at size small, else the paper's 15,000.
        **settings: Further ones, or others.
    """
    network: dict[str, Any] = {"network": "vgg"}
    if context.size == "small":
        network, findings.neighbour = CNN, NEIGHBOUR
    shared = {
        "data": "cifar10",
        **network,
        "optimizer": "sgd",
        "lr": 0.1,
        "batch_size": 128,
        "steps": steps or STEPS[context.size],
        **settings,
    }
    findings.settings |= shared
    return shared


def of_methods(*methods: str) -> dict[str, dict[str, Any]]:
    """Cases that are methods."""
    return {method: {"method": method} for method in methods}
