"""bnp, Fig. 5: the 5-layer CNN at batch sizes 128 and 2, two optimizers, and the smallest batch sizes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.claims.experiments.registry import Context, with_both_inputs
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import enter_accuracies, enter_runs, train_cases
from trimtab.data import load

ADAM_RATE = 0.001
"""Adam's usual rate: the paper prints none for most methods."""
_CIFAR = ("cifar10",)


@with_both_inputs("cnn5-128", "5-layer CNN, batch size 128", small=10, seeds=(2, 3), gpu=8, paper=8, needs=_CIFAR)
def batch_128(findings: Findings, context: Context, normalize: str) -> None:
    """Four methods at batch size 128, and the vanilla network with Adam at the printed rate."""
    small = context.size == "small"
    rates, seeds = (1, 3) if small else (3, 5)
    shared = _shared(normalize, {"epochs": 2 if small else 20}, 128)
    cases = {method: {"method": method} for method in ("vanilla", "bn", "bn4", "bnp")}
    trained = train_cases(context, cases, shared, context.seeds(seeds), rates=rates)
    printed = {"vanilla-adam-0.1": {"method": "vanilla", "optimizer": "adam", "lr": 0.1}}
    trained |= train_cases(context, printed, shared, context.seeds(seeds))
    enter_runs(findings, trained, load("cifar10", context.data_root).classes)
    enter_norms(findings, context, normalize)
    findings.settings |= {**shared, "rates": rates}
    findings.notes.append("vanilla is trained by Adam at 0.001: at the printed 0.1 it is vanilla-adam-0.1.")


@with_both_inputs("cnn5-2", "5-layer CNN, batch size 2", small=6.5, seeds=(2, 3), gpu=10, paper=10, needs=_CIFAR)
def batch_2(findings: Findings, context: Context, normalize: str) -> None:
    """Five methods at batch size 2."""
    small = context.size == "small"
    rates, seeds = (1, 3) if small else (3, 5)
    shared = _shared(normalize, {"steps": 8_000} if small else {"epochs": 3}, 2)
    cases = {method: {"method": method} for method in ("vanilla", "bn", "brn", "bn4", "bnp")}
    trained = train_cases(context, cases, shared, context.seeds(seeds), rates=rates)
    enter_runs(findings, trained, load("cifar10", context.data_root).classes)
    findings.settings |= {**shared, "rates": rates}


# ---- Optimizers ------------------------------------------------------------------------------------------------------

# Rates of SGD are those of Table 3, and 0.1 for bn4, for which it has Adam's alone.
_SGD: dict[int, dict[str, float]] = {
    128: {"vanilla": 0.1, "bn4": 0.1, "bn": 0.1, "bnp": 0.1},
    2: {"vanilla": 0.001, "bn": 0.001, "bnp": 0.01},
}
_TUNED = ("vanilla", "bn4")
"""At batch size 128 each optimizer has three rates for these, as their claim says."""


@with_both_inputs("cnn5-optimizers", "5-layer CNN by SGD and by Adam", small=15, second_pass=True, gpu=15, needs=_CIFAR)
def optimizers(findings: Findings, context: Context, normalize: str) -> None:
    """SGD and Adam, at batch sizes 128 and 2."""
    small = context.size == "small"
    seeds = context.seeds(3 if small else 5)
    lengths: dict[int, dict[str, Any]] = {
        128: {"steps": 390} if small else {"epochs": 10},
        2: {"steps": 4_000} if small else {"epochs": 1},
    }
    classes = load("cifar10", context.data_root).classes
    for size, rates_of in _SGD.items():
        shared = {**_shared(normalize, lengths[size], size), "evaluations": 2}
        tuned: dict[str, dict[str, Any]] = {}
        at_printed: dict[str, dict[str, Any]] = {}
        for method, lr in rates_of.items():
            sgd = {"method": method, "optimizer": "sgd", "lr": lr}
            tuned[f"{method}-adam"] = {"method": method, "optimizer": "adam", "lr": _adam_rate(method)}
            chosen = not small or (size == 128 and method in _TUNED)
            (tuned if chosen else at_printed)[f"{method}-sgd"] = sgd
        trained = train_cases(context, tuned, shared, seeds, rates=3)
        trained |= train_cases(context, at_printed, shared, seeds) if at_printed else {}
        enter_accuracies(findings, trained, classes, f" at batch {size}")
        findings.settings[f"length at batch {size}"] = lengths[size]
    findings.settings |= {"data": "cifar10", "network": "cnn5", "normalize": normalize}


def _adam_rate(method: str) -> float:
    return 0.005 if method == "bn4" else ADAM_RATE  # Table 3 has one for bn4 at batch size 128


# ---- The norm of what BNP preconditions with -------------------------------------------------------------------------


def enter_norms(findings: Findings, context: Context, normalize: str) -> None:
    """Enter ‖𝓗P‖²/(N √(rs)) of each convolution at the first step, on batches of 128, 2 and 1: the paper's estimate."""
    from trimtab.data import batches
    from trimtab.networks import build

    dataset = load("cifar10", context.data_root)
    torch.manual_seed(context.seeds(1)[0])
    model = build("cnn5").to(context.device)
    for size in (128, 2, 1):
        generator = torch.Generator().manual_seed(context.seeds(1)[0])
        drawn = batches(dataset.train, size, dataset=dataset, generator=generator, normalize=normalize)  # type: ignore[arg-type]
        images = next(iter(drawn))[0].to(context.device)
        for name, ratio in norms_over_estimate(model, images).items():
            findings.number(f"norm over its estimate at batch {size}", name, ratio)


