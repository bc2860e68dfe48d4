"""GroupNorm that keeps the dtype and the memory format of its input."""

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F


class GroupNorm(nn.GroupNorm):
    """torch's GroupNorm, whose output has the dtype and the memory format of the input, as BatchNorm's has.

    torch's own returns float32 under autocast, and is never in channels-last format. The convolution after it then
    has to convert each image back, and the convolution before it each gradient.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Computed in float32 under autocast, as torch does."""
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


@torch.fx.wrap
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """`torch.nn.functional.group_norm` that keeps the dtype and the memory format of the input."""
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return F.group_norm(input, num_groups, weight, bias, eps)
    if not _channels_last(input):
        return F.group_norm(input, num_groups, weight, bias, eps).to(input.dtype)
    if torch.compiler.is_compiling():  # what this does costs nothing there, and much elsewhere
        input = _gradient_channels_last(input)
    output = F.group_norm(input, num_groups, weight, bias, eps)
    return output.to(input.dtype, memory_format=torch.channels_last)


def _channels_last(input: Tensor) -> bool:
    if input.ndim != 4:
        return False
    if torch.compiler.is_compiling():
        return input.is_contiguous(memory_format=torch.channels_last)
    try:
        return input.is_contiguous(memory_format=torch.channels_last)
    except RuntimeError:  # within vmap the order in memory is not known
        return False


class _GradientChannelsLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous(memory_format=torch.channels_last)


_gradient_channels_last: Callable[[Tensor], Tensor] = _GradientChannelsLast.apply
