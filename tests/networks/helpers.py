"""What the tests of the networks share."""

from typing import Any

import torch
from torch import fx, nn

# The smallest images that leave each network at least 2×2 positions before its last convolution's norm.
SHAPES: dict[str, tuple[int, ...]] = {
    "mlp3x100": (1, 4, 4),
    "mlp2x100": (7,),
    "deep-mlp": (1, 4, 4),
    "cnn5": (1, 22, 22),
    "vgg": (3, 32, 32),
    "vgg16": (3, 32, 32),
    "dln25": (10,),
    "mf-mlp": (1, 4, 4),
    "mf-conv": (1, 23, 23),
    "regcnn": (1, 4, 4),
    "resnet110": (3, 8, 8),
    "preact110": (3, 8, 8),
    "resnet18": (3, 16, 16),
    "preact18": (3, 16, 16),
    "small-cnn": (1, 8, 8),
    "small-mlp": (1, 8, 8),
}
RESIDUAL = ("resnet110", "preact110", "resnet18", "preact18")
BEFORE = ("deep-mlp", "vgg", "vgg16", "mf-mlp", "mf-conv", "regcnn")
AFTER = ("mlp3x100", "mlp2x100", "cnn5", "small-cnn", "small-mlp")
PUBLISHED_BN = (nn.BatchNorm1d, nn.BatchNorm2d)


class Tracer(fx.Tracer):
    """Looks into our blocks and nowhere else."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, nn.Sequential) and not type(m).__module__.startswith("trimtab.networks")


def traced(model: nn.Module) -> tuple[list[fx.Node], dict[fx.Node, str]]:
    """The nodes of a network in forward order, and what each one is: a module's class, or a function's name."""
    graph = Tracer().trace(model)
    kinds: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            kinds[node] = type(model.get_submodule(str(node.target))).__name__
        elif node.op == "call_function":
            target: Any = node.target
            kinds[node] = target.__name__
    return [node for node in graph.nodes if node in kinds and kinds[node] != "Identity"], kinds


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def layers(model: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def inputs(name: str, batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, *SHAPES[name])
