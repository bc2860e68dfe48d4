"""bnp, Figs. 6 and 7: residual networks, whose learning rate is decayed twice."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import TrainedCase, enter_runs, train_cases
from trimtab.data import load
from trimtab.records import Evaluated

METHODS = ("bn", "gn", "bnp", "bnp+gn")
WITHOUT_BNP = ("bn", "gn", "bnp+gn")
"""The methods of Fig. 7."""
WARMUP, EPOCH = 400, 390
"""Steps of the paper's warm-up, and of an epoch of CIFAR-10, which is the warm-up with GN."""
AFTER = 5
"""Epochs after the first decay at which the jump is measured."""


def decayed(
    findings: Findings,
    context: Context,
    network: str,
    data: str,
    epochs: int,
    milestones: tuple[int, ...],
    seeds: int,
    methods: Sequence[str] = METHODS,
) -> None:
    """Train several methods, and enter what happens before the first decay of the rate and at it."""
    shared: dict[str, Any] = {"network": network, "data": data, "epochs": epochs, "milestones": milestones}
    shared |= {"evaluate_every": 1, "train_subset": 0}
    cases: dict[str, dict[str, Any]] = {method: {"method": method} for method in methods}
    dataset = load(data, context.data_root)
    if data == "digits":
        # Cropped or flipped, an 8×8 digit may be another one.
        shared |= {"augment": False}
        first = -(-WARMUP // (len(dataset.train) // 128))
        milestones = tuple(first + epoch for epoch in milestones)
        shared |= {"epochs": first + epochs, "milestones": milestones}
        for name in cases.keys() & {"gn", "bnp+gn"}:
            cases[name] |= {"warmup": EPOCH, "warmup_epochs": 0}
        findings.notes.append(
            f"Without augmentation; {first} epochs for the warm-up, which has as many steps as on CIFAR-10, come first."
        )
    elif context.device.type == "cuda":
        shared |= {"precision": "bf16", "compile": True}
    trained = train_cases(context, cases, shared, context.seeds(seeds))
    enter_runs(findings, trained, dataset.classes)
    enter_decay(findings, trained, milestones[0])
    findings.settings |= shared


def enter_decay(findings: Findings, trained: dict[str, TrainedCase], decay: int) -> None:
    """Enter `before`, the mean accuracy until the first decay, and `jump`, how much higher it is 5 epochs after it."""
    for name, case in trained.items():
        for seed, history in case.runs.items():
            before, jump = around_decay(history.evaluated, decay)
            if history.ended is not None and history.ended.verdict == "diverged":
                before, jump = findings.chance or 0.0, 0.0
            findings.number("before", name, before, seed=seed, unit="points")
            findings.number("jump", name, jump, seed=seed, unit="points")


def around_decay(evaluated: Sequence[Evaluated], decay: int) -> tuple[float, float]:
    """Mean accuracy in points over the epochs until a decay, and by how much it is higher 5 epochs after it."""
    points = {round(event.epoch): 100 * event.accuracy for event in evaluated if event.accuracy is not None}
    until = [value for epoch, value in points.items() if epoch <= decay]
    if decay not in points or decay + AFTER not in points:
        return (fmean(until) if until else 0.0), 0.0
    return fmean(until), points[decay + AFTER] - points[decay]


@experiment(
    "resnet110",
    "ResNet-110 with a decaying learning rate",
    small=6.4,
    gpu=10,
    paper=220,
    needs={"small": (), "gpu": ("cifar10",), "paper": ("cifar10",)},
)
def resnet110(findings: Findings, context: Context) -> None:
    """Fig. 6, left."""
    if context.size == "small":
        findings.neighbour = "digits instead of CIFAR-10"
        decayed(findings, context, "resnet110", "digits", 40, (20, 30), 2)
    elif context.size == "gpu":
        decayed(findings, context, "resnet110", "cifar10", 20, (10, 15), 1)
    else:
        decayed(findings, context, "resnet110", "cifar10", 160, (80, 120), 5)


@experiment(
    "preact110",
    "Preactivation ResNet-110 with a decaying learning rate",
    small=5,
    gpu=10,
    paper=410,
    needs={"small": (), "gpu": ("cifar10",), "paper": ("cifar100",)},
)
def preact110(findings: Findings, context: Context) -> None:
    """Fig. 6, right; with other data 20 epochs that are decayed where the paper's 300 are."""
    if context.size == "paper":
        decayed(findings, context, "preact110", "cifar100", 300, (150, 220), 5)
        return
    data, name = ("digits", "digits") if context.size == "small" else ("cifar10", "CIFAR-10")
    findings.neighbour = f"{name} instead of CIFAR-100"
    decayed(findings, context, "preact110", data, 20, (10, 15), 2 if context.size == "small" else 1)


@experiment(
    "resnet18",
    "ResNet-18 with a decaying learning rate",
    small=6,
    gpu=10,
    paper=6400,
    needs={"small": (), "gpu": ("cifar10",), "paper": ("imagefolder",)},
)
def resnet18(findings: Findings, context: Context) -> None:
    """Fig. 7; with other data 20 epochs that are decayed where the paper's 100 are. It does not say how many runs."""
    if context.size == "paper":
        decayed(findings, context, "resnet18", "imagefolder", 100, (30, 60, 90), 2, WITHOUT_BNP)
        return
    data, name = ("digits", "digits") if context.size == "small" else ("cifar10", "CIFAR-10")
    findings.neighbour = f"{name} instead of ImageNet"
    decayed(findings, context, "resnet18", data, 20, (6, 12, 18), 2, WITHOUT_BNP)
