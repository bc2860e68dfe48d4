"""The step of one layer as the kernels read it: a record of numbers of 8 bytes each.

It is declared here and nowhere else. native.c has a struct of the same fields, whose size and offsets are compared with
this when the library is loaded; the Triton kernels take the places of the fields from here.
"""

import math
import struct
from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.moments import Count, Rows
from trimtab.bnp.algorithm.step import LayerStep, Shape
from trimtab.bnp.algorithm.transform import squared_norm
from trimtab.bnp.backends.buffers import BufferMoments, InputLayout, is_channels_last
from trimtab.bnp.row_sums import COUNTS, RowSums

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


class _Known:
    """What the records of a layer have in common as long as its averages are the same tensors and its shape stays.

    It is kept in the layer's memo.

    Attributes:
        mean: The averages and their counters, as they are in RunningAverage.
        variance: See there.
        share: Its `weight`.
        steps: See there.
        skipped: See there.
        addresses: Where these are; one is 0 if a tensor is not as the kernels expect.
        shape: Of the weight.
        weights: How many.
        outputs: How many.
        columns: How many statistics.
        dtype: Their type.
        itemsize: The bytes of one of them.
        device: Where they are.
        layout: That of the moments in the last record, if they were in a buffer.
        about: What the packed part is about: what `pack` was called with.
        packed: The part of the record that mostly stays.
    """

    __slots__ = (
        *("about", "addresses", "columns", "device", "dtype", "itemsize"),
        *("layout", "mean", "outputs", "packed", "shape", "share", "skipped", "steps", "variance", "weights"),
    )

    def __init__(self, running: RunningAverage, shape: Shape) -> None:
        """Of a layer's averages as they are now, and the shape of its weight."""
        mean = running.mean
        self.mean, self.variance, self.share = mean, running.variance, running.weight
        self.steps, self.skipped, self.columns = running.steps, running.skipped, mean.numel()
        self.shape, self.weights, self.outputs = shape, math.prod(shape), shape[0] * shape[1]
        self.dtype, self.itemsize, self.device = mean.dtype, mean.dtype.itemsize, mean.device
        kinds = (self.dtype, self.dtype, self.dtype, torch.int64, torch.int64)
        sizes = (self.columns, self.columns, 1, 1, 1)
        tensors = running.tensors().values()
        self.addresses = [_dense(*each, self.device) for each in zip(tensors, sizes, kinds, strict=True)]
        self.layout: InputLayout | None = None
        self.about: tuple[Any, ...] = ()
        self.packed = _NONE

    def takes(self, layout: InputLayout) -> bool:
        """Whether moments of inputs of this layout are as the averages are."""
        return layout.columns == self.columns and layout.result is self.dtype and layout.device == self.device

    def pack(self, sites_last: bool, batch: tuple[Count, Count, Count] | None) -> bytes:
        """The part of the record; empty if the averages or the batch are not as the kernels expect.

        Args:
            sites_last: Whether the weights of an output come input by input.
            batch: The numbers of rows, samples and outputs; None if there are sums.
        """
        groups, outputs, inputs, sites = self.shape
        if not all(self.addresses) or self.columns not in (groups * inputs, groups * inputs * sites):
            return _NONE
        shared, mode, q2 = 0, SUMS, 0.0
        if self.columns != groups * inputs * sites:
            shared = SHARED if sites_last else SHARED_SITES_FIRST
        if batch is not None:
            count, samples, positions = batch
            if type(count) is not int or type(samples) is not int or type(positions) is not int:
                return _NONE
            mode = SINGLE_ROW if count == 1 else ROWS
            q2 = float(squared_norm(inputs * sites, samples, positions))
        self.packed = _STAYING.pack(*self.addresses, groups, outputs, inputs, sites, shared, mode, q2)
        self.about = sites_last, batch
        return self.packed


