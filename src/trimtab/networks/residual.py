"""Residual networks and their preactivation form (He et al., 2016a, 2016b)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.networks.builder import Builder
from trimtab.networks.shapes import image

Stem = Literal["cifar", "imagenet"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a residual network.

    Attributes:
        widths: Channels of each stage; all but the first halve height and width.
        blocks: Blocks of two convolutions in each stage.
        projection: Whether the shortcut is a 1×1 convolution where the shape changes (option B of He et al., 2016a);
            otherwise it skips positions and pads channels with zeros (option A).
    """

    widths: tuple[int, ...]
    blocks: int
    projection: bool


# He et al. (2016a), Sec. 4.2: 6n + 2 layers, n = 18, option A. Its Table 1: 18 layers, option B.
RESNET110 = Plan(widths=(16, 32, 64), blocks=18, projection=False)
RESNET18 = Plan(widths=(64, 128, 256, 512), blocks=2, projection=True)


class PaddedShortcut(nn.Module):
    """Option A: every other position, and zeros in the new channels, which are the last."""

    def __init__(self, stride: int, new_channels: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = new_channels

    def forward(self, x: Tensor) -> Tensor:
        """Without any parameter."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class Block(nn.Module):
    """conv-norm-ReLU-conv-norm, plus the shortcut, then ReLU (He et al., 2016a, Fig. 2)."""

    def __init__(self, builder: Builder, inputs: int, outputs: int, stride: int, *, projection: bool) -> None:
        super().__init__()
        self.conv1 = builder.conv(inputs, outputs, 3, stride=stride, padding=1)
        self.norm1 = builder.norm(outputs, space=2)
        self.conv2 = builder.conv(outputs, outputs, 3, padding=1)
        self.norm2 = builder.norm(outputs, space=2)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs and projection:
            conv = builder.conv(inputs, outputs, 1, stride=stride)
            self.shortcut = nn.Sequential(conv, builder.norm(outputs, space=2))
        elif inputs != outputs:
            self.shortcut = PaddedShortcut(stride, outputs - inputs)
        self.relu = builder.activation()

    def forward(self, x: Tensor) -> Tensor:
        """Normalized before each activation and before the sum."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        result: Tensor = self.relu(y + self.shortcut(x))
        return result


class PreactivationBlock(nn.Module):
    """norm-ReLU-conv-norm-ReLU-conv, plus the shortcut (He et al., 2016b, Fig. 1b).

    Where the shape changes, the shortcut too starts from the activated input, as in the authors' code. The first block
    has no norm and ReLU of its own, since the stem ends with them (the paper's appendix).
    """

    def __init__(
        self, builder: Builder, inputs: int, outputs: int, stride: int, *, projection: bool, first: bool
    ) -> None:
        super().__init__()
        self.activate = nn.Identity() if first else nn.Sequential(builder.norm(inputs, space=2), builder.activation())
        self.conv1 = builder.conv(inputs, outputs, 3, stride=stride, padding=1)
        self.norm2 = builder.norm(outputs, space=2)
        self.relu = builder.activation()
        self.conv2 = builder.conv(outputs, outputs, 3, padding=1)
        self.shortcut: nn.Module | None = None
        if inputs != outputs:
            # Made after conv2: the sum of both is what the next place normalizes.
            self.shortcut = (
                builder.conv(inputs, outputs, 1, stride=stride)
                if projection
                else PaddedShortcut(stride, outputs - inputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Normalized before each convolution; the sum is left as it is."""
        activated = self.activate(x)
        y: Tensor = self.conv2(self.relu(self.norm2(self.conv1(activated))))
        return y + (x if self.shortcut is None else self.shortcut(activated))


def resnet(
    builder: Builder, shape: tuple[int, ...], classes: int, *, plan: Plan, stem: Stem = "cifar"
) -> nn.Sequential:
    """A residual network as published, with the norm in BatchNorm's places (bnp, Sec. 5 and App. B).

    `resnet110` (He et al., 2016a, Sec. 4.2) and `resnet18` (its Table 1). With the stem for CIFAR, `resnet18` begins
    with a 3×3 convolution of stride 1 and no pooling, as is common for 32×32 images; no paper here describes it. The
    norm in a projection shortcut is a place too. Open, and chosen: He normal with fan-in, in the output layer too; zero
    biases; the new channels of an option A shortcut are the last ones.
    """

    def block(inputs: int, outputs: int, stride: int, first: bool) -> nn.Module:
        return Block(builder, inputs, outputs, stride, projection=plan.projection)

    layers = [*_stem(builder, shape, plan.widths[0], stem), *_stages(plan, block)]
    return _with_output(builder, layers, plan.widths[-1], classes)


def preactivation_resnet(
    builder: Builder, shape: tuple[int, ...], classes: int, *, plan: Plan, stem: Stem = "cifar"
) -> nn.Sequential:
    """A preactivation residual network (He et al., 2016b; bnp, Sec. 5; meanfield, Sec. 6.5).

    `preact110` and `preact18`: as `resnet110` and `resnet18`, with norm and ReLU before each convolution and once more
    before pooling. A convolution's place is that of the norm that reads its output, for its bias and its weight norm.
    Neither paper says how shortcuts change shape here: we keep the option of the network without preactivation.
    """

    def block(inputs: int, outputs: int, stride: int, first: bool) -> nn.Module:
        return PreactivationBlock(builder, inputs, outputs, stride, projection=plan.projection, first=first)

    layers = [*_stem(builder, shape, plan.widths[0], stem), *_stages(plan, block)]
    layers += [builder.norm(plan.widths[-1], space=2), builder.activation()]
    return _with_output(builder, layers, plan.widths[-1], classes)


def _stem(builder: Builder, shape: tuple[int, ...], width: int, stem: Stem) -> list[nn.Module]:
    channels, _, _ = image(builder.network, shape)
    if stem == "cifar":
        conv, pool = builder.conv(channels, width, 3, padding=1), []
    else:
        conv, pool = builder.conv(channels, width, 7, stride=2, padding=3), [nn.MaxPool2d(3, stride=2, padding=1)]
    return [conv, builder.norm(width, space=2), builder.activation(), *pool]


def _stages(plan: Plan, block: Callable[[int, int, int, bool], nn.Module]) -> list[nn.Module]:
    """The blocks in forward order; `block` is given inputs, outputs, stride and whether it is the very first."""
    blocks: list[nn.Module] = []
    inputs = plan.widths[0]
    for stage, outputs in enumerate(plan.widths):
        for index in range(plan.blocks):
            stride = 2 if stage > 0 and index == 0 else 1
            blocks.append(block(inputs, outputs, stride, not blocks))
            inputs = outputs
    return blocks


def _with_output(builder: Builder, layers: list[nn.Module], width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), builder.plain(width, classes))
