"""Batch statistics held fixed in the gradient: what mean field assumes, and what evaluation mode does with others."""

import torch
from torch import Tensor, nn

from trimtab.norms import FourThingsBatchNorm, GhostBatchNorm, NoisyBatchNorm, RunningNorm
from trimtab.norms.base import dims_but_channel, per_channel

_TORCHS = nn.modules.batchnorm._BatchNorm


def freeze(name: str, module: nn.Module) -> None:
    """Let no gradient pass through the statistics of the batch; values stay as they are.

    It sets plain attributes of the module, and whoever calls it puts them back.

    Raises:
        ValueError: If that is not defined for the layer.
    """
    if isinstance(module, GhostBatchNorm | FourThingsBatchNorm | NoisyBatchNorm):
        kind = type(module).__name__
        raise ValueError(f"Layer {name!r}: frozen statistics are not defined for {kind}; take statistics='train'.")
    if isinstance(module, RunningNorm):
        inner = module._by_batch
        module._by_batch = lambda x: _constant_affine(x, inner(x.detach()))  # type: ignore[method-assign]
    elif isinstance(module, _TORCHS) and module.training:
        if type(module).forward is not _TORCHS.forward:
            kind = type(module).__name__
            raise ValueError(
                f"Layer {name!r}: {kind} has a forward of its own, whose statistics cannot be held fixed; take "
                "statistics='train'."
            )
        torchs = module

        def forward(x: Tensor) -> Tensor:
            variance, mean = torch.var_mean(x.detach(), dims_but_channel(x), correction=0)
            y = (x - per_channel(mean, x)) * per_channel(torch.rsqrt(variance + torchs.eps), x)
            weight, bias = torchs.weight, torchs.bias
            y = y if weight is None else y * per_channel(weight, x)
            return y if bias is None else y + per_channel(bias, x)

        module.forward = forward  # type: ignore[method-assign, assignment]


def _constant_affine(x: Tensor, y: Tensor) -> Tensor:
    """The values y as a function of x whose derivative is the slope of y over x in each channel."""
    dims = dims_but_channel(x)
    spread = x.detach() - x.detach().mean(dims, keepdim=True)
    square = spread.square().sum(dims)
    slope = (spread * y).sum(dims) / square.clamp(min=torch.finfo(x.dtype).tiny)
    return y + per_channel(slope, x) * (x - x.detach())
