"""The small networks and the data of benchmarks/divergence.py."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from trimtab.norms import Norm

SAMPLES = 256
LARGEST = 16
"""Pixels of a side: larger images are averaged over windows of 2×2 pixels until they are not larger."""
DATA = ("digits", "mnist", "cifar10")
CLASSES = 10

Shape = tuple[int, ...]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


def dense(
    shape: Shape,
    *widths: int,
    norm: Norm | str = "none",
    activation: str = "relu",
    after: bool = False,
    init: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """Hidden layers of these widths and an output layer; `after` puts the norm behind the activation."""
    layers: list[nn.Module] = [nn.Flatten()]
    before = math.prod(shape)
    for width in widths:
        behind = [Norm.parse(norm).layer(width, 0), ACTIVATIONS[activation]()]
        layers += [nn.Linear(before, width), *(behind[::-1] if after else behind)]
        before = width
    model = nn.Sequential(*layers, nn.Linear(before, CLASSES))
    if init is not None:
        model.apply(init)
    return model


def conv(shape: Shape, *filters: int, norm: Norm | str = "none", pool: str = "max") -> nn.Module:
    """3×3 convolutions with ReLU, each followed by pooling or with stride 2, and an output layer."""
    layers: list[nn.Module] = []
    channels = shape[0]
    for number in filters:
        layers += [nn.Conv2d(channels, number, 3, stride=2 if pool == "stride" else 1, padding=1)]
        layers += [Norm.parse(norm).layer(number, 2), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool == "max" else [nn.AvgPool2d(2)] if pool == "mean" else []
        channels = number
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if pool == "mean" else [nn.Flatten()]
    with torch.no_grad():
        features = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Linear(features, CLASSES)).train()


class Residual(nn.Module):
    """A sum of what comes in and norm-ReLU-layer, twice."""

    def __init__(self, layer: Callable[[], nn.Module], norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.branch = nn.Sequential(norm(), nn.ReLU(), layer(), norm(), nn.ReLU(), layer())

    def forward(self, x: Tensor) -> Tensor:
        """With the shortcut."""
        return x + self.branch(x)  # type: ignore[no-any-return]


def residual_dense(shape: Shape, *, norm: Norm | str = "none", width: int = 64, blocks: int = 3) -> nn.Module:
    """A dense layer, blocks of two, and an output layer."""
    made = (Residual(lambda: nn.Linear(width, width), lambda: Norm.parse(norm).layer(width, 0)) for _ in range(blocks))
    last = [Norm.parse(norm).layer(width, 0), nn.ReLU(), nn.Linear(width, CLASSES)]
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), *made, *last)


def residual_conv(shape: Shape, *, norm: Norm | str = "none", width: int = 8) -> nn.Module:
    """A convolution with stride 2, a block of two, pooling and an output layer."""
    stem = nn.Conv2d(shape[0], width, 3, stride=2, padding=1)
    block = Residual(lambda: nn.Conv2d(width, width, 3, padding=1), lambda: Norm.parse(norm).layer(width, 2))
    last = [Norm.parse(norm).layer(width, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(stem, block, *last, nn.Linear(width, CLASSES))


def meanfield_init(module: nn.Module) -> None:
    """The weights of the mean-field paper, σ_w² = 2 and σ_b² = 0.5; torch's own are smaller."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_features))
        nn.init.normal_(module.bias, std=math.sqrt(0.5))


NETWORKS: dict[str, Callable[[Shape], nn.Module]] = {
    "dense 200": lambda shape: dense(shape, 200),
    "dense 200, BN": lambda shape: dense(shape, 200, norm="bn"),
    "dense 100-100": lambda shape: dense(shape, 100, 100),
    "dense 100-100, BN": lambda shape: dense(shape, 100, 100, norm="bn"),
    "dense 100-100, BN γ 0.5": lambda shape: dense(shape, 100, 100, norm=Norm("bn", gamma=0.5)),
    "dense 100-100, BN γ 2": lambda shape: dense(shape, 100, 100, norm=Norm("bn", gamma=2.0)),
    "dense 100-100, LN": lambda shape: dense(shape, 100, 100, norm="ln"),
    "dense 100-100, GN": lambda shape: dense(shape, 100, 100, norm="gn"),
    "dense 50-50-50, BN after ReLU": lambda shape: dense(shape, 50, 50, 50, norm="bn", after=True),
    "dense 50-50-50, GELU": lambda shape: dense(shape, 50, 50, 50, activation="gelu"),
    "dense 50-50-50, GELU, BN": lambda shape: dense(shape, 50, 50, 50, activation="gelu", norm="bn"),
    "dense 4×64, tanh": lambda shape: dense(shape, *[64] * 4, activation="tanh"),
    "dense 4×64, tanh, BN": lambda shape: dense(shape, *[64] * 4, activation="tanh", norm="bn"),
    "dense 6×48, LN": lambda shape: dense(shape, *[48] * 6, norm="ln"),
    "dense 6×48, BN": lambda shape: dense(shape, *[48] * 6, norm="bn"),
    "dense 3×200, mean field": lambda shape: dense(shape, *[200] * 3, init=meanfield_init),
    "dense 3×200, mean field, BN": lambda shape: dense(shape, *[200] * 3, norm="bn", init=meanfield_init),
    "residual dense": residual_dense,
    "residual dense, BN": partial(residual_dense, norm="bn"),
    "conv 8-16, max": lambda shape: conv(shape, 8, 16),
    "conv 8-16, max, BN": lambda shape: conv(shape, 8, 16, norm="bn"),
    "conv 8-16, stride, GN": lambda shape: conv(shape, 8, 16, pool="stride", norm="gn"),
    "conv 8-16, stride, BN γ 0.5": lambda shape: conv(shape, 8, 16, pool="stride", norm=Norm("bn", gamma=0.5)),
    "conv 8-16, mean": lambda shape: conv(shape, 8, 16, pool="mean"),
    "conv 8-16, mean, BN": lambda shape: conv(shape, 8, 16, pool="mean", norm="bn"),
    "residual conv, LN": partial(residual_conv, norm="ln"),
    "residual conv, BN": partial(residual_conv, norm="bn"),
}


def draw(name: str, shape: Shape, seed: int) -> nn.Module:
    """A network of `NETWORKS`, its weights drawn with a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name](shape)


def samples(name: str) -> tuple[Tensor, Tensor]:
    """Samples of a data set, standardized and then made smaller, and their classes."""
    from trimtab.data import batches, load

    dataset = load(name)
    chosen = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))[:SAMPLES]
    ((x, classes),) = batches(dataset.train.take(chosen), SAMPLES, dataset=dataset)
    while x.shape[-1] > LARGEST:
        x = nn.functional.avg_pool2d(x, 2)
    return x.contiguous(), classes