def record(step: LayerStep, only: torch.dtype | None = None, below: float = math.inf) -> bytes:
    """The record; empty if a tensor is not of the size, type and device, or not as dense, as the kernels expect.

    The kernels have nothing but addresses: what is not checked here is not checked at all.

    Args:
        step: The step.
        only: The type that the kernels are for; None: they are for all types of averages.
        below: They are for fewer weights than this.
    """
    known: _Known | None = step.memo.get("record")
    running = step.running
    if (
        known is None
        or running.mean is not known.mean
        or running.variance is not known.variance
        or running.weight is not known.share
        or running.steps is not known.steps
        or running.skipped is not known.skipped
        or (step.shape is not known.shape and step.shape != known.shape)
    ):
        known = step.memo["record"] = _Known(running, step.shape)
    weight, bias, rows, dtype, device = step.weight, step.bias, step.rows, known.dtype, known.device
    if known.weights >= below or (only is not None and dtype is not only):  # the weight is as the averages are
        return _NONE
    weight_at = _address(weight, known.weights, dtype, device)
    if not weight_at:
        return _NONE
    sites_last = weight.is_contiguous()
    if not sites_last and not _is_sites_first(weight, known):
        return _NONE
    bias_at = 0
    if bias is not None:
        bias_at = _address(bias, known.outputs, dtype, device)
        if not bias_at or not bias.is_contiguous():
            return _NONE
    if type(rows) is Rows and type(moments := rows.moments) is BufferMoments and moments.address and rows.zeros == 0:
        layout = moments.layout
        if layout is not known.layout:
            if not known.takes(layout):
                return _NONE
            known.layout = layout
        batch: tuple[Count, Count, Count] | None = (layout.count, rows.samples, rows.positions)
        mean_at = moments.address
        variance_at = mean_at + known.columns * known.itemsize
    else:
        batch, mean_at, variance_at = _batch_of(step, known)
    if not mean_at or (weight_at | bias_at | mean_at | variance_at) % known.itemsize:
        return _NONE  # numbers that do not begin where a processor expects it
    staying = known.packed if (sites_last, batch) == known.about else known.pack(sites_last, batch)
    return _MOVING.pack(weight_at, bias_at, mean_at, variance_at) + staying if staying else _NONE


def _batch_of(step: LayerStep, known: _Known) -> tuple[tuple[Count, Count, Count] | None, int, int]:
    """The numbers of rows, samples and outputs, and where mean and variance are; of sums None, their place, and 0.

    The first address is 0 if what is there is not as the kernels expect.
    """
    rows = step.rows
    if isinstance(rows, RowSums):
        return None, _dense(rows.sums, COUNTS + 2 * known.columns, torch.float64, known.device), 0
    rows = rows.rows()
    if type(rows.zeros) is not int or rows.zeros > 0:  # in the step, so that they stay until the kernel has run
        step.rows = rows = Rows(rows.columns(), rows.samples, rows.positions)
    batch = rows.moments.count, rows.samples, rows.positions
    mean, variance = (
        _dense(tensor, known.columns, known.dtype, known.device)
        for tensor in (rows.moments.mean, rows.moments.variance)
    )
    return batch, mean if variance and all(type(count) is int for count in batch) else 0, variance


def _is_sites_first(weight: Tensor, known: _Known) -> bool:
    """Whether the weights of an output come site by site, and all sites of an input have its statistics."""
    return known.columns == known.shape[0] * known.shape[2] and is_channels_last(weight)


def _dense(tensor: Tensor, numel: int, dtype: torch.dtype, device: torch.device) -> int:
    """As `_address`; 0 also if the numbers have gaps between them."""
    address = _address(tensor, numel, dtype, device)
    return address if address and tensor.is_contiguous() else 0


def _address(tensor: Tensor, numel: int, dtype: torch.dtype, device: torch.device) -> int:
    """Where a tensor begins; 0 if it is not so many numbers of a type on a device, in memory of its own."""
    if (
        type(tensor) is not Tensor
        or tensor.dtype is not dtype
        or tensor.numel() != numel
        or tensor.device != device
        or tensor.is_neg()
    ):
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a sparse tensor, or another one that has no numbers of its own
        return 0