@torch.no_grad()
def norms_over_estimate(model: nn.Module, images: Tensor) -> dict[str, float]:
    """‖𝓗P‖²/(N √(rs)) of each convolution of a network, with the statistics of these images by channel.

    The columns of 𝓗P are those of the patches, centred and scaled by channel, beside one of ones.
    """
    found: dict[str, float] = {}

    def look(name: str, layer: nn.Conv2d, x: Tensor, y: Tensor) -> None:
        x = x.double()
        variance, mean = torch.var_mean(x, (0, 2, 3), keepdim=True, correction=0)
        scale = (variance + 1e-2 * variance.max() + 1e-4).sqrt()
        sites = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
        per_channel = layer.kernel_size[0] * layer.kernel_size[1]
        shift, factor = (t.flatten().repeat_interleave(per_channel)[:, None] for t in (mean, scale))
        rows = ((sites - shift) / factor).transpose(1, 2).flatten(0, 1)
        rows = torch.cat([rows.new_ones(len(rows), 1), rows], 1)
        positions = y.shape[-2] * y.shape[-1]
        norm = torch.linalg.eigvalsh(rows.T @ rows)[-1]
        found[name] = float(norm) / (len(x) * positions**0.5)

    convolutions = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    handles = [
        layer.register_forward_hook(lambda module, args, y, name=name: look(name, module, args[0], y))
        for name, layer in convolutions.items()
    ]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return found


# ---- The smallest batch sizes ----------------------------------------------------------------------------------------

_BATCHES = (60, 16, 8, 6, 4, 3, 2)
_ROWS = {"cnn5": (128, 2), "mlp3x100": (60, 6)}
"""Batch sizes whose rates are printed, for BN too."""


def nearest_row(network: str, size: int) -> int:
    """The batch size nearest to one, as a ratio, whose rates are printed; of two that are as near the smaller."""
    return min(sorted(_ROWS[network]), key=lambda row: round(max(row, size) / min(row, size), 9))


@with_both_inputs(
    "smallest-batches",
    "How small batches may be for BN and Batch Renorm",
    small=7.5,
    seeds=(2, 3),
    gpu=15,
    needs=_CIFAR,
)
def smallest_batches(findings: Findings, context: Context, normalize: str) -> None:
    """BN and Batch Renorm beside the vanilla network as batches become smaller, in the CNN and in the dense network."""
    from trimtab.training.recipes import resolve
    from trimtab.training.settings import Settings

    small = context.size == "small"
    seeds, longest = context.seeds(3 if small else 5), 4_000 if small else 10_000
    at_size: dict[str, dict[str, dict[str, Any]]] = {}
    for network in _ROWS:
        for size in _BATCHES:
            methods = ["vanilla", "bn"] + (["brn"] if network == "cnn5" and size in (8, 4, 3, 2) else [])
            row = nearest_row(network, size)
            # Above 8, as many samples as at 8.
            own = {"network": network, "batch_size": size, "steps": min(longest, 8 * longest // size)}
            cases = at_size[f" at batch {size}" + ("" if network == "cnn5" else ", dense")] = {}
            for method in methods:
                usual = resolve(Settings(data="cifar10", network=network, method=method, batch_size=row))
                cases[method] = {"method": method, "optimizer": usual.optimizer, "lr": usual.lr, **own}
    every = {method + suffix: case for suffix, cases in at_size.items() for method, case in cases.items()}
    shared = {"data": "cifar10", "normalize": normalize, "evaluations": 2, "train_subset": 0}
    trained = train_cases(context, every, shared, seeds, rates=1 if small else 3)
    classes = load("cifar10", context.data_root).classes
    for suffix, cases in at_size.items():
        enter_accuracies(findings, {method: trained[method + suffix] for method in cases}, classes, suffix)
    enter_smallest(findings)
    findings.settings |= {"data": "cifar10", "normalize": normalize, "steps": longest, "batch sizes": list(_BATCHES)}
    findings.notes.append("Where no rate is printed, it is that of the nearest batch size with one.")


def enter_smallest(findings: Findings) -> None:
    """Enter the smallest batch size at which BN is at most 1 point below the vanilla network, seed by seed.

    Where there is none in the dense network, it is taken as just above the largest one; in the CNN as infinite.
    """
    for network, words, none in (("cnn5", "", float("inf")), ("mlp3x100", ", dense", max(_BATCHES) + 1.0)):
        seeds = findings.numbers[f"acc at batch 2{words}"]["vanilla"]
        for seed in seeds:
            enough = []
            for size in _BATCHES:
                acc = findings.numbers[f"acc at batch {size}{words}"]
                if acc["bn"].get(seed, -1.0) >= acc["vanilla"][seed] - 1:
                    enough.append(size)
            findings.number("smallest batch of bn", network, min(enough, default=none), seed=seed, unit="factor")


def _shared(normalize: str, length: dict[str, Any], size: int) -> dict[str, Any]:
    shared = {"data": "cifar10", "network": "cnn5", "normalize": normalize, "batch_size": size, **length}
    return {**shared, "train_subset": 0}  # no claim asks how well it knows them
