"""Which dimension of a layer's output its channels are in."""

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.layers import layer_type
from trimtab.norms import RunningNorm

_CHANNELS_FIRST = (*_torch.BATCH_NORMS, *_torch.INSTANCE_NORMS, nn.GroupNorm, RunningNorm)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)
_NORMS = (*_CHANNELS_FIRST, nn.LayerNorm, nn.RMSNorm)


def per_channel_rows(module: nn.Module, output: Tensor) -> Tensor:
    """A copy (a layer that works in place may follow) of shape (samples, channels), in float32 at least."""
    dtype = torch.promote_types(output.dtype, torch.float32)
    channels_last = output.movedim(channel_dimension(module, output), -1) if output.ndim else output.reshape(1)
    copy = channels_last.to(dtype, copy=True, memory_format=torch.contiguous_format)
    return copy.reshape(-1, copy.shape[-1])


def channel_dimension(module: nn.Module, output: Tensor) -> int:
    """Of an output with one dimension or more."""
    if isinstance(module, _CHANNELS_LAST) or output.ndim == 1:
        return -1
    if isinstance(module, _CHANNELS_FIRST):
        return 1
    space = len(getattr(module, "kernel_size", ())) if layer_type(module) is not None else 0
    if space:
        return output.ndim - space - 1  # 0 for a sample without a batch dimension
    return -1 if output.ndim == 3 else 1


def is_norm(module: nn.Module) -> bool:
    """Whether it is a normalization layer."""
    return isinstance(module, _NORMS)


def default_layer(module: nn.Module) -> bool:
    """Whether it is a dense, convolution or normalization layer."""
    known = isinstance(module, (*_CHANNELS_FIRST, *_CHANNELS_LAST)) and not isinstance(module, nn.Embedding)
    return known or layer_type(module) is not None
