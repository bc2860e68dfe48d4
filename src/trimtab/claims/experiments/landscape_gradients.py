"""landscape, after Theorem 4.1: what its two terms take from the gradient at the norms of a network in training."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import train_cases

SEEDS = 3
LENGTH = 15_000
"""Steps of the paper's runs; the steps of the criterion shrink with a shorter run."""
MEASURED_AT = (0, 500, 2000)
SHORT = 600
"""Steps of the neighbour's runs, as in the claims on the training of this network."""
WORST = "worst-step"


@experiment(
    "landscape-gradients-at-norms",
    "The gradient at the norms' outputs along a run, CIFAR-10",
    small=0.8,
    gpu=5,
    paper=5,
    needs=("cifar10",),
)
def gradients_at_norms(findings: Findings, context: Context) -> None:
    """⟨1, g⟩² and ⟨g, ŷ⟩² of a network with BatchNorm; the network without it stands beside."""
    small = context.size == "small"
    steps = tuple(step * SHORT // LENGTH for step in MEASURED_AT) if small else MEASURED_AT
    network: dict[str, Any] = {"network": "cnn5"} if small else {"network": "vgg"}
    shared = {
        **network,
        "data": "cifar10",
        "batch_size": 128,
        "optimizer": "sgd",
        "lr": 0.1,
        "steps": max(steps) + 1,
        "evaluations": 1,
        "train_subset": 0,
        "probe": ("gradients",),
        "probe_at": steps,
    }
    cases: dict[str, dict[str, Any]] = {
        "bn": {"method": "bn", "before_activation": small},
        "vanilla": {"method": "vanilla"},
    }
    trained = train_cases(context, cases, shared, context.seeds(SEEDS))
    for name, case in trained.items():
        for seed, history in case.runs.items():
            results = {event.step: event.result for event in history.probed}
            enter_gradients(findings, name, seed, [results[step] for step in steps], steps)
    if small:
        findings.neighbour = "cnn5 with its norm before the activation instead of the VGG-like network"
    findings.settings |= {**shared, "measured at": steps}
    findings.notes += [
        f"Measured before steps {', '.join(map(str, steps))}: those of the criterion, as shares of the run's length.",
        "Shares are of batches of 512 samples, the slope of their first 16 to 512. Units are those of all norms; the "
        "slope is the median over norms of that of the median unit. Without BatchNorm: at the convolutions' outputs.",
    ]


def enter_gradients(
    findings: Findings, case: str, seed: int, results: Sequence[Mapping[str, Any]], steps: Sequence[int]
) -> None:
    """Enter the numbers of a run, for each step and for the step that is worst for the paper.

    Args:
        findings: Where they are entered.
        case: Of which run.
        seed: Its seed.
        results: What the probe `gradients` found at these steps.
        steps: The steps.
    """
    smallest: dict[str, list[float]] = {}
    for step, result in zip(steps, results, strict=True):
        layers = [layer for layer in result["layers"] if layer["units"]]
        units = sum(layer["units"] for layer in layers)
        numbers = {
            "slope": median(layer["slope"] for layer in layers),
            "mean share": median(layer["mean_share"] for layer in layers),
            "correlated units": sum(layer["correlated"] * layer["units"] for layer in layers) / units,
            "inner share": median(layer["inner_share"] for layer in layers),
            "kept": median(layer["kept"] for layer in layers),
        }
        for measure, value in numbers.items():
            if value == value:  # without BatchNorm nothing is kept or lost
                findings.number(measure, f"{case}-step-{step}", value, seed=seed, unit="factor")
                smallest.setdefault(measure, []).append(value)
    for measure in ("slope", "mean share", "correlated units"):
        findings.number(measure, f"{case}-{WORST}", min(smallest[measure]), seed=seed, unit="factor")
