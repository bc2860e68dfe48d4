"""A layer's step as a row of numbers, as native.c and the kernels of a GPU read it."""

import struct

import torch
from torch import Tensor

from trimtab.bnp.kernels.found import NUMBERS, KernelMoments, SummedMoments, channels_last
from trimtab.bnp.update import Update

# `Layer` in native.c: what is another in each step, and what stays
_MOVING = struct.Struct("4P")
_STAYING = struct.Struct("5P6qd")
# In the place of `single`: the step is given sums instead of moments, and q² is computed from them (on a GPU only).
SUMS = 2
# In the place of `shared`: they share their statistics, and the weights of an output come site by site.
SITES_FIRST = 2


def shares(update: Update) -> bool:
    """Whether all sites of a kernel share their statistics."""
    groups, _, inputs, sites = update.shape
    return update.columns != groups * inputs * sites


def packed(update: Update) -> bytes:
    """The row; nothing if a tensor is not of the size, type and device, or not as dense, as the kernels expect.

    The kernels have nothing but addresses: what is not checked here is not checked at all.
    """
    weight, bias, batch, dtype = update.weight, update.bias, update.batch, update.dtype
    if type(weight) is not Tensor or weight.layout is not torch.strided or weight.dtype is not dtype:
        return b""
    on_cpu, averages = weight.is_cpu, update.running.mean
    if on_cpu is not averages.is_cpu or (not on_cpu and weight.device != averages.device):
        return b""  # the model was moved
    at = weight.data_ptr()
    if not at or weight.numel() != update.numel or weight.is_neg():  # no memory of its own?
        return b""
    bias_at = 0
    if bias is not None:
        if type(bias) is not Tensor or bias.layout is not torch.strided or bias.dtype is not dtype:
            return b""
        bias_at = bias.data_ptr()
        if (
            not bias_at
            or bias.is_cpu is not on_cpu
            or (not on_cpu and bias.device != weight.device)
            or not bias.is_contiguous()
            or bias.numel() != update.shape[0] * update.shape[1]
            or bias.is_neg()
        ):
            return b""
    sites_last = weight.is_contiguous()
    if not sites_last and not (channels_last(weight) and shares(update)):
        return b""
    if sites_last != update.sites_last:
        update.sites_last, update.row = sites_last, b""
    if type(batch) is KernelMoments and batch.address:
        recipe = batch.recipe
        if (
            recipe.layout[1] != update.columns
            or recipe.result is not dtype
            or (not on_cpu and recipe.device != weight.device)
        ):
            return b""
        mean, variance = batch.address, batch.address + recipe.between
    elif type(batch) is SummedMoments:
        if not _is_dense(batch.sums, NUMBERS + 2 * update.columns, torch.float64, weight.device):
            return b""
        mean, variance = batch.sums.data_ptr(), 0
    else:
        found = (batch.mean, batch.variance)
        if not all(_is_dense(tensor, update.columns, dtype, weight.device) for tensor in found):
            return b""
        mean, variance = (tensor.data_ptr() for tensor in found)
    if (at | bias_at | mean | variance) % dtype.itemsize:  # numbers that do not begin where a processor expects it
        return b""
    if not update.row:
        update.row = _staying(update)
        if not update.row:
            return b""
    return _MOVING.pack(at, bias_at, mean, variance) + update.row


def _staying(update: Update) -> bytes:
    """The part that does not change from step to step; nothing if the averages are not as the kernels expect."""
    groups, _, inputs, sites = update.shape
    running, columns, device = update.running, update.columns, update.running.mean.device
    expected = {
        "mean": (columns, update.dtype),
        "variance": (columns, update.dtype),
        "weight": (1, update.dtype),
        "steps": (1, torch.int64),
        "skipped": (1, torch.int64),
    }
    tensors = {name: getattr(running, name) for name in expected}
    if columns not in (groups * inputs, groups * inputs * sites) or not all(
        _is_dense(tensors[name], count, dtype, device) for name, (count, dtype) in expected.items()
    ):
        return b""
    summed = type(update.batch) is SummedMoments
    return _STAYING.pack(
        *[tensor.data_ptr() for tensor in tensors.values()],
        *update.shape,
        (1 if update.sites_last else SITES_FIRST) if shares(update) else 0,
        SUMS if summed else update.batch.count == 1,
        0.0 if summed else update.q2,
    )


def _is_dense(tensor: Tensor, count: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether it is so many numbers of a type, one after the other in memory of the device."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.dtype is dtype
        and tensor.device == device
        and tensor.numel() == count
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and tensor.data_ptr() != 0
    )
