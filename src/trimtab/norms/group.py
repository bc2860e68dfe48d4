"""GroupNorm that hands images on as it gets them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class GroupNorm(nn.GroupNorm):
    """torch's GroupNorm, with an output of the type and the order in memory of its input, as BatchNorm has it.

    torch's own returns float32 under autocast, and always channels first. The convolution after it then turns each
    image back, and the one before it each gradient.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Computed in float32 under autocast, as torch does."""
        if input.ndim != 4 or not input.is_contiguous(memory_format=torch.channels_last):
            return super().forward(input).to(input.dtype)
        if torch.compiler.is_compiling():  # what follows costs nothing there, and much elsewhere
            input = _gradient_channels_last(input)
        return super().forward(input).to(input.dtype, memory_format=torch.channels_last)


class _GradientChannelsLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous(memory_format=torch.channels_last)


_gradient_channels_last: Callable[[Tensor], Tensor] = _GradientChannelsLast.apply
