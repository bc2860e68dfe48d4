"""Batch statistics held fixed in the gradient, as mean field assumes and as evaluation mode does with running ones."""

from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.norms import FourThingsBatchNorm, GhostBatchNorm, NoisyBatchNorm, RunningNorm
from trimtab.norms.base import dims_but_channel, per_channel

NEVER_FROZEN = (GhostBatchNorm, FourThingsBatchNorm, NoisyBatchNorm)
"""Layers that frozen statistics are not defined for."""


def freeze_statistics(name: str, module: nn.Module) -> None:
    """Let no gradient pass through the batch statistics of a layer; its outputs keep their values.

    It sets plain attributes of the module, which the caller puts back. Other modules are left as they are.

    Raises:
        ValueError: If that is not defined for the layer.
    """
    kind = type(module).__name__
    if isinstance(module, NEVER_FROZEN):
        raise ValueError(f"Layer {name!r}: frozen statistics are not defined for {kind}; take statistics='batch'.")
    if isinstance(module, RunningNorm):
        by_batch = module.normalize_by_batch
        module.normalize_by_batch = lambda x: _affine_in(x, by_batch(x.detach()))  # type: ignore[method-assign]
    elif isinstance(module, _torch.BATCH_NORMS) and module.training:
        if type(module).forward is not nn.BatchNorm1d.forward:
            raise ValueError(
                f"Layer {name!r}: {kind} has a forward of its own, whose statistics cannot be held fixed; take "
                "statistics='batch'."
            )
        layer: Any = module

        def forward(x: Tensor) -> Tensor:
            variance, mean = torch.var_mean(x.detach(), dims_but_channel(x), correction=0)
            y = (x - per_channel(mean, x)) * per_channel(torch.rsqrt(variance + layer.eps), x)
            y = y if layer.weight is None else y * per_channel(layer.weight, x)
            return y if layer.bias is None else y + per_channel(layer.bias, x)

        module.forward = forward


def _affine_in(x: Tensor, y: Tensor) -> Tensor:
    """The values y as a function of x, whose derivative is the slope of y over x in each channel."""
    dims = dims_but_channel(x)
    spread = x.detach() - x.detach().mean(dims, keepdim=True)
    square = spread.square().sum(dims)
    slope = (spread * y).sum(dims) / square.clamp(min=torch.finfo(x.dtype).tiny)
    return y + per_channel(slope, x) * (x - x.detach())
