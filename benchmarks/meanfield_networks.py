"""Networks to judge mean field by, drawn from what people build: used by meanfield_cross.py.

`draw(seed, index)` is a description in plain data; `build(spec, shape, seed)` makes a network of it with fresh weights.
"""

import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

Spec = dict[str, Any]
Shape = tuple[int, ...]

OUTPUTS = 10
DATA = ("white", "mnist", "cifar10")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
}
MOST_WORK = 40e6  # operations of one sample's forward: what a Gram matrix costs is in proportion


def draw(seed: int, index: int) -> Spec:
    """The description of a network: of twenty that follow one another 11 are dense, 6 convolutional, 3 residual."""
    families = ["dense"] * 11 + ["conv"] * 6 + ["residual"] * 3
    Random(f"{seed} families {index // 20}").shuffle(families)
    family, random = families[index % 20], Random(f"{seed} {index}")
    while True:
        spec = {"dense": _dense, "conv": _conv, "residual": _residual}[family](random)
        spec = {"family": family, **spec}
        if max(work(spec, input_shape(spec, data)) for data in DATA) <= MOST_WORK:
            return spec


def _pick(random: Random, **weights: float) -> str:
    return random.choices(list(weights), list(weights.values()))[0]


def _activation(random: Random) -> str:
    return _pick(random, relu=40, leaky_relu=12, gelu=14, silu=12, elu=10, tanh=12)


def _gamma(random: Random) -> float:
    return 1.0 if random.random() < 0.6 else round(random.uniform(0.5, 3), 2)


def _width(random: Random) -> int:
    some = random.choices(((16, 24, 32, 48), (64, 96, 128, 192, 256, 384, 512), (640, 768, 1000)), (10, 78, 12))[0]
    return random.choice(some)


def _white(random: Random) -> int:
    return random.choice((64, 100, 128, 200, 256, 400, 512, 784))


def _dense(random: Random) -> Spec:
    hidden = random.choices((1, 2, 3, 4, 5, 6, 7), (18, 24, 22, 14, 9, 7, 6))[0]
    first, pattern = _width(random), _pick(random, constant=60, halved=20, free=20)
    widths = [first] * hidden
    if pattern == "halved":
        widths = [max(first >> number, 16) for number in range(hidden)]
    elif pattern == "free":
        widths = [_width(random) for _ in range(hidden)]
    norm = _pick(random, batch=45, none=35, layer=20)
    return {
        "widths": widths,
        "activation": _activation(random),
        "norm": norm,
        "gamma": _gamma(random) if norm != "none" else 1.0,
        "init": _pick(random, default=60, he=40),
        "white": _white(random),
    }


def _conv(random: Random) -> Spec:
    count = random.choices((1, 2, 3, 4), (15, 35, 30, 20))[0]
    size, channels = 14, random.choice((16, 24, 32, 48, 64, 96))
    padded, wider = random.random() < 0.7, random.random() < 0.6
    down = _pick(random, stride=35, max=40, avg=25)
    layers = []
    for number in range(count):
        kernel = 5 if random.random() < 0.2 and size > 6 else 3
        smaller = random.random() < 0.65
        padding = kernel // 2 if padded else 0
        stride = 2 if smaller and down == "stride" else 1
        after = (size + 2 * padding - kernel) // stride + 1
        pool = down if smaller and down != "stride" and after >= 4 else "none"
        after = after // 2 if pool != "none" else after
        if after < 2:
            break
        layers.append({"channels": channels, "kernel": kernel, "stride": stride, "padding": padding, "pool": pool})
        size = after
        if wider and smaller and number < count - 1:
            channels = min(2 * channels, 128)
    norm = _pick(random, batch=50, none=35, group=15)
    head = _pick(random, flatten=50, mean=50)
    return {
        "layers": layers,
        "activation": _activation(random),
        "norm": norm,
        "groups": random.choice((1, 4, 8)),
        "gamma": _gamma(random) if norm != "none" else 1.0,
        "bias": norm != "batch" or random.random() < 0.5,
        "init": _pick(random, default=60, he=40),
        "head": head,
        "hidden": random.choice((64, 128, 256)) if head == "flatten" and random.random() < 0.4 else 0,
        "full": layers[0]["stride"] == 2 and random.random() < 0.5,
    }


