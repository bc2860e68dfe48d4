"""Layers that are used as they are meant to be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.bnp.fuzz.draw import Draw

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
Shape = tuple[int, ...]


@dataclass
class Drawn:
    """A layer of a case.

    Attributes:
        kind: What it is, in a word, for the list of kinds.
        layer: The layer.
        shape: Gives the shape of an input.
        wrong: Whether BNP has to leave it alone, or to refuse it.
        change: What the layer's own forward does to its input first, if it does something.
    """

    kind: str
    layer: nn.Module
    shape: Callable[[], Shape]
    wrong: bool = False
    change: nn.Module | None = None


def rows(draw: Draw) -> int:
    """A number of samples: none now and then, one often."""
    return 0 if draw.chance(0.04) else 1 if draw.chance(0.15) else draw.size(large=0.02)


def linear(draw: Draw, dtype: torch.dtype) -> Drawn:
    """On inputs of one to four dimensions; now and then without inputs or outputs."""
    inputs, outputs = draw.size(), draw.size()
    if draw.chance(0.03):
        inputs, outputs = draw.pick([(0, outputs), (inputs, 0)])
    with_empty_weight = inputs * outputs == 0
    layer = nn.Linear(1, 1, dtype=dtype) if with_empty_weight else nn.Linear(inputs, outputs, dtype=dtype)
    if with_empty_weight:  # torch warns where it initializes these
        layer.in_features, layer.out_features = inputs, outputs
        layer.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=dtype))
        layer.bias = nn.Parameter(torch.zeros(outputs, dtype=dtype))
    if draw.chance(0.3):
        layer.bias = None  # type: ignore[assignment]
    extra = draw.pick([-1, 0, 0, 0, 1, 1, 2])
    if extra < 0:
        return Drawn("Linear", layer, lambda: (inputs,))
    middle = tuple(draw.number(1, 5) for _ in range(extra))
    return Drawn("Linear", layer, lambda: (rows(draw), *middle, inputs))


def convolution(draw: Draw, dtype: torch.dtype) -> Drawn:
    """With groups, dilation, all kinds of padding; with and without a dimension of samples."""
    space = draw.pick([1, 2, 2, 2, 3])
    groups = draw.pick([1, 1, 1, 2, 3])
    channels, outputs = groups * draw.pick([1, 2, 3, 4, 8, 17]), groups * draw.pick([1, 2, 5, 16])
    kernel = tuple(draw.pick([1, 1, 2, 3]) for _ in range(space))
    dilation = tuple(draw.pick([1, 1, 2]) for _ in range(space))
    padding: Any = draw.pick(["same", "valid", "numbers", "numbers"])
    stride: Any = 1 if padding == "same" else tuple(draw.number(1, 2) for _ in range(space))
    if padding == "numbers":
        padding = tuple(draw.number(0, 2) for _ in range(space))
    layer = CONVOLUTIONS[space](
        channels,
        outputs,
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw.chance(0.7),
        padding_mode=draw.pick(["zeros", "zeros", "reflect", "replicate", "circular"]),
        dtype=dtype,
    )
    # Large enough for the kernel and for any padding mode.
    size = tuple(max(d * (k - 1) + 1, 4) + draw.number(0, 3) for k, d in zip(kernel, dilation, strict=True))
    return Drawn(f"Conv{space}d", layer, _batched(draw, (channels, *size)))


def transposed_convolution(draw: Draw, dtype: torch.dtype) -> Drawn:
    space = draw.pick([1, 2, 2, 3])
    groups = draw.pick([1, 1, 2])
    channels, outputs = groups * draw.pick([1, 2, 3, 8]), groups * draw.pick([1, 2, 5])
    kernel = tuple(draw.number(1, 3) for _ in range(space))
    stride = tuple(draw.number(1, 2) for _ in range(space))
    bias = draw.chance(0.7)
    layer = TRANSPOSED[space](channels, outputs, kernel, stride=stride, groups=groups, bias=bias, dtype=dtype)
    size = tuple(draw.number(1, 4) for _ in range(space))
    return Drawn(f"ConvTranspose{space}d", layer, _batched(draw, (channels, *size)))


def _batched(draw: Draw, sample: Shape) -> Callable[[], Shape]:
    if draw.chance(0.15):
        return lambda: sample
    most = 3 if len(sample) == 4 else 5
    return lambda: (0 if draw.chance(0.04) else draw.number(1, most), *sample)
