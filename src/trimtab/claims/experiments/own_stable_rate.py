"""Claims of our own: the largest stable rate that is measured before training, against the rates that really fail."""

import math
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.kept import kept

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trimtab.data import Dataset

NETWORKS = {"small-mlp": "digits", "small-cnn": "digits", "mlp2x100": "mnist"}
"""What is trained, and on which data."""
CASES = ("bn", "vanilla")
LOSSES = ("squared", "cross_entropy")
OPTIMIZERS = ("sgd", "momentum")
SAMPLES = 128
SEEDS = 5


@experiment("stable-rate", "η* of train mode, and rates that are bisected", small=8, second_pass=True, needs=("mnist",))
def stable_rate(findings: Findings, context: Context) -> None:
    """Gradient descent on all samples at once, from starts and on samples of its own for each seed."""
    from trimtab.data import load

    datasets = {name: load(name, context.data_root) for name in set(NETWORKS.values())}
    for seed in context.seeds(SEEDS):
        for case in CASES:
            found: dict[str, list[dict[str, float]]] = {}
            for network, data in NETWORKS.items():
                place = context.work / f"{network}-{case}-{SAMPLES}-samples-seed-{seed}.json"
                looked = kept(place, partial(look, network, case, datasets[data], seed))
                for name, multiples in looked.items():
                    found.setdefault(name, []).append(multiples)
                    for edge, multiple in multiples.items():
                        findings.number(edge, f"{case}-{name}-{network}", multiple, seed=seed, unit="factor")
            enter(findings, case, seed, found)
        context.show(f"seed {seed} is done")
    findings.settings |= {"networks": NETWORKS, "samples": SAMPLES, "seeds": list(context.seeds(SEEDS))}
    findings.notes.append(
        "Rises and fails are told as multiples of the measured η*: 2/λ where the loss begins to rise, 2(1 + μ)/λ where "
        "training fails. The vanilla networks, which have no train mode, and single networks stand beside."
    )


def enter(findings: Findings, case: str, seed: int, found: dict[str, list[dict[str, float]]]) -> None:
    """Enter what the networks have in common: their mean on a scale of factors, and the lowest."""
    for name, several in found.items():
        for edge in several[0]:
            values = [multiples[edge] for multiples in several]
            findings.number(
                f"{edge}, mean of networks",
                f"{case}-{name}",
                math.exp(fmean(map(_log, values))),
                seed=seed,
                unit="factor",
            )
            findings.number(f"{edge}, lowest network", f"{case}-{name}", min(values), seed=seed, unit="factor")
        for mode in ("train", "frozen"):
            away = [abs(_log(multiples[f"rise over η* of {mode} mode"])) for multiples in several]
            findings.number(f"how far off the rise is, {name}", f"{case}-{mode}", fmean(away), seed=seed, unit="factor")


def _log(multiple: float) -> float:
    return math.log(multiple) if multiple else -math.inf


def samples(dataset: "Dataset", seed: int) -> "tuple[Tensor, Tensor]":
    """Training samples drawn with a seed, standardized, and their classes."""
    import torch

    from trimtab.data import batches

    chosen = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(seed))[:SAMPLES]
    ((x, classes),) = batches(dataset.train.take(chosen), SAMPLES, dataset=dataset, normalize="standard")
    return x, classes


def drawn(network: str, case: str, shape: tuple[int, ...], seed: int) -> "nn.Module":
    """A network, its weights drawn with a seed; BatchNorm is before the activation."""
    import torch

    from trimtab.networks import build
    from trimtab.norms import Norm

    norm = Norm("bn", before_activation=True) if case == "bn" else "none"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(network, norm, input_shape=shape)


def look(network: str, case: str, dataset: "Dataset", seed: int) -> dict[str, dict[str, float]]:
    """For each loss and optimizer, at which multiples of η* the loss begins to rise and training fails."""
    from trimtab.prediction import measure_lambda_max
    from trimtab.prediction.divergence import classification, edges, middle, momentum_of
    from trimtab.theory.mean_field.eigenvalue import max_learning_rate

    x, classes = samples(dataset, seed)
    model = drawn(network, case, tuple(x.shape[1:]), seed)
    found = {}
    for loss in LOSSES:
        train, frozen = (
            measure_lambda_max(model, x, loss=loss, statistics=mode, seconds=1e6, memory=1e15).lambda_max  # type: ignore[arg-type]
            for mode in ("batch", "frozen")
        )
        for optimizer in OPTIMIZERS:
            largest = max_learning_rate(train, momentum_of(optimizer))
            seen = edges(classification(model, x, classes, 10, loss), optimizer, largest)
            # The first step is that of plain descent whatever the momentum: the loss rises above 2/λ.
            rise = middle(seen.rise) * (1 + momentum_of(optimizer))
            found[f"{loss}-{optimizer}"] = {
                "rise over η* of train mode": rise,
                "rise over η* of frozen mode": rise * frozen / train,
                "failure over η* of train mode": middle(seen.fail),
            }
    return found
