"""A layer's step as a row of numbers, as native.c and the kernels of a GPU read it."""

import struct

from torch import Tensor

from trimtab.bnp.kernels.found import KernelMoments
from trimtab.bnp.update import Update

# `Layer` in native.c: what is another in each step, and what stays
_MOVING = struct.Struct("4P")
_STAYING = struct.Struct("5P6qd")


def shares(update: Update) -> bool:
    """Whether all sites of a kernel share their statistics."""
    groups, _, inputs, sites = update.shape
    return update.running.mean.numel() != groups * inputs * sites


def packed(update: Update) -> bytes:
    """The row."""
    bias, batch = update.bias, update.batch
    mean = batch.address() if type(batch) is KernelMoments else 0
    if mean:
        variance = mean + batch.recipe.layout[1] * batch.recipe.result.itemsize  # type: ignore[attr-defined]
    else:
        mean, variance = batch.mean.data_ptr(), batch.variance.data_ptr()
    if not update.row:
        update.row = _staying(update)
    return _MOVING.pack(update.weight.data_ptr(), 0 if bias is None else bias.data_ptr(), mean, variance) + update.row


def has_gaps(update: Update) -> bool:
    """Whether gradients are not of the shape, or not as dense in memory, as the kernels expect."""
    weight, bias = update.weight, update.bias
    groups, outputs, inputs, sites = update.shape
    if type(weight) is not Tensor or not weight.is_contiguous() or weight.numel() != groups * outputs * inputs * sites:
        return True
    return bias is not None and (not bias.is_contiguous() or bias.numel() != groups * outputs)


def _staying(update: Update) -> bytes:
    running = update.running
    tensors: tuple[Tensor, ...] = (running.mean, running.variance, running.weight, running.steps, running.skipped)
    return _STAYING.pack(
        *[tensor.data_ptr() for tensor in tensors],
        *update.shape,
        shares(update),
        update.batch.count == 1,
        update.q2,
    )
