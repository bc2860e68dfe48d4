"""The step of one layer as the kernels read it: a record of numbers of 8 bytes each.

It is declared here and nowhere else. native.c has a struct of the same fields, whose size and offsets are compared with
this when the library is loaded; the Triton kernels take the places of the fields from here.
"""

import struct
from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.algorithm.averages import RunningAverage
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


class _Averages:
    """The running averages of a layer as the kernels see them, and the part of its record that mostly stays.

    It is kept in the layer's memo, and made anew if one of the tensors is another one.

    Attributes:
        tensors: The averages and their counters.
        addresses: Where they are; one is 0 if a tensor is not as the kernels expect.
        columns: How many statistics.
        dtype: Their type.
        itemsize: The bytes of one of them.
        device: Where they are.
        about: What the packed part is about.
        packed: That part.
    """

    __slots__ = ("about", "addresses", "columns", "device", "dtype", "itemsize", "packed", "tensors")

    def __init__(self, running: RunningAverage) -> None:
        """Of a layer's averages as they are now."""
        mean = running.mean
        self.tensors, self.columns = tuple(running.tensors().values()), mean.numel()
        self.dtype, self.itemsize, self.device = mean.dtype, mean.dtype.itemsize, mean.device
        kinds = (self.dtype, self.dtype, self.dtype, torch.int64, torch.int64)
        sizes = (self.columns, self.columns, 1, 1, 1)
        self.addresses = [_address(*each, self.device) for each in zip(self.tensors, sizes, kinds, strict=True)]
        self.about: tuple[Any, ...] = ()
        self.packed = _NONE

    def are_those_of(self, running: RunningAverage) -> bool:
        """Whether these are still the very tensors of a layer's averages."""
        mean, variance, weight, steps, skipped = self.tensors
        return (
            mean is running.mean
            and variance is running.variance
            and weight is running.weight
            and steps is running.steps
            and skipped is running.skipped
        )

    def pack(self, step: LayerStep, sites_last: bool, batch: tuple[int, int, int]) -> bytes:
        """The part of the record; empty if the averages are not as the kernels expect."""
        about = step.shape, sites_last, batch  # sums have no rows by this count
        if about != self.about:
            groups, outputs, inputs, sites = step.shape
            if not all(self.addresses) or self.columns not in (groups * inputs, groups * inputs * sites):
                return _NONE
            shared = 0
            if self.columns != groups * inputs * sites:
                shared = SHARED if sites_last else SHARED_SITES_FIRST
            count, samples, positions = batch
            mode, q2 = SUMS, 0.0
            if not isinstance(step.rows, RowSums):
                mode = SINGLE_ROW if count == 1 else ROWS
                q2 = float(squared_norm(inputs * sites, samples, positions))
            self.packed = _STAYING.pack(*self.addresses, groups, outputs, inputs, sites, shared, mode, q2)
            self.about = about
        return self.packed


def record(step: LayerStep) -> bytes:
    """The record; empty if a tensor is not of the size, type and device, or not as dense, as the kernels expect.

    The kernels have nothing but addresses: what is not checked here is not checked at all.
    """
    averages: _Averages | None = step.memo.get("record")
    if averages is None or not averages.are_those_of(step.running):
        averages = step.memo["record"] = _Averages(step.running)
    weight, bias, rows = step.weight, step.bias, step.rows
    columns, dtype, device = averages.columns, averages.dtype, averages.device
    groups, outputs, inputs, sites = step.shape
    weight_at = _address(weight, groups * outputs * inputs * sites, dtype, device, dense=False)
    sites_last = weight_at != 0 and weight.is_contiguous()
    if not weight_at or not (sites_last or (columns == groups * inputs and is_channels_last(weight))):
        return _NONE
    bias_at = 0
    if bias is not None and not (bias_at := _address(bias, groups * outputs, dtype, device)):
        return _NONE
    batch, variance_at = (0, 0, 0), 0
    if isinstance(rows, RowSums):
        mean_at = _address(rows.sums, COUNTS + 2 * columns, torch.float64, device)
    else:
        if type(rows.zeros) is not int or rows.zeros > 0:  # in the step, so that they stay until the kernel has run
            step.rows = rows = Rows(rows.columns(), rows.samples, rows.outputs)
        moments, samples, positions = rows.moments, rows.samples, rows.outputs
        if type(moments) is BufferMoments and moments.address:
            layout = moments.layout
            if layout.columns != columns or layout.result is not dtype or layout.device != device:
                return _NONE
            count: Any = layout.count
            mean_at = moments.address
            variance_at = mean_at + columns * averages.itemsize
        else:
            count = moments.count
            mean_at = _address(moments.mean, columns, dtype, device)
            variance_at = _address(moments.variance, columns, dtype, device)
            if not variance_at:
                return _NONE
        if type(count) is not int or type(samples) is not int or type(positions) is not int:
            return _NONE
        batch = count, samples, positions
    if not mean_at or (weight_at | bias_at | mean_at | variance_at) % averages.itemsize:
        return _NONE  # numbers that do not begin where a processor expects it
    staying = averages.pack(step, sites_last, batch)
    return _MOVING.pack(weight_at, bias_at, mean_at, variance_at) + staying if staying else _NONE


def _address(tensor: Tensor, numel: int, dtype: torch.dtype, device: torch.device, dense: bool = True) -> int:
    """Where a tensor begins; 0 if it is not so many numbers of a type (and dense) on a device."""
    if (
        type(tensor) is not Tensor
        or tensor.layout is not torch.strided
        or tensor.dtype is not dtype
        or tensor.device != device
        or tensor.numel() != numel
        or tensor.is_neg()
        or (dense and not tensor.is_contiguous())
    ):
        return 0
    return tensor.data_ptr()
