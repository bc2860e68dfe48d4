"""The networks of the meanfield paper, drawn, and what is looked at inside them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.theory.mean_field import Conv, Dense, Layer, draw_network

DRAWS = 20
SIGMAS: dict[str, Any] = {"sigma_w2": 2.0, "sigma_b2": 0.5}


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn.

    Attributes:
        layers: Of the network.
        samples: White noise to measure on.
        hidden: The width that the paper divides by; None: each layer's own.
    """

    layers: tuple[Layer, ...]
    samples: int
    hidden: int | None = None


PAPERS = {
    "dense": Drawn((Dense(784, 1000), Dense(1000, 1000), Dense(1000, 1000), Dense(1000, 10)), 300, 1000),
    "conv": Drawn((Conv(3, 30, 3, 2, size=32), Conv(30, 60, 3, 2), Conv(60, 90, 3, 2), Dense(810, 10)), 128),
}


def drawn_network(drawn: Drawn, gamma: float | None, seed: int, samples: int | None = None) -> tuple[nn.Module, Tensor]:
    """A network and white noise; torch's generator is as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = draw_network(drawn.layers, gamma=gamma, **SIGMAS)
        return network, torch.randn(samples or drawn.samples, *network.input_shape)


def freeze_statistics(network: nn.Module, x: Tensor) -> None:
    """Put a network into evaluation mode, with the statistics that these samples have in each BatchNorm."""

    def take(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
        assert norm.running_mean is not None and norm.running_var is not None
        by_unit = args[0].transpose(0, 1).flatten(1)
        norm.running_mean.copy_(by_unit.mean(1))
        norm.running_var.copy_(by_unit.var(1, correction=0))

    network.eval()
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    handles = [norm.register_forward_pre_hook(take) for norm in norms]
    try:
        with torch.no_grad():
            network(x)
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, slots=True)
class Seen:
    """A dense layer or a convolution on samples: dimensions (samples, channels, positions).

    Attributes:
        name: Of the module.
        inputs: h, its input at the positions of its input.
        patches: The same as the weights of one output see it, at the positions of its output.
        outputs: z.
        gradients: ∂f/∂z of the network's first output.
    """

    name: str
    inputs: Tensor
    patches: Tensor
    outputs: Tensor
    gradients: Tensor


def see(network: nn.Module, x: Tensor) -> list[Seen]:
    """Run a network with frozen statistics forward and backward, and return what each layer has, in order."""
    freeze_statistics(network, x)
    kept: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    handles = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):

            def keep(module: nn.Module, args: tuple[Tensor, ...], z: Tensor, name: str = name) -> None:
                kept.append((name, module, args[0].detach(), z))

            handles.append(module.register_forward_hook(keep))
    try:
        values = network(x)
        slopes = torch.autograd.grad(values.flatten(1)[:, 0].sum(), [z for *_, z in kept])
    finally:
        for handle in handles:
            handle.remove()
    found = []
    for (name, module, h, z), slope in zip(kept, slopes, strict=True):
        patches = h.unsqueeze(2)
        if isinstance(module, nn.Conv2d):
            patches = nn.functional.unfold(
                h,
                module.kernel_size,
                stride=module.stride,
                padding=module.padding,  # type: ignore[arg-type]
            )
        found.append(Seen(name, *map(_flat, (h, patches, z.detach(), slope))))
    return found


def _flat(x: Tensor) -> Tensor:
    """(samples, channels, positions); one position, where there are none."""
    return x.flatten(2) if x.ndim > 2 else x.unsqueeze(2)


def product_of_pairs(x: Tensor) -> float:
    """The mean over pairs of different samples of the products of their rows."""
    x = x.double().flatten(1)
    count = len(x)
    return float(x.sum(0).square().sum() - x.square().sum()) / (count * (count - 1))


def product_of_weight_gradients(gradients: Tensor, patches: Tensor) -> float:
    """The mean over pairs of different samples of ⟨∂f/∂W, ∂f′/∂W⟩, which are sums over positions of δhᵀ."""
    if gradients.shape[2] > 1:
        return product_of_pairs(torch.einsum("nok,nik->noi", gradients, patches))
    delta, h = (x.double().flatten(1) for x in (gradients, patches))
    products = (delta @ delta.T) * (h @ h.T)
    return float(products.sum() - products.trace()) / (len(h) * (len(h) - 1))


def product_of_positions(x: Tensor, units: int) -> float:
    """The mean over pairs of samples and of different positions of the products over units, by units: q_αβ,xy."""
    count, positions = len(x), x.shape[2]
    everything = product_of_pairs(x.double().sum(2))
    same = product_of_pairs(x)
    return (everything - same) / (units * positions * (positions - 1)) if count > 1 and positions > 1 else float("nan")
