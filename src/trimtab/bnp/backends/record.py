"""The step of one layer as the kernels read it: a record of numbers of 8 bytes each.

It is declared here and nowhere else. native.c has a struct of the same fields, whose size and offsets are compared with
this when the library is loaded; the Triton kernels take the places of the fields from here.
"""

import operator
import struct

import torch
from torch import Tensor

from trimtab.bnp.algorithm.moments import COUNTS, Rows, RowSums
from trimtab.bnp.algorithm.step import LayerStep
from trimtab.bnp.algorithm.transform import squared_norm
from trimtab.bnp.backends.buffers import BufferMoments, is_channels_last

FIELDS = {
    # Addresses: the gradients (bias: 0 if there is none), the batch, the running averages with their counters.
    "weight": "P",
    "bias": "P",
    "batch_mean": "P",  # of the sums, if there are sums instead of moments,
    "batch_variance": "P",  # and this is 0 then
    "mean": "P",
    "variance": "P",
    "share": "P",  # RunningAverage.weight
    "steps": "P",
    "skipped": "P",
    # The shape of the weight, and how statistics belong to it: SHARED or 0.
    "groups": "q",
    "outputs": "q",
    "inputs": "q",
    "sites": "q",
    "shared": "q",
    "batch": "q",  # ROWS, SINGLE_ROW or SUMS
    "q2": "d",  # unless there are sums, from which it is computed
}
PLACES = {name: place for place, name in enumerate(FIELDS)}

# `shared`: statistics are for inputs, not for sites; the weights of an output come input by input, or site by site.
SHARED, SHARED_SITES_FIRST = 1, 2
# `batch`: moments of several rows, moments of one row, which has no variance of its own, or sums.
ROWS, SINGLE_ROW, SUMS = 0, 1, 2

_FORMAT = "".join(FIELDS.values())
_MOVING, _STAYING = struct.Struct(_FORMAT[:4]), struct.Struct(_FORMAT[4:])
LAYOUT = [8 * len(FIELDS), *range(0, 8 * len(FIELDS), 8)]
"""The size of a record and the offsets of its fields, as a C compiler sees them."""

_NONE = b""


def record(step: LayerStep) -> bytes:
    """The record; empty if a tensor is not of the size, type and device, or not as dense, as the kernels expect.

    The kernels have nothing but addresses: what is not checked here is not checked at all.
    """
    weight, bias, averages = step.weight, step.bias, step.running.mean
    dtype, on_cpu = averages.dtype, weight.is_cpu
    if type(weight) is not Tensor or weight.layout is not torch.strided or weight.dtype is not dtype:
        return _NONE
    if on_cpu is not averages.is_cpu or (not on_cpu and weight.device != averages.device):
        return _NONE  # the model was moved
    groups, outputs, inputs, sites = step.shape
    weight_at = weight.data_ptr()
    if not weight_at or weight.is_neg() or weight.numel() != groups * outputs * inputs * sites:
        return _NONE
    bias_at = 0
    if bias is not None:
        bias_at = _address(bias, groups * outputs, dtype, weight)
        if not bias_at:
            return _NONE
    columns = averages.numel()
    sites_last = weight.is_contiguous()
    if not sites_last and not (columns == groups * inputs and is_channels_last(weight)):
        return _NONE
    rows = step.rows
    if isinstance(rows, RowSums):
        batch: tuple[int, int, int] = 0, 0, 0
        mean_at, variance_at = _address(rows.sums, COUNTS + 2 * columns, torch.float64, weight), 0
    else:
        if type(rows.zeros) is not int or rows.zeros > 0:  # in the step, so that they stay until the kernel has run
            step.rows = rows = Rows(rows.columns(), rows.samples, rows.outputs)
        moments = rows.moments
        if type(moments.count) is not int or type(rows.samples) is not int or type(rows.outputs) is not int:
            return _NONE
        batch = moments.count, rows.samples, rows.outputs
        if type(moments) is BufferMoments and moments.address:
            layout = moments.layout
            if layout.columns != columns or layout.result is not dtype or layout.device != weight.device:
                return _NONE
            mean_at = moments.address
            variance_at = mean_at + columns * dtype.itemsize
        else:
            mean_at = _address(moments.mean, columns, dtype, weight)
            variance_at = _address(moments.variance, columns, dtype, weight)
            if not variance_at:
                return _NONE
    if not mean_at or (weight_at | bias_at | mean_at | variance_at) % dtype.itemsize:
        return _NONE  # numbers that do not begin where a processor expects it
    staying = _staying(step, columns, sites_last, batch)
    return _MOVING.pack(weight_at, bias_at, mean_at, variance_at) + staying if staying else _NONE


def _staying(step: LayerStep, columns: int, sites_last: bool, batch: tuple[int, int, int]) -> bytes:
    """The part that is mostly the same in each step; empty if the averages are not as the kernels expect.

    It is kept in the layer's memo, and made anew if one of the tensors in it is another one.
    """
    running = step.running
    tensors = (running.mean, running.variance, running.weight, running.steps, running.skipped)
    about = (step.shape, sites_last, batch)  # sums have no rows by this count
    known = step.memo.get("record")
    if known is not None and known[0] == about and all(map(operator.is_, known[1], tensors)):
        return bytes(known[2])
    groups, outputs, inputs, sites = step.shape
    dtype = running.mean.dtype
    expected = ((columns, dtype), (columns, dtype), (1, dtype), (1, torch.int64), (1, torch.int64))
    addresses = [
        _address(tensor, numel, kind, running.mean) for tensor, (numel, kind) in zip(tensors, expected, strict=True)
    ]
    if not all(addresses) or columns not in (groups * inputs, groups * inputs * sites):
        return _NONE
    shared = 0
    if columns != groups * inputs * sites:
        shared = SHARED if sites_last else SHARED_SITES_FIRST
    count, samples, positions = batch
    if isinstance(step.rows, RowSums):
        mode, q2 = SUMS, 0.0
    else:
        mode, q2 = SINGLE_ROW if count == 1 else ROWS, float(squared_norm(inputs * sites, samples, positions))
    staying = _STAYING.pack(*addresses, groups, outputs, inputs, sites, shared, mode, q2)
    step.memo["record"] = about, tensors, staying
    return staying


def _address(tensor: Tensor, numel: int, dtype: torch.dtype, like: Tensor) -> int:
    """Where a tensor begins; 0 if it is not so many numbers of a type, one after the other, on the device of `like`."""
    if (
        type(tensor) is not Tensor
        or tensor.layout is not torch.strided
        or tensor.dtype is not dtype
        or tensor.is_cpu is not like.is_cpu
        or (not tensor.is_cpu and tensor.device != like.device)
        or tensor.numel() != numel
        or not tensor.is_contiguous()
        or tensor.is_neg()
    ):
        return 0
    return tensor.data_ptr()
