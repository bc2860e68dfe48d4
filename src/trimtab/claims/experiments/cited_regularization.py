"""What the regularization paper reports of others' work, in its own network."""

import math
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.claims.experiments.regcnn import enter_best, enter_ends, enter_gaps_at_equal_loss, lab
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.records import History
from trimtab.theory.bounds import Sides

CIFAR = {"gpu": ("cifar10",), "paper": ("cifar10",)}
SIZES = {"small": (30, 3), "gpu": (40, 1), "paper": (100, 3)}
"""Epochs and seeds, as for the network's other experiments."""
DECAY = 5e-4
DROPOUT = (0.125, 0.25, 0.5)
TINY = 1e-30
"""For eps, which scales would be compared with; torch takes no 0."""
SETTLED = 2
"""Epochs after which training losses are compared."""


@experiment(
    "cited-weight-decay", "Weight decay under BN (van Laarhoven)", small=1.2, seeds=(2, 3), gpu=6, paper=30, needs=CIFAR
)
def weight_decay(findings: Findings, context: Context) -> None:
    """The scale of weights does not matter to the function; weight decay does not regularize."""
    findings.check("function-unchanged-by-scale", unchanged_by_scale, about={"network": "regcnn", "norms": "bn, wn"})
    (epochs, seeds), common = SIZES[context.size], lab(findings, context)
    cases: dict[str, dict[str, Any]] = {
        "bn": {"method": "bn"},
        "bn+decay": {"method": "bn", "weight_decay": DECAY, "decay_on": "weights"},
    }
    trained = common.train(cases, common.shared(epochs), context.seeds(seeds))
    enter_ends(findings, trained, common.classes)
    enter_gaps_at_equal_loss(findings, trained)
    findings.settings |= {**common.shared(epochs), "weight decay": DECAY}


def unchanged_by_scale(generator: np.random.Generator) -> Sides:
    """Outputs under BN (with next to no eps) or WN, and with each normalized layer's weights times a number."""
    from trimtab.networks import build
    from trimtab.norms import Norm

    torch.manual_seed(int(generator.integers(2**31)))
    norm = Norm("bn", eps=TINY) if generator.random() < 0.5 else Norm("wn")
    model = build("regcnn", norm, input_shape=(1, 4, 4)).double()
    inputs = torch.randn(8, 1, 4, 4, dtype=torch.float64)
    layers: list[Any] = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)][:-1]
    with torch.no_grad():
        before = model(inputs)
        for layer in layers:
            factor = math.exp(generator.uniform(-3, 3))
            if norm.name == "wn":
                layer.parametrizations.weight.original1.mul_(factor)
            else:
                layer.weight.mul_(factor)
        after = model(inputs)
    return Sides(before.numpy(), after.numpy(), "==", scale=float(before.abs().max()))


@experiment(
    "cited-dropout", "Dropout instead of BN (Szegedy et al.)", small=2.2, seeds=(2, 3), gpu=8, paper=60, needs=CIFAR
)
def dropout(findings: Findings, context: Context) -> None:
    """BN beside a vanilla network with the best dropout."""
    (epochs, seeds), common = SIZES[context.size], lab(findings, context)
    cases: dict[str, dict[str, Any]] = {"bn": {"method": "bn"}, "vanilla": {"method": "vanilla"}}
    cases |= {f"vanilla+{rate:g}": {"method": "vanilla", "dropout": rate} for rate in DROPOUT}
    trained = common.train(cases, common.shared(epochs), context.seeds(seeds))
    enter_ends(findings, trained, common.classes)
    among = [f"vanilla+{rate:g}" for rate in DROPOUT]
    enter_best(findings, ("acc", "vloss"), trained, among, "vanilla+best-dropout", 1 / common.classes)
    findings.settings |= {**common.shared(epochs), "dropout": DROPOUT}


@experiment(
    "cited-batch-rate",
    "A rate in proportion to the batch (Goyal et al.)",
    small=1,
    seeds=(2, 3),
    gpu=4,
    paper=30,
    needs=CIFAR,
)
def batch_rate(findings: Findings, context: Context) -> None:
    """Training losses over epochs at batch sizes 64 and 128."""
    (epochs, seeds), common = SIZES[context.size], lab(findings, context)
    cases = {
        f"M={size}": {"method": "bn", **common.at(size), "log_every": common.samples // size} for size in (64, 128)
    }
    trained = common.train(cases, common.shared(epochs), context.seeds(seeds))
    enter_ends(findings, trained, common.classes)
    for seed in trained["M=64"].runs:
        by_epoch = [epoch_losses(case.runs[seed]) for case in trained.values()]
        value = largest_difference(*by_epoch)
        measure = f"largest difference of training losses after epoch {SETTLED}"
        findings.number(measure, "bn", value, seed=seed, unit="loss")
    for name, case in trained.items():
        several = list(zip(*(epoch_losses(history) for history in case.runs.values()), strict=False))
        points = [(epoch + 1, fmean(s), min(s), max(s)) for epoch, s in enumerate(several)]
        findings.curve("training loss", name, points[:: max(1, len(points) // 40)])
    findings.settings |= common.shared(epochs)


def epoch_losses(history: History) -> list[float]:
    """The mean training loss of each epoch of a run that was recorded once an epoch."""
    return [event.loss for event in history.trained]


def largest_difference(left: list[float], right: list[float]) -> float:
    """Of two lines of training losses after the second epoch, as a share of the left; infinite if one ends early."""
    if len(left) != len(right) or len(left) <= SETTLED:
        return math.inf
    return max(abs(b / a - 1) for a, b in list(zip(left, right, strict=True))[SETTLED:])