def _residual(random: Random) -> Spec:
    images, order = random.random() < 0.6, _pick(random, pre=50, post=50)
    norm = _pick(random, batch=80, none=10, group=10) if images else _pick(random, batch=60, layer=30, none=10)
    stages = random.choice(([1], [1, 1], [1, 1], [2, 2], [1, 1, 1])) if images else [random.choice((1, 2, 3, 4))]
    return {
        "images": images,
        "order": order,
        "width": random.choice((16, 24, 32, 48)) if images else random.choice((64, 96, 128, 192, 256, 384)),
        "stages": stages,
        "activation": _pick(random, relu=65, gelu=15, silu=10, leaky_relu=10),
        "norm": norm,
        "groups": random.choice((1, 4, 8)),
        "gamma": _gamma(random) if norm != "none" else 1.0,
        "bias": not images or norm != "batch",
        "init": _pick(random, default=50, he=50),
        "white": _white(random),
    }


def input_shape(spec: Spec, data: str) -> Shape:
    """The shape of one input. Images are flattened for dense networks, and most others see them at half size."""
    if spec["family"] == "dense" or not spec.get("images", True):
        return {"white": (spec["white"],), "mnist": (784,), "cifar10": (3072,)}[data]
    if spec.get("full", False):
        return {"white": (3, 16, 16), "mnist": (1, 28, 28), "cifar10": (3, 32, 32)}[data]
    return {"white": (3, 16, 16), "mnist": (1, 14, 14), "cifar10": (3, 16, 16)}[data]


