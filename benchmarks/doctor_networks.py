"""The networks that benchmarks/doctor.py makes ill, by name, each with the data and the optimizer of its trainings."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from divergence_networks import conv, dense, residual_conv, residual_dense
from torch import Tensor, nn

from trimtab.networks.builder import Builder
from trimtab.networks.initialize import initialize
from trimtab.networks.residual import Plan, resnet
from trimtab.norms import Norm

CLASSES = 10
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Base:
    """Trainings that go well at the right rate.

    Attributes:
        network: Makes a network for inputs of some shape, with a norm.
        data: A data set.
        norm: Of the network.
        optimizer: One of `small_trainings.OPTIMIZERS`.
        hidden: The layer in which something is planted; what follows it is a norm, or an activation.
        batch_size: Of its batches.
        steps: Of a training.
        rectified: Whether ReLU or its like follows that layer, so that its units can be dead.
        dense: Whether it is fast in half precision on a CPU, which convolutions are not.
    """

    network: Callable[[Shape, str], nn.Module]
    data: str
    norm: str
    optimizer: str
    hidden: str
    batch_size: int = 32
    steps: int = 320
    rectified: bool = True
    dense: bool = False


class Attention(nn.Module):
    """Self-attention of two heads, of linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Among the positions of each sample."""
        count, positions, width = x.shape
        parts = self.queries_keys_values(x).view(count, positions, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(count, positions, width))
        return y


class Transformer(nn.Module):
    """Patches of 4×4 pixels, blocks of attention and two dense layers with LayerNorm before each, and their mean."""

    def __init__(self, shape: Shape, width: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Linear(16 * shape[0], width)
        self.places = nn.Parameter(0.02 * torch.randn((shape[1] // 4) * (shape[2] // 4), width))
        self.attentions = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), Attention(width)) for _ in range(blocks))
        self.dense = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        hidden = self.embed(patches) + self.places
        for attention, layers in zip(self.attentions, self.dense, strict=True):
            hidden = hidden + attention(hidden)
            hidden = hidden + layers(hidden)
        logits: Tensor = self.out(self.norm(hidden).mean(1))
        return logits


def transformer(shape: Shape, norm: str, *, width: int, blocks: int = 2) -> nn.Module:
    """With LayerNorm, whatever the norm."""
    return Transformer(shape, width, blocks)


def narrow_resnet18(shape: Shape, norm: str) -> nn.Module:
    """ResNet-18 with an eighth of its channels."""
    builder = Builder("resnet18", Norm.parse(norm), spare_biases=True)
    plan = Plan(widths=(8, 16, 32, 64), blocks=2, projection=True)
    model = resnet(builder, shape, CLASSES, plan=plan)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            initialize(layer, "he")
    return model


def _dense(*widths: int, after: bool = False, activation: str = "relu") -> Callable[[Shape, str], nn.Module]:
    return lambda shape, norm: dense(shape, *widths, norm=norm, after=after, activation=activation)


def _conv(*filters: int, pool: str) -> Callable[[Shape, str], nn.Module]:
    return lambda shape, norm: conv(shape, *filters, norm=norm, pool=pool)


def _residual_dense(shape: Shape, norm: str) -> nn.Module:
    return residual_dense(shape, norm=norm)


def _residual_conv(shape: Shape, norm: str, *, width: int = 8) -> nn.Module:
    return residual_conv(shape, norm=norm, width=width)


DEVELOPMENT = {
    "transformer 48, CIFAR-10": Base(partial(transformer, width=48), "cifar10", "ln", "adamw", "dense.0.1", dense=True),
    "dense 64-64, digits": Base(_dense(64, 64), "digits", "none", "sgd", "4", dense=True),
    "dense 64-64 BN, digits": Base(_dense(64, 64), "digits", "bn", "momentum", "4", dense=True),
    "dense 100-100-100, MNIST": Base(_dense(100, 100, 100), "mnist", "none", "adam", "4", dense=True),
    "dense 64-64-64 tanh BN, MNIST": Base(
        _dense(64, 64, 64, activation="tanh"), "mnist", "bn", "adam", "4", rectified=False, dense=True
    ),
    "dense 128-64, CIFAR-10": Base(_dense(128, 64), "cifar10", "none", "sgd", "4", dense=True),
    "dense 50-50-50 BN after ReLU, CIFAR-10": Base(
        _dense(50, 50, 50, after=True), "cifar10", "bn", "sgd", "4", batch_size=64, dense=True
    ),
    "residual dense LN, MNIST": Base(_residual_dense, "mnist", "ln", "momentum", "3.branch.2", dense=True),
    "conv 8-16, MNIST": Base(_conv(8, 16, pool="stride"), "mnist", "none", "momentum", "3"),
    "conv 8-16 BN, MNIST": Base(_conv(8, 16, pool="stride"), "mnist", "bn", "sgd", "3"),
    "conv 12-24 BN, max, MNIST": Base(_conv(12, 24, pool="max"), "mnist", "bn", "adam", "4", batch_size=16),
    "conv 8-16 GN, digits": Base(_conv(8, 16, pool="stride"), "digits", "gn", "adam", "3"),
    "conv 8-16 GN, CIFAR-10": Base(_conv(8, 16, pool="stride"), "cifar10", "gn", "sgd", "3"),
    "conv 8-16, mean, CIFAR-10": Base(_conv(8, 16, pool="mean"), "cifar10", "none", "adam", "4"),
    "conv 8-8-16 BN, CIFAR-10": Base(_conv(8, 8, 16, pool="stride"), "cifar10", "bn", "momentum", "3"),
    "residual conv GN, CIFAR-10": Base(_residual_conv, "cifar10", "gn", "momentum", "1.branch.2"),
    "residual conv BN, CIFAR-10": Base(_residual_conv, "cifar10", "bn", "sgd", "1.branch.2", batch_size=64),
    "transformer 32, digits": Base(partial(transformer, width=32), "digits", "ln", "adam", "dense.0.1", dense=True),
    "transformer 32, MNIST": Base(partial(transformer, width=32), "mnist", "ln", "momentum", "dense.0.1", dense=True),
    "ResNet-18 an eighth BN, CIFAR-10": Base(narrow_resnet18, "cifar10", "bn", "momentum", "5.conv1", steps=400),
}
HELD_OUT = {
    "dense 128-128, MNIST": Base(_dense(128, 128), "mnist", "none", "momentum", "4", dense=True),
    "dense 64-64-64 BN, CIFAR-10": Base(_dense(64, 64, 64), "cifar10", "bn", "adam", "4", dense=True),
    "dense 100-50 GELU, digits": Base(
        _dense(100, 50, activation="gelu"), "digits", "none", "adamw", "4", rectified=False, dense=True
    ),
    "conv 8-16, max, CIFAR-10": Base(_conv(8, 16, pool="max"), "cifar10", "none", "momentum", "4"),
    "conv 8-16-16 BN, MNIST": Base(_conv(8, 16, 16, pool="stride"), "mnist", "bn", "momentum", "3", batch_size=64),
    "conv 12-24 BN, mean, CIFAR-10": Base(_conv(12, 24, pool="mean"), "cifar10", "bn", "sgd", "4"),
    "conv 8-16 GN, mean, MNIST": Base(_conv(8, 16, pool="mean"), "mnist", "gn", "adam", "4"),
    "residual dense BN, digits": Base(_residual_dense, "digits", "bn", "sgd", "3.branch.2", dense=True),
    "residual conv LN, MNIST": Base(partial(_residual_conv, width=12), "mnist", "ln", "adam", "1.branch.2"),
    "transformer 40, CIFAR-10": Base(
        partial(transformer, width=40), "cifar10", "ln", "adam", "dense.0.1", batch_size=64, dense=True
    ),
}
HALVES = {"development": DEVELOPMENT, "held-out": HELD_OUT}
BASES = DEVELOPMENT | HELD_OUT
