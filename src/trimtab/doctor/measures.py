"""Numbers that a look takes from tensors."""

import math

import torch
from torch import Tensor, nn


def unlike_sizes(layer: nn.Module, x: Tensor) -> Tensor:
    """How unlike the sizes of the features or channels are."""
    wide = x.detach().float()
    channel = 1 if wide.ndim > 2 and not isinstance(layer, nn.Linear) else wide.ndim - 1
    sizes = wide.square().mean([dim for dim in range(wide.ndim) if dim != channel]).sqrt()
    quarters = torch.nanquantile(torch.where(sizes > 0, sizes, math.nan), torch.tensor([0.25, 0.75], device=x.device))
    return quarters[1] / quarters[0]


def input_numbers(layer: nn.Module, x: Tensor) -> Tensor:
    """The numbers of an `InputLook`."""
    wide = x.detach().float()
    channel = 1 if wide.ndim > 2 and not isinstance(layer, nn.Linear) else wide.ndim - 1
    others = [dim for dim in range(wide.ndim) if dim != channel]
    variance, mean = torch.var_mean(wide, others, correction=0) if others else (torch.zeros_like(wide), wide)
    deviation = variance.sqrt()
    varying = torch.where(deviation > 0, deviation, math.nan)
    ends = torch.nanquantile(varying, torch.tensor([0.1, 0.9], device=x.device))
    offset = mean.square().mean().sqrt() / variance.mean().sqrt()
    return torch.stack([root_mean_square(wide), offset, ends[0], ends[1]])


def root_mean_square(x: Tensor) -> Tensor:
    """The root of the mean square of all entries."""
    return norm_of(x) / math.sqrt(max(x.numel(), 1))


def spread_of(x: Tensor) -> Tensor:
    """The root of the mean variance over samples; NaN for a single one."""
    x = x.detach()
    if len(x) < 2:
        return torch.full((), math.nan, device=x.device)
    return (x.float() if x.dtype.itemsize < 4 else x).var(0, correction=0).mean().sqrt().float()


def norm_of(x: Tensor) -> Tensor:
    """The Euclidean norm, computed in float32 at least."""
    x = x.detach()
    norm: Tensor = torch.linalg.vector_norm(x.float() if x.dtype.itemsize < 4 else x)
    return norm.float()