class Residual(nn.Module):
    """A branch beside a shortcut, and what follows their sum."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.after = branch, shortcut, after

    def forward(self, x: Tensor) -> Tensor:
        """The sum, and what follows it."""
        return self.after(self.branch(x) + self.shortcut(x))  # type: ignore[no-any-return]


def build(spec: Spec, shape: Shape, seed: int) -> nn.Module:
    """A network of that description with weights drawn by the seed, in training mode."""
    torch.manual_seed(seed)
    if spec["family"] == "dense":
        model = _build_dense(spec, shape)
    elif spec["family"] == "conv":
        model = _build_conv(spec, shape)
    else:
        model = _build_residual(spec, shape)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and spec["init"] == "he":
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm):
            nn.init.constant_(module.weight, spec["gamma"])
    return model


def _norm(spec: Spec, channels: int, images: bool) -> list[nn.Module]:
    if spec["norm"] == "none":
        return []
    if spec["norm"] == "batch":
        return [nn.BatchNorm2d(channels) if images else nn.BatchNorm1d(channels)]
    return [nn.GroupNorm(spec["groups"], channels) if spec["norm"] == "group" else nn.LayerNorm(channels)]


def _build_dense(spec: Spec, shape: Shape) -> nn.Module:
    parts: list[nn.Module] = []
    before = shape[0]
    for width in spec["widths"]:
        parts += [nn.Linear(before, width), *_norm(spec, width, False), ACTIVATIONS[spec["activation"]]()]
        before = width
    return nn.Sequential(*parts, nn.Linear(before, OUTPUTS))


def _build_conv(spec: Spec, shape: Shape) -> nn.Module:
    parts: list[nn.Module] = []
    before, size = shape[0], shape[1]
    for layer in spec["layers"]:
        channels, kernel, stride, padding = (layer[name] for name in ("channels", "kernel", "stride", "padding"))
        parts.append(nn.Conv2d(before, channels, kernel, stride, padding, bias=spec["bias"]))
        parts += [*_norm(spec, channels, True), ACTIVATIONS[spec["activation"]]()]
        before, size = channels, (size + 2 * padding - kernel) // stride + 1
        if layer["pool"] != "none":
            parts.append(nn.MaxPool2d(2) if layer["pool"] == "max" else nn.AvgPool2d(2))
            size //= 2
    if spec["head"] == "mean":
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    else:
        parts.append(nn.Flatten())
        before *= size * size
    if spec["hidden"]:
        parts += [nn.Linear(before, spec["hidden"]), ACTIVATIONS[spec["activation"]]()]
        before = spec["hidden"]
    return nn.Sequential(*parts, nn.Linear(before, OUTPUTS))


def _build_residual(spec: Spec, shape: Shape) -> nn.Module:
    images, pre = spec["images"], spec["order"] == "pre"

    def layer(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> nn.Module:
        if images:
            return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=spec["bias"])
        return nn.Linear(inputs, outputs)

    def norm(channels: int) -> list[nn.Module]:
        return _norm(spec, channels, images)

    def activation() -> nn.Module:
        return ACTIVATIONS[spec["activation"]]()

    width = spec["width"]
    parts = [layer(shape[0], width), *([] if pre else [*norm(width), activation()])]
    for stage, blocks in enumerate(spec["stages"]):
        for block in range(blocks):
            wider = images and stage > 0 and block == 0
            outputs, stride = (2 * width, 2) if wider else (width, 1)
            first, second = layer(width, outputs, stride), layer(outputs, outputs)
            shortcut: nn.Module = nn.Identity()
            if wider:
                shortcut = nn.Sequential(layer(width, outputs, stride, 1), *([] if pre else norm(outputs)))
            if pre:
                branch = [*norm(width), activation(), first, *norm(outputs), activation(), second]
            else:
                branch = [first, *norm(outputs), activation(), second, *norm(outputs)]
            after = nn.Identity() if pre else activation()
            parts.append(Residual(nn.Sequential(*branch), shortcut, after))
            width = outputs
    parts += [*norm(width), activation()] if pre else []
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if images else []
    return nn.Sequential(*parts, nn.Linear(width, OUTPUTS))


def work(spec: Spec, shape: Shape) -> float:
    """The operations of the forward of one sample, in its linear layers and convolutions."""
    return _work(json.dumps(spec), shape)


@cache
def _work(text: str, shape: Shape) -> float:
    total = 0.0

    def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += 2.0 * output.numel() * module.weight[0].numel()  # type: ignore[index]

    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = build(json.loads(text), shape, 0).eval()
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_hook(add)
        with torch.no_grad():
            model(torch.empty(1, *shape))
    return total


def has_batch_norm(spec: Spec) -> bool:
    """Whether samples share statistics."""
    return spec["norm"] == "batch"  # type: ignore[no-any-return]


def describe(spec: Spec) -> str:
    """One line."""
    if spec["family"] == "dense":
        body = "-".join(map(str, spec["widths"]))
    elif spec["family"] == "conv":
        body = " ".join(
            f"{one['channels']}k{one['kernel']}"
            + (f"s{one['stride']}" if one["stride"] > 1 else "")
            + (f"p{one['padding']}" if one["padding"] else "")
            + ("" if one["pool"] == "none" else f"/{one['pool']}")
            for one in spec["layers"]
        )
        body += (
            f" {spec['head']}" + (f" {spec['hidden']}" if spec["hidden"] else "") + (" full" if spec["full"] else "")
        )
    else:
        body = f"{spec['order']} {'conv' if spec['images'] else 'dense'} {spec['width']}×{spec['stages']}"
    norm = spec["norm"] + (str(spec["groups"]) if spec["norm"] == "group" else "")
    gamma = f" γ {spec['gamma']:g}" if spec["gamma"] != 1 else ""
    return f"{spec['family']} {body}, {spec['activation']}, {norm}{gamma}, {spec['init']}"
