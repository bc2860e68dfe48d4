"""A layer's step as a row of numbers, as native.c and the kernels of a GPU read it."""

import struct

import torch
from torch import Tensor

from trimtab.bnp.kernels.found import KernelMoments, SummedMoments, channels_last
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
    return update.running.mean.numel() != groups * inputs * sites


def packed(update: Update) -> bytes:
    """The row; nothing if the gradients are not of the shape, or not as dense in memory, as the kernels expect."""
    weight, bias, batch, dtype = update.weight, update.bias, update.batch, update.dtype
    if type(weight) is not Tensor or weight.layout is not torch.strided or weight.dtype is not dtype:
        return b""
    averages = update.running.mean
    if weight.is_cpu is not averages.is_cpu or (weight.is_cuda and weight.device != averages.device):
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
            or bias.is_cpu is not weight.is_cpu
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
    mean = variance = 0
    if type(batch) is KernelMoments and batch.recipe.result is dtype:
        mean = batch.address
        variance = mean + batch.recipe.between
    elif batch.dtype is not dtype:
        return b""
    elif type(batch) is SummedMoments:
        mean = batch.sums.data_ptr()
    if not mean:
        if not batch.mean.is_contiguous() or not batch.variance.is_contiguous():
            return b""
        mean, variance = batch.mean.data_ptr(), batch.variance.data_ptr()
    if not update.row:
        update.row = _staying(update)
    return _MOVING.pack(at, bias_at, mean, variance) + update.row


def _staying(update: Update) -> bytes:
    running, summed = update.running, type(update.batch) is SummedMoments
    tensors: tuple[Tensor, ...] = (running.mean, running.variance, running.weight, running.steps, running.skipped)
    return _STAYING.pack(
        *[tensor.data_ptr() for tensor in tensors],
        *update.shape,
        (1 if update.sites_last else SITES_FIRST) if shares(update) else 0,
        SUMS if summed else update.batch.count == 1,
        0.0 if summed else update.q2,
    )
