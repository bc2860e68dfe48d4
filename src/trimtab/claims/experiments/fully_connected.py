"""bnp, Figs. 3 and 4: the fully connected network at batch sizes 60, 6 and 1."""

from typing import Any

from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import enter_runs, train_cases
from trimtab.data import load

NETWORK: dict[str, Any] = {"network": "mlp3x100"}
METHODS = ("vanilla", "bn", "ln", "bnp")


def compared(findings: Findings, context: Context, data: str, length: dict[str, Any], **settings: Any) -> None:
    """Train the methods at batch size 60, and enter by how much accuracy falls after half of the run."""
    rates, seeds = (1, 3) if context.size == "small" else (3, 5)
    cases = {method: {"method": method} for method in METHODS}
    shared = {**NETWORK, "data": data, "batch_size": 60, "normalize": "unit", **length, **settings}
    trained = train_cases(context, cases, shared, context.seeds(seeds), rates=rates)
    enter_runs(findings, trained, load(data, context.data_root).classes)
    for name, case in trained.items():
        for seed, history in case.runs.items():
            if history.ended is not None and history.ended.verdict == "diverged":
                continue  # it has no drop either
            points = [100 * event.accuracy for event in history.evaluated if event.accuracy is not None]
            after = points[len(points) // 2 - 1] - points[-1]
            findings.number("overfitting after epoch 10", name, after, seed=seed, unit="points")
    findings.settings |= {**shared, "rates": rates}


@experiment("fc-60-mnist", "Fully connected, MNIST, batch size 60", small=3, gpu=5, paper=5, needs=("mnist",))
def mnist(findings: Findings, context: Context) -> None:
    """Fig. 3, left."""
    compared(findings, context, "mnist", {"epochs": 10 if context.size == "small" else 20})


@experiment("fc-60-mnist-standard", "The same with standardized inputs", small=3, gpu=5, needs=("mnist",))
def mnist_standard(findings: Findings, context: Context) -> None:
    """Fig. 3, left, with inputs of mean 0 and variance 1."""
    compared(findings, context, "mnist", {"epochs": 10 if context.size == "small" else 20}, normalize="standard")


@experiment("fc-60-cifar10", "Fully connected, CIFAR-10, batch size 60", small=6, gpu=5, paper=5, needs=("cifar10",))
def cifar10(findings: Findings, context: Context) -> None:
    """Fig. 3, right."""
    compared(findings, context, "cifar10", {"epochs": 20})


@experiment("fc-60-cifar10-standard", "The same with standardized inputs", small=6, gpu=5, needs=("cifar10",))
def cifar10_standard(findings: Findings, context: Context) -> None:
    """Fig. 3, right, with inputs of mean 0 and variance 1."""
    compared(findings, context, "cifar10", {"epochs": 20}, normalize="standard")
