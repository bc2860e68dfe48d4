"""The hooks on one layer: they gather the rows whose gradient has arrived.

The forward computes the moments of the input. They wait on the output, and count when a backward
both reaches that output and computes the gradient of the layer's weight. What is evaluated, never
reaches a loss, or is differentiated for another purpose (an input's gradient, say) leaves no trace.
"""

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.layers import LayerType
from trimtab.bnp.options import Options
from trimtab.bnp.statistics import Rows, RunningAverage, precision_of
from trimtab.bnp.traced import LayerHook, Tally, observable

# The number of the backward that is running in this thread, −1 outside one. torch's own
# register_multi_grad_hook tells backwards apart by it.
_current_backward: Callable[[], int] = torch._C._current_graph_task_id


_number = itertools.count()  # tells the forwards apart, since several backwards can go through one


class _Pool:
    """The rows of several forwards, pooled, each forward once."""

    __slots__ = ("forwards", "rows")

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = rows
        self.forwards: set[int] = set()

    def add(self, forwards: dict[int, Rows]) -> None:
        for number, rows in forwards.items():
            if number not in self.forwards:
                self.forwards.add(number)
                self.rows = self.rows.merge(rows) if self.rows else rows


class Observer:
    """Watches one layer and keeps its statistics.

    Attributes:
        name: The layer's name in the model.
        module: The layer.
        kind: What is known of its type.
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
        self.running: RunningAverage | None = None
        self.said_unheard = False
        self.said_unsuited = False
        # The rows of a forward pass through these, in this order.
        self._reached: dict[int, dict[int, Rows]] = {}  # a backward, by its number, has come to the layer's output
        self._computed: dict[int, Rows] = {}  # and has the gradient of its weight,
        self._accumulated = _Pool()  # which was added to weight.grad,
        self._handed_out = _Pool()  # or was given to who asked for it by torch.autograd.grad.
        self._gradient_held: tuple[weakref.ref[Tensor], int] | None = None  # weight.grad then, and its version
        self._asked = -1  # the backward at whose begin that was last compared
        self._watched: nn.Parameter | None = None
        self._weight_handles: list[RemovableHandle] = []
        self._tally = Tally()  # what compiled code has seen
        self._handle: RemovableHandle | None = None

    @property
    def weight(self) -> nn.Parameter | None:
        """The layer's weight, if it is a parameter of its own (and not computed from others)."""
        weight = self.module._parameters.get("weight")
        return weight if isinstance(weight, nn.Parameter) else None

    def trained_bias(self, parameters: set[int] | None) -> nn.Parameter | None:
        """The layer's bias, if it has one that is trained and among the parameters (None: all)."""
        bias = self.module._parameters.get("bias")
        trained = isinstance(bias, nn.Parameter) and bias.requires_grad
        return bias if trained and (parameters is None or id(bias) in parameters) else None

    def units(self, weight: Tensor) -> Tensor:
        """A tensor of the weight's shape as (groups, outputs, inputs, sites)."""
        return self.kind.units(self.module, weight)

    @property
    def pending(self) -> Rows | None:
        """All rows whose gradient is in weight.grad, pooled.

        If no backward has added to it, whoever took the gradients by hand is expected to have put them there.
        """
        rows, weight = self._accumulated.rows, self.weight
        traced = None if weight is None else self._tally.rows(weight)
        if traced is not None:
            return traced if rows is None else traced.merge(rows)
        return rows or self.handed_out

    @property
    def handed_out(self) -> Rows | None:
        """The rows whose gradient torch.autograd.grad has returned to its caller."""
        self._settle()
        return self._handed_out.rows

    def check(self, rows: Rows) -> None:
        """Refuse rows that the running averages are not for."""
        if self.running is not None and self.running.mean.shape != rows.moments.mean.shape:
            raise ValueError(
                f"Layer {self.name!r} has statistics of shape {tuple(self.running.mean.shape)}, but its input has "
                f"{tuple(rows.moments.mean.shape)}; make a new BNP for the changed layer."
            )

    def discard(self) -> None:
        """Forget the pending rows, and those that could become pending."""
        self._reached.clear()
        self._computed = {}
        self._accumulated, self._handed_out = _Pool(), _Pool()
        self._gradient_held = None
        self._tally.forget()
        if (weight := self.weight) is not None and not self._tally.at(weight.device):
            self._fit_tally(weight)

    def restore(self, running: RunningAverage | None, accumulated: Rows | None, handed_out: Rows | None) -> None:
        """Take up a saved state. Accumulated rows stay if weight.grad is restored before the next backward."""
        self.discard()
        self.running = running
        self._accumulated, self._handed_out = _Pool(accumulated), _Pool(handed_out)

    def start(self) -> None:
        """Put the hook on the layer, if it is not."""
        if self._handle is None:
            hook = LayerHook(self._forward, self.kind, self.options, self._tally)
            self._handle = self.module.register_forward_hook(hook, with_kwargs=True)
            self._fit_tally(self.weight)

    def stop(self) -> None:
        """Take the hooks off and forget the pending rows."""
        self.discard()
        self._watch(None)
        self._tally.clear()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    @torch.no_grad()
    def _forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Forward hook: compute the moments of the input and let them wait on the output."""
        seen = observable(module, args, kwargs, output)
        if seen is None:
            return
        x, outputs = seen
        rows = self.kind.observe(module, x, outputs[0], self.options)
        if rows.moments.count == 0:
            return
        self._watch(self.weight)
        if _current_backward() == -1:  # no backward is under way: what it reached has come to nothing
            self._reached.clear()
        number = next(_number)

        def reached(grad: Tensor) -> None:
            self._reached.setdefault(_current_backward(), {})[number] = rows

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
            self._fit_tally(weight)

    def _fit_tally(self, weight: nn.Parameter | None) -> None:
        """Be ready for compiled code, which cannot make itself what it needs."""
        if weight is not None and not isinstance(weight, nn.UninitializedParameter) and weight.numel():
            units = self.units(weight.detach().contiguous())
            self._tally.fit(weight, units, self.options, self._token_reached)

    def _gradient(self, grad: Tensor) -> None:
        """Tensor hook: this backward has the weight's gradient."""
        self._settle()
        self._computed = self._reached.pop(_current_backward(), {})
        self._forget_what_was_dropped()

    def _token_reached(self, sums: Tensor) -> None:
        """Tensor hook: a backward through compiled code has come to this layer.

        The same backward has the weight's gradient; which of the two comes first is not known.
        """
        weight = self.weight
        self._watch(weight)
        self._forget_what_was_dropped()
        if self.running is None and weight is not None:  # before a compiled step, which would be compiled twice
            like = sums.new_empty(self._tally.columns, dtype=precision_of(weight), device=weight.device)
            self.running = RunningAverage(like, debias=self.options.debias)

    def _forget_what_was_dropped(self) -> None:
        """At the begin of each backward: rows whose gradient is gone do not count."""
        backward = _current_backward()
        if backward != self._asked and self._was_dropped():
            self._accumulated = _Pool()
            self._tally.forget()
        self._asked = backward

    def _settle(self) -> None:
        """What a backward computed and did not add to weight.grad, it has handed out."""
        self._handed_out.add(self._computed)
        self._computed = {}

    def _accumulate(self, weight: Tensor) -> None:
        """Post-accumulate hook: this backward's gradient has been added to weight.grad.

        So the loop does not work by hand, and what was handed out before was for another purpose.
        """
        self._accumulated.add(self._computed)
        self._computed = {}
        self._handed_out = _Pool()
        if weight.grad is not None:
            self._gradient_held = weakref.ref(weight.grad), weight.grad._version

    def _was_dropped(self) -> bool:
        """Whether the gradient of the accumulated rows has since been set to None or to zero.

        Its values are looked at only if something other than a backward has changed it.
        """
        if self._watched is None or (self._accumulated.rows is None and self._tally.empty):
            return False
        grad = self._watched.grad
        if grad is None or self._gradient_held is None:
            return grad is None
        held, version = self._gradient_held
        return (grad is not held() or grad._version != version) and not bool(grad.any())
