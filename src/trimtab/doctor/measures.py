"""Numbers that a look takes from tensors."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.layers import layer_type


def unlike_sizes(layer: nn.Module, x: Tensor) -> Tensor:
    """How unlike the sizes of the features or channels are."""
    wide = x.detach().float()
    sizes = wide.square().mean(_all_but_channel(layer, wide)).sqrt()
    quarters = torch.nanquantile(torch.where(sizes > 0, sizes, math.nan), sizes.new_tensor([0.25, 0.75]))
    return quarters[1] / quarters[0]


def input_numbers(layer: nn.Module, x: Tensor) -> Tensor:
    """The numbers of an `InputLook`."""
    wide = x.detach().float()
    others = _all_but_channel(layer, wide)
    variance, mean = torch.var_mean(wide, others, correction=0) if others else (torch.zeros_like(wide), wide)
    deviation = variance.sqrt()
    varying = torch.where(deviation > 0, deviation, math.nan)
    ends = torch.nanquantile(varying, wide.new_tensor([0.1, 0.9]))
    offset = mean.square().mean().sqrt() / variance.mean().sqrt()
    if wide.numel() == mean.numel():  # a single value of each feature has no deviation
        offset = torch.full_like(offset, math.nan)
    return torch.stack([root_mean_square(wide), offset, ends[0], ends[1]])


def _all_but_channel(layer: nn.Module, x: Tensor) -> list[int]:
    """The dimensions of a layer's input beside that of its features or channels."""
    channel = 1 if x.ndim > 2 and not isinstance(layer, nn.Linear) else x.ndim - 1
    return [dim for dim in range(x.ndim) if dim != channel]


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


def batch_beside_running(norms: Mapping[str, Any], before: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """What the running statistics say of the batch that has moved them, which needs no second look at it.

    Args:
        norms: Layers with running statistics, by name.
        before: Their `running_tensors` before the batch.

    Returns:
        For each layer the mean over channels of how far the batch's mean is from the running one, squared, in
        variances, and the median of the batch's variance over the running one; NaN if it was not one batch.
    """
    norms = {name: norm for name, norm in norms.items() if name in before}
    if not norms:
        return {}
    mean, variance, count = (torch.cat([before[name][i].flatten() for name in norms]) for i in range(3))
    new_mean, new_variance, new_count = (
        torch.cat([running_tensors(norm)[i].flatten() for norm in norms.values()]) for i in range(3)
    )
    sizes = [norm.running_mean.numel() for norm in norms.values()]
    share, eps = _spread_out([[norm.momentum, norm.eps] for norm in norms.values()], sizes, mean)
    batch_mean = (new_mean - (1 - share) * mean) / share
    batch_variance = (new_variance - (1 - share) * variance) / share
    shift = (batch_mean - mean).square() / (variance + eps)
    ratio = batch_variance / (variance + eps)
    found = torch.stack(
        [
            torch.stack([of_shift.mean(), of_ratio.median()])
            for of_shift, of_ratio in zip(shift.split(sizes), ratio.split(sizes), strict=True)
        ]
    )
    once = (new_count - count) == 1
    return dict(zip(norms, torch.where(once[:, None], found.float(), math.nan), strict=True))


def running_tensors(norm: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The running mean and variance of a layer, and how many batches they have seen."""
    return norm.running_mean, norm.running_var, norm.num_batches_tracked


def _spread_out(numbers: list[list[float]], sizes: list[int], like: Tensor) -> Tensor:
    """Numbers of each layer, repeated for each of its channels; a row for each number."""
    repeated = torch.tensor(numbers).repeat_interleave(torch.tensor(sizes), 0)
    return repeated.T.to(like.device, like.dtype, non_blocking=True)


def silent_rows(layer: Any) -> tuple[Tensor, Tensor]:
    """Which outputs have a gradient of exactly 0, for their weights and bias; the number of zeros of the weight's."""
    kind, bias = layer_type(layer), _torch.parameters_of(layer).get("bias")
    assert kind is not None
    zero = layer.weight.grad == 0
    silent = kind.view(layer, zero).flatten(2).all(2).flatten()
    if bias is not None and bias.grad is not None and bias.grad.numel() == silent.numel():
        silent = silent & (bias.grad.flatten() == 0)
    return silent, zero.sum()


def norms_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The norm of each tensor, by name."""
    if not tensors:
        return {}
    return dict(zip(tensors, _torch.norms([tensor.detach() for tensor in tensors.values()]), strict=True))


def numbers_of(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """All of them with one question to the device; a single number is a list of one."""
    if not tensors:
        return {}
    rows = torch.stack([tensor.reshape(-1) for tensor in tensors.values()]).tolist()
    return dict(zip(tensors, rows, strict=True))
