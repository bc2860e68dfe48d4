"""The rows of H, and of 𝓗 for convolutions, read off a layer's input (bnp paper, Lemma 8), some of them or all."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.bnp.layers import padding_of

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def can_unfold(layer: nn.Module) -> bool:
    """Whether the rows of this type of layer are known."""
    return isinstance(layer, (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED))


def groups_of(layer: Any) -> int:
    """How many groups of outputs see inputs of their own."""
    return 1 if isinstance(layer, nn.Linear) else int(layer.groups)


def outputs_of(layer: Any) -> int:
    """How many output units or channels there are."""
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


def columns_of(layer: Any) -> int:
    """How many weights an output unit has."""
    if isinstance(layer, nn.Linear):
        return int(layer.in_features)
    return int(layer.in_channels // layer.groups * math.prod(layer.kernel_size))


def unit_of(layer: Any, y: Tensor, unit: int) -> Tensor:
    """What one output unit has computed: one number per row, in the order of `rows_of`, as a view."""
    dim = -1 if isinstance(layer, nn.Linear) else y.ndim - len(layer.kernel_size) - 1
    return y.select(dim, unit)


def row_count(layer: Any, y: Tensor) -> int:
    """How many rows a call has that gave this output: samples times output positions."""
    return y.numel() // outputs_of(layer)


def rows_of(layer: Any, x: Tensor, y: Tensor, group: int, chosen: Tensor) -> Tensor:
    """Rows of H (without e) for the outputs of one group, in double precision.

    Args:
        layer: A layer that `can_unfold` knows.
        x: Its input.
        y: Its output for it.
        group: The group's number, 0 in layers without groups.
        chosen: Which rows; they are counted through samples first and positions then.

    Returns:
        One row for each chosen one; columns in the order of the unit's weights: input channels, then kernel sites.
    """
    x, chosen = x.detach(), chosen.to(x.device)
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1])[chosen].double()
    space = len(layer.kernel_size)
    if x.ndim == space + 1:  # one sample without a batch dimension
        x, y = x.unsqueeze(0), y.unsqueeze(0)
    width = layer.in_channels // layer.groups
    x = x[:, group * width : (group + 1) * width]
    transposed = isinstance(layer, _TRANSPOSED)
    padded = _with_zeros_between(layer, x, y) if transposed else _padded(layer, x)
    windows = padded
    for dim in range(space):
        size, dilation = layer.kernel_size[dim], layer.dilation[dim]
        stride = 1 if transposed else layer.stride[dim]
        windows = windows.unfold(2 + dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
    # (samples, *positions, channels, *sites), still a view of the padded input
    windows = windows.movedim(1, 1 + space)
    rows = windows[torch.unravel_index(chosen, windows.shape[: 1 + space])]
    if transposed:  # it is a convolution with the kernel turned around
        rows = rows.flip(tuple(range(2, 2 + space)))
    return rows.flatten(1).double()


def _padded(layer: Any, x: Tensor) -> Tensor:
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(x, padding_of(layer), mode=mode)


def _with_zeros_between(layer: Any, x: Tensor, y: Tensor) -> Tensor:
    """The input of a transposed convolution, spread by its stride and padded: what an ordinary one would see."""
    space = len(layer.kernel_size)
    spread = x.new_zeros(
        *x.shape[:2], *[(size - 1) * stride + 1 for size, stride in zip(x.shape[2:], layer.stride, strict=True)]
    )
    places: tuple[slice, ...] = tuple(slice(None, None, stride) for stride in layer.stride)
    spread[(slice(None), slice(None), *places)] = x
    amounts: list[int] = []
    for dim in reversed(range(space)):
        reach = layer.dilation[dim] * (layer.kernel_size[dim] - 1)
        before = reach - layer.padding[dim]
        # Its output may be longer than the rest says (output_padding); a negative number crops.
        amounts += [before, y.shape[2 + dim] + reach - before - spread.shape[2 + dim]]
    return F.pad(spread, amounts)
