"""Which rows and which statistics fit a layer, by the shape of its weight."""

from typing import Any

import torch
from torch import Tensor

from trimtab import _torch
from trimtab.bnp.algorithm.moments import Moments, Rows
from trimtab.bnp.algorithm.step import Shape
from trimtab.bnp.options import Options

_LARGEST = 2**62  # of the numbers of rows


def is_sharded(tensor: Tensor) -> bool:
    """Whether each of several processes holds a part of a tensor (a DTensor)."""
    return hasattr(tensor, "placements")


def has_each_once(view: Tensor, x: Tensor) -> bool:
    """Whether a view has each number of a contiguous tensor once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(view.stride(), view.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return expected == x.numel()


def column_shapes(weight: Tensor, shape: Shape) -> list[tuple[int, ...]]:
    """The shapes that the moments of a layer's rows may have: one number for each input, or for each of its sites."""
    groups, _, inputs, sites = shape
    return [(groups * inputs,), (groups * inputs, sites), (groups * inputs, *weight.shape[2:])]


def default_columns(weight: Tensor, shape: Shape, options: Options) -> tuple[int, ...]:
    """The shape of the statistics of PyTorch's own layers."""
    return (shape[0] * shape[2], *(weight.shape[2:] if options.spatial == "site" else ()))


def wrong_columns(columns: torch.Size, shape: Shape) -> str:
    """That statistics of columns of this shape cannot be those of a layer, in a few words."""
    return f"its rows have columns of shape {tuple(columns)}, but its weight has {shape[0] * shape[2]} inputs"


def misfit(rows: Any, weight: Tensor, shape: Shape) -> str | None:
    """Why rows cannot be those of a layer with this weight, in a few words; None if they can.

    Args:
        rows: What a function for a type of layer has returned.
        weight: The layer's weight.
        shape: Its shape as (groups, outputs, inputs, sites).
    """
    if not isinstance(rows, Rows) or not isinstance(rows.moments, Moments):
        return f"the function registered for its type returned {type(rows).__name__} instead of Rows of Moments"
    moments = rows.moments
    found = (moments.mean, moments.variance)
    if not all(isinstance(x, Tensor) and x.layout is torch.strided and x.is_floating_point() for x in found):
        return "the mean and the variance of its rows are not tensors of floating-point numbers"
    types = {x.dtype for x in found}
    if len(types) > 1 or types & {torch.float16, torch.bfloat16}:
        return "the mean and the variance of its rows are not both float32 or both float64"
    shapes, devices = [x.shape for x in found], [x.device for x in found]
    if any((device.type == "meta") is not weight.is_meta for device in devices):
        return "the mean and the variance of its rows are on another device than its weight"
    for columns in shapes:
        if columns not in column_shapes(weight, shape):
            return wrong_columns(columns, shape)
    if len(set(shapes)) > 1:
        return "the mean and the variance of its rows have different shapes"
    if isinstance(moments.count, int) and moments.count == 0:
        return None  # there are no rows
    for name, number in (("count", moments.count), ("samples", rows.samples), ("positions", rows.positions)):
        if not _is_number(number, above=0):
            return f"its rows have {name}={number!r}, which is not a positive number"
    if not _is_number(rows.zeros, above=-_LARGEST):
        return f"its rows have zeros={rows.zeros!r}, which is not a number"
    return None


def _is_number(value: Any, above: int) -> bool:
    """Whether it is a number in a reasonable range, or a tensor that may be one: a GPU's are not asked for."""
    if isinstance(value, Tensor):
        if value.ndim or value.is_complex():
            return False
        if not value.is_cpu or type(value) is not Tensor or _torch.is_compiling():
            return True
        value = value.item()
    return isinstance(value, int | float) and above < value < _LARGEST
