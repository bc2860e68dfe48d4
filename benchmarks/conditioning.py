"""bnp Fig. 8 as a table: python benchmarks/conditioning.py [--epochs 5] [--seeds 3] (three minutes of a core).

The network of two layers of 100 on CIFAR-10, batches of 60, in double precision, with the learning rates of the paper's
Table 2. At some steps: κ of the Hessian of the first output unit's weights and bias, on the batch of the step, before
and after the change of variables, κ(D) of that layer, and its inputs' condition numbers. Medians over the seeds. A
second table has all layers at the end, and a third one the noise of batch statistics with BatchNorm.
"""

import argparse
from functools import cache
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trimtab
from trimtab.data import Dataset, batches, load
from trimtab.networks import build
from trimtab.probes import BatchNoise, Conditioning, LayerConditioning
from trimtab.records import machine
from trimtab.training.recipes import MLP_RATES

BATCH = 60
RATES = MLP_RATES["cifar10", BATCH]
COLUMNS = ("inputs", "centred", "normalized", "scaling", "hessian", "preconditioned")
NOISE = {
    "Var μ_B": "mu_variance",
    "/ predicted": "mu_ratio",
    "Var σ_B": "sigma_variance",
    "/ predicted ": "sigma_ratio",
    "kurtosis": "kurtosis",
    "ζ": "zeta",
    "from μ_B": "zeta_from_mu",
    "from σ_B": "zeta_from_sigma",
    "parts: μ_B": "mu_ratio_split",
    "parts: σ_B": "sigma_ratio_split",
}
HEAD = ("κ(Ĥ)", "κ(ĤU)", "κ(Ĝ)", "κ(D)", "κ(Hessian)", "after BNP")


@cache
def cifar() -> Dataset:
    """Read once."""
    return load("cifar10")


def loss_fn(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(model(batch[0]), batch[1])


def train(method: str, seed: int, steps: int, at: set[int]) -> tuple[dict[int, dict[str, Any]], nn.Module, Any]:
    """One run; what was measured at some of its steps, before the step, and the model with its last batch."""
    torch.manual_seed(seed)
    data = cifar()
    norm = "bn" if method == "bn" else "none"
    model = build("mlp2x100", norm).double()
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    optimizer = torch.optim.SGD(model.parameters(), RATES[method])
    bnp = trimtab.BNP(model).attach(optimizer) if method == "bnp" else None
    exact = Conditioning(units=1, only=(last,), eps1=0, eps2=0)
    regular = Conditioning(units=1, only=(last,), bnp=bnp)
    generator = torch.Generator().manual_seed(seed)
    epochs = batches(data.train, BATCH, dataset=data, generator=generator, normalize="unit", drop_last=True)
    found: dict[int, dict[str, Any]] = {}
    step = 0
    while True:
        for inputs, targets in epochs:
            batch = inputs.double(), targets
            if step in at:
                found[step] = {
                    "exact": exact(model, loss_fn, batch).layers[last],
                    "regular": regular(model, loss_fn, batch).layers[last],
                }
            if step == steps:
                return found, model, batch
            optimizer.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            step += 1


def numbers(layers: list[LayerConditioning]) -> str:
    """Medians over runs."""
    return "".join(f"{median(getattr(layer, name) for layer in layers):>13.3g}" for name in COLUMNS)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    told = parser.parse_args()
    torch.set_num_threads(1)
    per_epoch = 50_000 // BATCH
    at = [0, 100, *[per_epoch * epoch for epoch in range(1, told.epochs + 1)]]
    print(f"mlp2x100 on CIFAR-10, batch {BATCH}, {told.seeds} seeds, medians. {machine()}.")
    for method in ("vanilla", "bnp"):
        runs = [train(method, seed, at[-1], set(at)) for seed in range(told.seeds)]
        for kind, words in (
            ("exact", "batch statistics, ε₁ = ε₂ = 0, as in eq. 12"),
            ("regular", "running statistics of BNP" if method == "bnp" else "batch statistics, ε₁ = 0.01, ε₂ = 0.0001"),
        ):
            print(f"\nOutput layer, first unit; trained by {method}, lr {RATES[method]:g}; {words}")
            print(f"{'step':>6}{'rank':>6}" + "".join(f"{head:>13}" for head in HEAD))
            for step in at:
                layers = [found[step][kind] for found, _, _ in runs]
                print(f"{step:>6}{median(layer.hessian_rank for layer in layers):>6.0f}{numbers(layers)}")
        probe = Conditioning(units=3)
        print(f"\nAll layers at the end, trained by {method}; median of 3 units; batch statistics, ε₁ = 0.01")
        whole = [probe(model, loss_fn, batch).layers for _, model, batch in runs]
        for name in whole[0]:
            layers = [one[name] for one in whole]
            print(f"{name:>6}{median(layer.hessian_rank for layer in layers):>6.0f}{numbers(layers)}")
    _, model, _ = train("bn", 0, per_epoch, set())
    print(f"\nmlp2x100 with BatchNorm after one epoch: noise of its statistics at M = {BATCH}, drawn from 2000 images")
    many = batches(cifar().train, 2000, dataset=cifar(), generator=torch.Generator().manual_seed(1), normalize="unit")
    inputs, targets = next(iter(many))
    found = BatchNoise(batch_size=BATCH, parts=20)(model, loss_fn, (inputs.double(), targets))
    print(f"{'layer':>6}" + "".join(f"{head.strip():>12}" for head in NOISE))
    for name, noise in found.layers.items():
        print(f"{name:>6}" + "".join(f"{getattr(noise, kind):>12.3g}" for kind in NOISE.values()))
    print(f"gradient noise scale: {found.noise_scale:.4g} samples (from {found.parts} parts of {found.part_size})")


if __name__ == "__main__":
    main()
