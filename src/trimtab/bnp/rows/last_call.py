"""The last call of a layer, to get the rows of the next one in less time if it is like that."""

from typing import Any

import torch
from torch import Tensor

from trimtab.bnp.algorithm.moments import Rows
from trimtab.bnp.backends import Backend, InputLayout
from trimtab.bnp.layers import InputColumns, is_saved


class LastCall:
    """What is known of calls with an input and an output of these shapes: all but the moments."""

    __slots__ = ("_backend", "_counts", "_layout", "_output")

    def __init__(self, backend: Backend, layout: InputLayout, output: torch.Size, columns: InputColumns) -> None:
        """What computes the moments, the layout of the input, the shape of the output, and what the call has shown."""
        self._backend, self._layout, self._output = backend, layout, output
        self._counts = columns.samples, columns.outputs, columns.zeros

    def rows(self, layer: Any, x: Tensor, y: Tensor) -> Rows | None:
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
        moments = self._backend.moments(layout, x, x.is_cuda and is_saved(layer, x))
        return None if moments is None else Rows(moments, *self._counts)
