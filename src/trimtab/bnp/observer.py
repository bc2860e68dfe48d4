"""The hooks on one layer: they gather the rows whose gradient has arrived.

The forward computes the moments of the input. They wait on the output, and count when a backward
both reaches that output and computes the gradient of the layer's weight. What is evaluated, never
reaches a loss, or is differentiated for another purpose (an input's gradient, say) leaves no trace.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.layers import LayerType
from trimtab.bnp.options import Options
from trimtab.bnp.statistics import Rows, RunningAverage

# The number of the backward that is running in this thread, −1 outside one. torch's own
# register_multi_grad_hook tells backwards apart by it.
_current_backward: Callable[[], int] = torch._C._current_graph_task_id


class ModuleHook:
    """A hook whose copies do nothing, so that copies of a model (deepcopy, pickle) are unobserved."""

    __slots__ = ("function",)

    def __init__(self, function: Any = None) -> None:
        """Call `function` with whatever the hook is called with."""
        self.function = function

    def __call__(self, *args: Any) -> None:
        """Run the function, if this is not a copy."""
        if self.function is not None:
            self.function(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModuleHook":
        """A hook that does nothing."""
        return ModuleHook()

    def __reduce__(self) -> tuple[type["ModuleHook"], tuple[()]]:
        """Pickle as a hook that does nothing."""
        return ModuleHook, ()


class _Forward:
    """The rows of one call of the layer, waiting for its backward."""

    __slots__ = ("counted_in", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.counted_in = -1


class Observer:
    """Watches one layer and keeps its statistics.

    Attributes:
        name: The layer's name in the model.
        module: The layer.
        pending: The rows seen since the last step whose gradient the weight now holds.
        running: The running averages, from the first step on.
        said_unheard: Whether it has been said that the layer had a gradient but no input.
        said_unsuited: Whether it has been said that the layer cannot be preconditioned.
    """

    def __init__(self, name: str, module: nn.Module, kind: LayerType, options: Options) -> None:
        """Know the layer; `start` puts the hook on."""
        self.name = name
        self.module = module
        self.kind = kind
        self.options = options
        self.pending: Rows | None = None
        self.running: RunningAverage | None = None
        self.said_unheard = False
        self.said_unsuited = False
        # Forwards reached by a backward that has not (yet) computed the weight's gradient.
        self._reached: dict[int, list[_Forward]] = {}
        # The version of weight.grad when the pending rows' share was last added; None: never was.
        self._accumulated: int | None = None
        self._period = 0  # counts what ends the pending rows: steps and discards
        self._watched: nn.Parameter | None = None
        self._weight_handles: list[RemovableHandle] = []
        self._handle: RemovableHandle | None = None

    @property
    def weight(self) -> nn.Parameter | None:
        """The layer's weight, if it is a parameter of its own (and not computed from others)."""
        weight = self.module._parameters.get("weight")
        return weight if isinstance(weight, nn.Parameter) else None

    @property
    def bias(self) -> nn.Parameter | None:
        """The layer's bias, if it has one."""
        bias = self.module._parameters.get("bias")
        return bias if isinstance(bias, nn.Parameter) else None

    def gradients(self, parameters: set[int] | None) -> tuple[Tensor, Tensor | None]:
        """The gradients of weight and bias; None for a bias that has none or is not among the parameters."""
        weight, bias = self.weight, self.bias
        assert weight is not None and weight.grad is not None
        theirs = bias is not None and bias.requires_grad and (parameters is None or id(bias) in parameters)
        return weight.grad, bias.grad if bias is not None and theirs else None

    def units(self, weight: Tensor) -> Tensor:
        """A tensor of the weight's shape as (groups, outputs, inputs, sites)."""
        return self.kind.units(self.module, weight)

    def discard(self) -> None:
        """Forget the pending rows, and those that a backward may still make pending."""
        self._reached.clear()
        self._end_period()

    def restore(self, running: RunningAverage | None, pending: Rows | None) -> None:
        """Take up a saved state. Pending rows are kept if the weight's gradient is restored too."""
        self.discard()
        self.running, self.pending = running, pending
        self._accumulated = -1 if pending else None

    def start(self) -> None:
        """Put the hook on the layer, if it is not."""
        if self._handle is None:
            # Disabled for torch.compile here and not by a decorator: that would double the time of our import.
            hook = ModuleHook(torch.compiler.disable(self._forward))
            self._handle = self.module.register_forward_hook(hook, with_kwargs=True)

    def stop(self) -> None:
        """Take the hooks off and forget the pending rows."""
        self.discard()
        self._watch(None)
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    @torch.no_grad()
    def _forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Forward hook: compute the moments of the input and let them wait on the output."""
        weight = self.weight
        outputs = [y for y in _as_tuple(output) if isinstance(y, Tensor) and y.requires_grad]
        if weight is None or not weight.requires_grad or not outputs:
            return
        x = args[0] if args else kwargs.get("input", next(iter(kwargs.values()), None))
        if not isinstance(x, Tensor) or x.is_nested:
            return
        rows = self.kind.observe(module, x, outputs[0], self.options)
        if rows.moments.count == 0:
            return
        self._watch(weight)
        if _current_backward() == -1:  # no backward is under way: what it reached has come to nothing
            self._reached.clear()
        forward = _Forward(rows)

        def reached(grad: Tensor) -> None:
            self._reached.setdefault(_current_backward(), []).append(forward)

        for y in outputs:
            # A view that is changed in place later (Linear on three dimensions, then relu_) gets a new place in the
            # graph, and its base keeps the old one.
            base = y._base
            (base if base is not None and base.requires_grad else y).register_hook(reached)

    def _watch(self, weight: nn.Parameter | None) -> None:
        """Put the hooks on this weight, and on no other."""
        if weight is self._watched:
            return
        for handle in self._weight_handles:
            handle.remove()
        self._watched = weight
        self._weight_handles = []
        if weight is not None:
            self._weight_handles = [
                weight.register_hook(self._gradient),
                weight.register_post_accumulate_grad_hook(self._accumulate),
            ]

    def _gradient(self, grad: Tensor) -> None:
        """Tensor hook: this backward has the weight's gradient, so what it reached counts."""
        forwards = self._reached.pop(_current_backward(), [])
        if self._gradient_was_dropped():
            self._end_period()
        for forward in forwards:
            if forward.counted_in != self._period:  # a second backward through the same forward
                forward.counted_in = self._period
                self.pending = self.pending.merge(forward.rows) if self.pending else forward.rows

    def _end_period(self) -> None:
        self.pending = None
        self._accumulated = None
        self._period += 1

    def _accumulate(self, weight: Tensor) -> None:
        """Post-accumulate hook: the pending rows' gradient is in weight.grad."""
        self._accumulated = weight.grad._version if weight.grad is not None else None

    def _gradient_was_dropped(self) -> bool:
        """Whether the pending rows' gradient has been zeroed since: set to None, or filled with zeros.

        Only a gradient that was changed by something else than a backward is looked at.
        """
        if self.pending is None or self._accumulated is None or self._watched is None:
            return False
        grad = self._watched.grad
        return grad is None or (grad._version != self._accumulated and not bool(grad.any()))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
