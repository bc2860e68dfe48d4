"""bnp, Fig. 3: the fully connected network at batch size 60."""

from typing import Any

from trimtab.claims.experiments.registry import Context, with_both_inputs
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import enter_runs, train_cases
from trimtab.data import load

METHODS = ("vanilla", "bn", "ln", "bnp")


def compared(findings: Findings, context: Context, data: str, *, epochs: int, normalize: str) -> None:
    """Train the methods at batch size 60, and enter by how much accuracy falls after half of the run."""
    rates, seeds = (1, 3) if context.size == "small" else (3, 5)
    cases = {method: {"method": method} for method in METHODS}
    shared: dict[str, Any] = {
        "network": "mlp3x100",
        "data": data,
        "batch_size": 60,
        "epochs": epochs,
        "normalize": normalize,
    }
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


@with_both_inputs(
    "fc-60-mnist", "Fully connected, MNIST, batch size 60", small=0.9, seeds=(2, 3), gpu=5, paper=5, needs=("mnist",)
)
def mnist(findings: Findings, context: Context, normalize: str) -> None:
    """Fig. 3, left."""
    compared(findings, context, "mnist", epochs=10 if context.size == "small" else 20, normalize=normalize)


@with_both_inputs(
    "fc-60-cifar10",
    "Fully connected, CIFAR-10, batch size 60",
    small=2.6,
    seeds=(2, 3),
    gpu=5,
    paper=5,
    needs=("cifar10",),
)
def cifar10(findings: Findings, context: Context, normalize: str) -> None:
    """Fig. 3, right."""
    compared(findings, context, "cifar10", epochs=20, normalize=normalize)
