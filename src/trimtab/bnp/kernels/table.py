"""A layer's step as a row of numbers, as native.c and the kernels in gpu.py read it."""

import struct

from trimtab.bnp.kernels.found import KernelMoments
from trimtab.bnp.update import Update

_LAYER = struct.Struct("9P6qd")  # `Layer` in native.c


def shares(update: Update) -> bool:
    """Whether all sites of a kernel share their statistics."""
    groups, _, inputs, sites = update.shape
    return update.running.mean.numel() != groups * inputs * sites


def packed(update: Update) -> bytes:
    """The row."""
    running, batch, bias = update.running, update.batch, update.bias
    addresses = batch.addresses() if isinstance(batch, KernelMoments) else None
    if addresses is None:
        addresses = batch.mean.data_ptr(), batch.variance.data_ptr()
    return _LAYER.pack(
        update.weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        *addresses,
        running.mean.data_ptr(),
        running.variance.data_ptr(),
        running.weight.data_ptr(),
        running.steps.data_ptr(),
        running.skipped.data_ptr(),
        *update.shape,
        shares(update),
        batch.count == 1,
        update.q2,
    )
