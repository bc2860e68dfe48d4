"""Random networks of a list of layer descriptions, as modules: what mean field predicts can be measured on them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trimtab.theory.mean_field.activations import activation as find_activation
from trimtab.theory.mean_field.assemble import assemble
from trimtab.theory.mean_field.graph import Node
from trimtab.theory.mean_field.layers import Layer
from trimtab.theory.mean_field.operations import Activate, Add, Affine, Flatten, MeanPool, Normalize
from trimtab.theory.mean_field.pooling import ActivatedMaxPool


class Erf(nn.Module):
    """erf(x/√2)."""

    def forward(self, x: Tensor) -> Tensor:
        """Entry by entry."""
        return torch.erf(x / math.sqrt(2))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "linear": nn.Identity,
    "erf": Erf,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def draw_network(
    layers: Sequence[Layer],
    *,
    sigma_w2: float | Sequence[float],
    sigma_b2: float | Sequence[float],
    gamma: float | Sequence[float] | None = None,
    activation: str = "relu",
) -> "DrawnNetwork":
    """A network of these layers, its weights and biases drawn from torch's global generator (meanfield, eqs. 12, 27).

    Args:
        layers: As for `mean_field`.
        sigma_w2: As for `mean_field`.
        sigma_b2: As for `mean_field`.
        gamma: BatchNorm's γ; None: no BatchNorm.
        activation: One of `MODULES`.

    Raises:
        ValueError: If an argument is invalid.
    """
    if activation not in MODULES:
        raise ValueError(f"activation must be one of {', '.join(MODULES)}, not {activation!r}.")
    assembly = assemble(
        layers, sigma_w2=sigma_w2, sigma_b2=sigma_b2, gamma=gamma, activation=find_activation(activation)
    )
    return DrawnNetwork(assembly.nodes, MODULES[activation], assembly.start, image=assembly.image)


class DrawnNetwork(nn.Module):
    """The graph of a list of layers as a module; inputs are vectors, or images of (channels, height, width).

    Attributes:
        input_shape: The shape of an input.
    """

    def __init__(
        self, nodes: Sequence[Node], activation: Callable[[], nn.Module], start: tuple[int, int, int], image: bool
    ) -> None:
        super().__init__()
        self.input_shape: tuple[int, ...] = start if image else start[:1]
        self.reads = tuple(node.inputs for node in nodes)
        width = 0
        for number, node in enumerate(nodes):
            operation = node.operation
            image = image and not isinstance(operation, Flatten)
            width = operation.channels if isinstance(operation, Affine) else width
            self.add_module(f"node{number}", _module(operation, width, activation, image))

    def forward(self, x: Tensor) -> Tensor:
        """Node by node."""
        values: list[Tensor] = []
        for module, reads in zip(self.children(), self.reads, strict=True):
            inputs = [x if i < 0 else values[i] for i in reads]
            values.append(inputs[0] + inputs[1] if len(inputs) > 1 else module(inputs[0]))
        return values[-1]


def _module(operation: object, width: int, activation: Callable[[], nn.Module], image: bool) -> nn.Module:
    if isinstance(operation, Affine):
        return _affine(operation, image)
    if isinstance(operation, Normalize):
        norm = nn.BatchNorm2d(width) if image else nn.BatchNorm1d(width)
        nn.init.constant_(norm.weight, math.sqrt(operation.gamma2))
        return norm
    if isinstance(operation, Activate):
        return activation()
    if isinstance(operation, MeanPool):
        return nn.AvgPool2d(operation.window.kernel, operation.window.stride)
    if isinstance(operation, ActivatedMaxPool):
        return nn.Sequential(activation(), nn.MaxPool2d(operation.window.kernel, operation.window.stride))
    assert isinstance(operation, Flatten | Add)
    return nn.Flatten() if isinstance(operation, Flatten) else nn.Identity()


def _affine(operation: Affine, image: bool) -> nn.Module:
    window = operation.window
    inputs = operation.fan_in // window.sites
    layer: nn.Conv2d | nn.Linear
    if image:
        layer = nn.Conv2d(inputs, operation.channels, window.kernel, stride=window.stride, padding=window.padding)
    else:
        layer = nn.Linear(inputs, operation.channels)
    nn.init.normal_(layer.weight, std=math.sqrt(operation.sigma_w2 / operation.fan_in))
    assert layer.bias is not None
    nn.init.normal_(layer.bias, std=math.sqrt(operation.sigma_b2))
    return layer
