"""meanfield, Secs. 2.1 and 5: weights and λ_max along a training, and the initial γ of deep networks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from trimtab.claims.experiments.mean_field_slices import predictions
from trimtab.claims.experiments.mean_field_sweeps import length
from trimtab.claims.experiments.regcnn import diverged, enter_ends, enter_loss_curves
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import EVALUATIONS, TrainedCase, train_cases
from trimtab.data import load
from trimtab.records import History

GAMMAS = (0.1, 0.3, 1.0, 3.0)
TENTH = 0.1
"""The part of the steps after which training losses are compared."""
LOOKS = 6
"""So often weights and λ_max are measured along a run."""


@experiment("mean-field-weights", "Weights and λ_max along a training", small=1, gpu=3, paper=5, needs=("mnist",))
def weights(findings: Findings, context: Context) -> None:
    """Sec. 2.1: dense networks on MNIST at η*/2, by the paper's η*; BatchNorm with γ = 1."""
    size, seeds = context.size, context.seeds(2 if context.size == "small" else 5)
    batch_size = 128
    common: dict[str, Any] = {"data": "mnist", "network": "mf-mlp", "loss": "squared", "batch_size": batch_size}
    how = length(size, "mf-mlp")
    steps = how.get("steps") or how["epochs"] * (len(load("mnist", context.data_root).train) // batch_size)
    at = tuple(round(number * (steps - 1) / (LOOKS - 1)) for number in range(LOOKS))
    shared = {**common, **how, "evaluations": 1, "probe": ("weights", "fisher"), "probe_at": at}
    rates = {name: predictions(context, {**common, "method": name})["paper"] / 2 for name in ("vanilla", "bn")}
    cases = {name: {"method": name, "lr": float(f"{rate:.6g}")} for name, rate in rates.items()}
    trained = train_cases(context, cases, shared, seeds)
    for name, case in trained.items():
        for seed, history in case.runs.items():
            change, factor = (float("inf"),) * 2 if diverged(history) else changes(history)
            measure = "largest change of a layer's variance of weights"
            findings.number(measure, name, change, seed=seed, unit="factor")
            findings.number(
                "largest factor between λ_max and that at the start", name, factor, seed=seed, unit="factor"
            )
        first = next(iter(case.runs.values()))
        points = [(event.step, event.result["one_output"]) for event in _probed(first, "fisher")]
        findings.curve("λ_max along the first run", name, points)
    findings.settings |= {**shared, **{f"lr of {name}": case.lr for name, case in trained.items()}}


def changes(history: History) -> tuple[float, float]:
    """By what share a layer's variance of weights is away from the start at most, and by what factor λ_max is."""
    variances = [[layer["variance"] for layer in event.result["layers"]] for event in _probed(history, "weights")]
    change = max(
        abs(now / start - 1) for several in variances for now, start in zip(several, variances[0], strict=True)
    )
    eigenvalues = [event.result["one_output"] for event in _probed(history, "fisher")]
    return change, max(max(value / eigenvalues[0], eigenvalues[0] / value) for value in eigenvalues)


def _probed(history: History, probe: str) -> list[Any]:
    return [event for event in history.probed if event.probe == probe and event.result.get("problem") is None]


def initial_gamma(findings: Findings, context: Context, network: str) -> None:
    """A panel of Fig. 4: squared error, and cross-entropy beside it."""
    shared: dict[str, Any] = {"data": "cifar10", "network": network, "batch_size": 128, "lr": 0.1}
    epochs, seeds = {"small": (10, 3), "gpu": (5, 1), "paper": (20, 5)}[context.size]
    folder = context.work
    if context.size == "small":
        shared |= {"data": "digits", "network": "small-cnn", "before_activation": True}
        shared |= {"momentum": 0.9, "weight_decay": 5e-4}
        findings.neighbour = f"small-cnn on digits instead of {network} on CIFAR-10"
        folder = context.work.parent / "initial-gamma"  # the same runs for both networks
    elif context.device.type == "cuda":
        shared |= {"precision": "bf16", "compile": True}
    shared |= {"epochs": epochs, "evaluations": EVALUATIONS}
    classes = load(shared["data"], context.data_root).classes
    cases = {f"γ={gamma:g}": {"method": "bn", "gamma": gamma} for gamma in GAMMAS}
    for loss, suffix in (("squared", ""), ("cross_entropy", " with cross-entropy")):
        if suffix and context.size == "gpu":
            continue
        trained = train_cases(
            replace(context, work=folder), cases, {**shared, "loss": loss, "log_every": 1}, context.seeds(seeds)
        )
        enter_ends(findings, trained, classes, suffix)
        enter_early_losses(findings, trained, suffix)
        if not suffix:
            for name, case in trained.items():
                enter_loss_curves(findings, name, list(case.runs.values()))
    findings.settings |= shared
    beside = "left out at this size" if context.size == "gpu" else "beside it, with a name of its own"
    findings.notes.append(
        f"The squared error is judged; cross-entropy is {beside}. The training loss after a tenth of the steps is the "
        "mean over the steps from 5 to 10 % of the run, as they saw it."
    )


def enter_early_losses(findings: Findings, trained: Mapping[str, TrainedCase], suffix: str = "") -> None:
    """Enter training losses after a tenth of the steps, and for how many neighbouring γ their mean falls with γ."""
    means = []
    for name, case in trained.items():
        values = {seed: early_loss(history) for seed, history in case.runs.items()}
        for seed, value in values.items():
            findings.number(f"training loss after a tenth{suffix}", name, value, seed=seed, unit="loss")
        means.append(fmean(values.values()))
    falling = falls(means)
    findings.number(f"neighbouring γ where the training loss falls{suffix}", "all", falling)


def falls(means: Sequence[float]) -> int:
    """For how many neighbours the first one, that of the smaller γ, is below the second."""
    return sum(small < large for small, large in pairwise(means))


def early_loss(history: History) -> float:
    """The mean training loss over the steps from 5 to 10 % of a run; infinite if it diverged."""
    if diverged(history) or history.ended is None:
        return float("inf")
    last = TENTH * history.ended.step
    losses = [event.loss for event in history.trained if last / 2 < event.step <= last]
    return fmean(losses) if losses else history.trained[0].loss


@experiment(
    "initial-gamma-vgg16",
    "Initial γ, VGG16",
    small=0.2,
    gpu=6,
    paper=60,
    needs={"gpu": ("cifar10",), "paper": ("cifar10",)},
)
def vgg16(findings: Findings, context: Context) -> None:
    """Fig. 4."""
    initial_gamma(findings, context, "vgg16")


@experiment(
    "initial-gamma-preact18",
    "Initial γ, Preact-ResNet-18",
    small=0.1,
    gpu=6,
    paper=120,
    needs={"gpu": ("cifar10",), "paper": ("cifar10",)},
)
def preact18(findings: Findings, context: Context) -> None:
    """Fig. 4."""
    initial_gamma(findings, context, "preact18")
