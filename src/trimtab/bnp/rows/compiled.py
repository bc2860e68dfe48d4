"""Which rows of a layer count, in compiled code: autograd keeps the books itself.

Eager code keeps its rows in Python until a backward arrives. Compiled code cannot do that without a break in its graph.
There the output of a layer passes through a function that leaves it as it is, and that hands the sums of the rows to a
leaf, the token, as if they were its gradient. So the sums of several calls are added up, several backwards accumulate
in `token.grad`, and a call that no backward reaches leaves no trace.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab import _torch
from trimtab.bnp.algorithm.moments import Moments, Rows, compute_dtype
from trimtab.bnp.algorithm.step import Shape
from trimtab.bnp.layer_shapes import default_columns
from trimtab.bnp.layers import InputColumns, LayerType
from trimtab.bnp.options import Options
from trimtab.bnp.row_sums import COUNTS, RowSums, sums_of


class CompiledRows:
    """What compiled code has seen of one layer.

    Attributes:
        token: The leaf whose gradient gathers the sums. None if the layer has no shape yet, or if its device has no
            float64; then the layer is seen by a break in the graph.
        columns: The shape of the layer's columns, by which the sums are read.
        arrived: Whether a backward has come to it since the last step.
    """

    def __init__(self) -> None:
        """Nothing yet; `fit` makes the token."""
        self.token: nn.Parameter | None = None
        self.columns: tuple[int, ...] = ()
        self.arrived = False
        self._handle: RemovableHandle | None = None
        self._weight: Tensor | None = None

    def fit(self, weight: Tensor, shape: Shape, options: Options, reached: Callable[[Tensor], None]) -> None:
        """See to it that the token fits a layer, and that `reached` is called when a backward has come to it.

        Args:
            weight: The layer's weight.
            shape: Its shape as (groups, outputs, inputs, sites).
            options: BNP's.
            reached: A tensor hook.
        """
        columns = default_columns(weight, shape, options)
        if self.token is None or self.token.device != weight.device or self.columns != columns:
            self.clear()
            if weight.device.type != "mps":
                self.columns = columns
                size = COUNTS + 2 * torch.Size(columns).numel()
                # Its own values are not used, so that they need no memory.
                nothing = torch.zeros(1, dtype=torch.float64, device=weight.device).expand(size)
                self.token = nn.Parameter(nothing)
                self._handle = self.token.register_hook(reached)
        if _torch.mark_static(weight):  # code that was compiled before this does not know of the token
            self._weight = weight

    def rows(self, weight: Tensor) -> RowSums | None:
        """All rows whose gradient has arrived, on the weight's device and in a type to compute in."""
        if self.token is None or self.token.grad is None:
            return None
        return RowSums(self.token.grad.to(weight.device), self.columns, compute_dtype(weight))

    def forget(self) -> None:
        """Begin anew."""
        self.arrived = False
        if self.token is not None:
            self.token.grad = None

    def clear(self) -> None:
        """Let the token go."""
        if self._handle is not None:
            self._handle.remove()
        if self._weight is not None:
            _torch.unmark_static(self._weight)
        self.token = self._handle = self._weight = None

    def witness(self, kind: LayerType, layer: Any, x: Tensor, y: Tensor, options: Options) -> Tensor | None:
        """In compiled code: the output of a call of the layer, whose backward hands the sums of its rows to the token.

        None if that cannot be done, and the layer has to be seen by a break in the graph.
        """
        if self.token is None:
            return None
        with torch.no_grad():
            rows = kind.observe(layer, x, y, options)
            if isinstance(rows, InputColumns):
                rows = rows.rows()
        if not isinstance(rows, Rows) or not self._takes(rows.moments, y):
            return None
        if rows.moments.count == 0:
            return y
        # The token is on another device for one step, after the model was moved.
        return _witness(y, self.token.to(y.device), sums_of(rows))

    def _takes(self, moments: Moments, y: Tensor) -> bool:
        """Whether the token has a place for the sums of these moments, of the rows of an output."""
        tensors = (moments.mean, moments.variance)
        return all(x.shape == self.columns and x.device == y.device and x.is_floating_point() for x in tensors)


class _Witness(torch.autograd.Function):
    """Its output is the first argument; in the backward, the gradient of the second is the third."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, token: Tensor, sums: Tensor) -> Tensor:
        ctx.save_for_backward(sums)
        return output.clone()  # a view could not be changed in place; a compiler takes the copy away

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (sums,) = ctx.saved_tensors
        return grad, sums, None


_witness: Callable[[Tensor, Tensor, Tensor], Tensor] = _Witness.apply
