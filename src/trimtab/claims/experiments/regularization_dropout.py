"""regularization, Fig. 7: dropout after BatchNorm and after weight normalization; and what a step of both takes."""

import time
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import torch

from trimtab.claims.experiments.regcnn import Lab, diverged, enter_best, enter_ends, enter_losses, lab
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import TrainedCase

CIFAR = {"gpu": ("cifar10",), "paper": ("cifar10",)}
SIZES = {"small": (30, 3), "gpu": (40, 1), "paper": (100, 3)}
"""Epochs and seeds."""
BATCHES = {"small": (16, 32, 128), "gpu": (32, 64, 256), "paper": (32, 64, 256)}
"""The smallest, the small and the large one: the paper's 32, 64 and 256; on digits, which are few, half of each."""
BN_RATE, WN_RATE = 0.125, 0.25
RATES = (0.125, 0.25, 0.4)
FOLDER = "regcnn-dropout"
DISTANCE = "distance of test variance from running variance"
ROUNDS = 20


@experiment(
    "regcnn-dropout", "CNN with dropout after BN and WN", small=4.5, seeds=(2, 3), gpu=14, paper=130, needs=CIFAR
)
def dropout(findings: Findings, context: Context) -> None:
    """Fig. 7."""
    (epochs, seeds), common = SIZES[context.size], lab(findings, context)
    smallest, small, large = BATCHES[context.size]
    cases: dict[str, dict[str, Any]] = {}
    for suffix, size in (("", small), ("-large", large)):
        for method, rate in (("bn", BN_RATE), ("wn", WN_RATE)):
            cases[f"{method}{suffix}"] = {"method": method, **common.at(size)}
            cases[f"{method}{suffix}+dropout"] = {"method": method, "dropout": rate, **common.at(size)}
    cases["bn-smallest"] = {"method": "bn", **common.at(smallest)}
    cases["bn-smallest+dropout"] = {"method": "bn", "dropout": BN_RATE, **common.at(smallest)}
    probed = {"probe": ("variance",), "probe_at": (common.last_step(epochs, large),)}
    cases["bn-large+dropout"] |= probed
    cases["bn-large+dropout-before"] = {**cases["bn-large+dropout"], "dropout_before": True}
    shared = common.shared(epochs)
    trained = common.train(cases, shared, context.seeds(seeds), FOLDER)
    enter_ends(findings, trained, common.classes)
    shown = ("bn", "bn-large", "bn-large+dropout", "wn-large", "wn-large+dropout")
    enter_losses(findings, {name: trained[name] for name in shown}, 1 / common.classes)
    enter_variances(findings, {name: trained[name] for name in ("bn-large+dropout", "bn-large+dropout-before")})
    findings.settings |= {**shared, "batches": [smallest, small, large], "dropout": {"bn": BN_RATE, "wn": WN_RATE}}
    findings.notes.append(
        f"The small batch is {small}, the large one {large}, the smallest {smallest}. The paper does not say at which "
        "batch WN rises from 0.73 to 0.80: the large one is judged; the small one is in the record too."
    )


def enter_variances(findings: Findings, trained: Mapping[str, TrainedCase]) -> None:
    """Enter |log(test variance / running variance)| of BatchNorm's inputs at the end: mean over the layers."""
    for name, case in trained.items():
        for seed, history in case.runs.items():
            found = [event.result for event in history.probed if event.probe == "variance"]
            if diverged(history) or not found or not found[-1].get("layers"):
                value = float("inf")
            else:
                value = fmean(layer["distance"] for layer in found[-1]["layers"])
            findings.number(DISTANCE, name, value, seed=seed, unit="factor")


@experiment(
    "regcnn-dropout-rates",
    "CNN, the best dropout of BN and WN",
    small=5.6,
    seeds=(2, 3),
    gpu=14,
    paper=130,
    needs=CIFAR,
)
def dropout_rates(findings: Findings, context: Context) -> None:
    """Sec. 7: WN with a suitable dropout beside BN."""
    (epochs, seeds), common = SIZES[context.size], lab(findings, context)
    _, small, large = BATCHES[context.size]
    enter_best_rates(findings, context, common, epochs, seeds, {"": small, "-large": large})
    findings.notes.append("For each method the dropout with the best mean accuracy; BN without dropout is bn-plain.")


def enter_best_rates(
    findings: Findings, context: Context, common: Lab, epochs: int, seeds: int, sizes: Mapping[str, int]
) -> None:
    """Train both methods at all rates of dropout, and enter the best ones."""
    cases: dict[str, dict[str, Any]] = {}
    for suffix, size in sizes.items():
        cases[f"bn-plain{suffix}"] = {"method": "bn", **common.at(size)}
        for method in ("bn", "wn"):
            for rate in RATES:
                cases[f"{method}{suffix}/{rate:g}"] = {"method": method, "dropout": rate, **common.at(size)}
    trained = common.train(cases, common.shared(epochs), context.seeds(seeds), FOLDER)
    enter_ends(findings, trained, common.classes)
    for suffix in sizes:
        for method in ("bn", "wn"):
            among = [f"{method}{suffix}/{rate:g}" for rate in RATES]
            enter_best(
                findings, ("acc",), trained, among, f"{method}{suffix}", 1 / common.classes, " at the best dropout"
            )
        plain = [f"bn-plain{suffix}"]
        enter_best(findings, ("acc",), trained, plain, plain[0], 1 / common.classes, " at the best dropout")
    findings.settings |= {**common.shared(epochs), "dropout": RATES}


@experiment("regcnn-speed", "The time of a step with WN and with BN", small=2, gpu=1)
def speed(findings: Findings, context: Context) -> None:
    """Sec. 5.1: steps of both in turns, on images of random pixels."""
    for size in (64, 256):
        steps = {method: training_step(method, size, context.device) for method in ("bn", "wn")}
        for name, several in alternating_seconds(steps, ROUNDS, context.device).items():
            for number, seconds in enumerate(several):
                findings.number(f"time of a step, batch {size}", name, seconds, seed=number, unit="time")
    findings.settings |= {
        "network": "regcnn",
        "images": [3, 32, 32],
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
    }


def training_step(method: str, size: int, device: torch.device) -> Callable[[], None]:
    """A step of `regcnn` by SGD with momentum, on one batch of random images."""
    from torch.nn import functional as F

    from trimtab.networks import build

    torch.manual_seed(0)
    model = build("regcnn", method).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    inputs = torch.rand(size, 3, 32, 32, device=device)
    targets = torch.randint(10, (size,), device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def alternating_seconds(
    steps: Mapping[str, Callable[[], None]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of a step for each contender and round; they take turns, in an order that turns round at each round.

    Each turn begins with a step that is not timed, and takes one that is, on a GPU thirty.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    count = 30 if device.type == "cuda" else 1
    for step in steps.values():
        for _ in range(3):
            step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for _ in range(rounds):
        for name in order:
            steps[name]()
            wait()
            begun = time.perf_counter()
            for _ in range(count):
                steps[name]()
            wait()
            found[name].append((time.perf_counter() - begun) / count)
        order.reverse()
    return found
