"""Two networks small enough to train in a second, for 8×8 images in ten classes."""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from torch import nn

Norm = Literal["none", "bn", "ln"]


def small_mlp(norm: Norm) -> nn.Sequential:
    """Three hidden layers of 50 units, normalized after the activation as in the bnp paper."""
    widths = (64, 50, 50, 50)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), *_normalization(norm, outputs, image=False)]
    return nn.Sequential(*layers, nn.Linear(50, 10))


def small_cnn(norm: Norm) -> nn.Sequential:
    """Two convolutions with pooling and a linear layer, normalized after the activation."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        layers += [*_normalization(norm, outputs, image=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 2 * 2, 10))


NETWORKS: dict[str, Callable[[Norm], nn.Sequential]] = {"cnn": small_cnn, "mlp": small_mlp}


def build(network: str, norm: Norm) -> nn.Module:
    """A network by name, with Glorot uniform weights and zero biases."""
    model = NETWORKS[network](norm)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def _normalization(norm: Norm, width: int, *, image: bool) -> list[nn.Module]:
    if norm == "bn":
        return [nn.BatchNorm2d(width) if image else nn.BatchNorm1d(width)]
    if norm == "ln":
        return [nn.GroupNorm(1, width) if image else nn.LayerNorm(width)]
    return []
