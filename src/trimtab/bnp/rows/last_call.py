"""The last call of a layer, to get the rows of the next one in less time if it is like that."""

from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.algorithm.moments import Rows
from trimtab.bnp.backends import InputLayout
from trimtab.bnp.layers import InputColumns, is_kept


class LastCall:
    """What is known of calls with an input and an output of these shapes: all but the moments."""

    __slots__ = ("_layer", "_layout", "_output", "_positions", "_samples", "_zeros")

    def __init__(self, layer: Any, layout: InputLayout, output: torch.Size, columns: InputColumns) -> None:
        """What was called, the layout of the input, the shape of the output, and what the call has shown."""
        self._layout, self._output = layout, output
        self._layer = layer if layout.device.type == "cuda" else None  # where moments may wait
        self._samples, self._positions, self._zeros = columns.samples, columns.positions, columns.zeros

    def rows(self, x: Tensor, y: Tensor) -> Rows | None:
        """The rows of a call that is like the last one; None if it is not."""
        layout = self._layout
        if (
            type(x) is not Tensor
            or x.layout is not torch.strided
            or x.shape != layout.shape
            or y.shape != self._output
            or x.dtype is not layout.dtype
            or x.stride() != layout.strides
            or x.device != layout.device
        ):
            return None
        layer = self._layer
        moments = layout.moments(x, layer is not None and is_kept(layer, x))
        return None if moments is None else Rows(moments, self._samples, self._positions, self._zeros)
