"""The hooks on one layer: they gather the rows whose gradient has arrived.

The forward computes the moments of the input. They wait on the output, and count when a backward
both reaches that output and computes the gradient of the layer's weight. What is evaluated, never
reaches a loss, or is differentiated for another purpose (an input's gradient, say) leaves no trace.
"""

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.kernels import KernelMoments, Kernels, Recipe
from trimtab.bnp.layers import LayerType, kept_now, output_first
from trimtab.bnp.options import Options
from trimtab.bnp.statistics import Moments, Number, Rows, RunningAverage, precision_of
from trimtab.bnp.traced import LayerHook, Tally, is_parameter, observable
from trimtab.bnp.update import Update

# The number of the backward that is running in this thread, −1 outside one; and whether it comes to a place in the
# graph. torch's own register_multi_grad_hook tells backwards apart by these.
_current_backward: Callable[[], int] = torch._C._current_graph_task_id
_comes_to: Callable[[Any], bool] = torch._C._will_engine_execute_node


_number = itertools.count()  # tells the forwards apart, since several backwards can go through one


class _Pool:
    """The rows of several forwards, pooled, each forward once."""

    __slots__ = ("forwards", "rows")

    def __init__(self) -> None:
        self.rows: Rows | None = None
        self.forwards: set[int] = set()

    def hold(self, rows: Rows | None) -> None:
        """Have these and no others; their forwards are past."""
        self.rows = rows
        self.forwards.clear()

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

    def __init__(self, name: str, module: nn.Module, kind: LayerType, options: Options, kernels: Kernels) -> None:
        """Know the layer; `start` puts the hook on."""
        self._kernels = kernels
        self.name = name
        self.module = module
        self.kind = kind
        self.options = options
        self.running: RunningAverage | None = None
        self.said_unheard = False
        self.said_unsuited = False
        # The rows of a forward pass through these, in this order.
        self._reached: dict[int, dict[int, Rows]] = {}  # a backward, by its number, has come to the layer's output,
        self._accumulated = _Pool()  # and the weight's gradient was added to weight.grad,
        self._handed_out = _Pool()  # or is for who asked for it by torch.autograd.grad.
        self._backward = -1  # the backward that has last come here,
        self._hands_out = False  # and whether it is torch.autograd.grad's, as far as that is asked.
        # The answer takes a while, and in most loops it is no: it is asked until a backward has added to weight.grad,
        # and again from when one did not.
        self._asks = True
        self._gradient_held: tuple[weakref.ref[Tensor], int] | None = None  # weight.grad then, and its version
        # How rows were got the last time, for an output of which shape, and with how many samples and outputs.
        self._recipe: Recipe | None = None
        self._recipe_is_for: tuple[torch.Size, Number, Number] = (torch.Size(), 0, 0)
        # What the last step was about, if it can be used again; for rows of which recipe, for which bias and shape.
        self._update: Update | None = None
        self._update_is_for: tuple[Recipe | None, nn.Parameter | None, torch.Size] = (None, None, torch.Size())
        self._shape: tuple[torch.Size, tuple[int, int, int, int]] | None = None
        self._watched: nn.Parameter | None = None
        self._weight_handles: list[RemovableHandle] = []
        self._is_compiled = False  # or has been
        self._tally = Tally()  # what compiled code has seen
        self._handle: RemovableHandle | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies: without what holds addresses of memory, or is for the kernels of this machine."""
        without = {"_update": None, "_update_is_for": (None, None, torch.Size()), "_recipe": None}
        return {**self.__dict__, **without}

    @property
    def weight(self) -> nn.Parameter | None:
        """The layer's weight, if it is a parameter of its own (and not computed from others)."""
        weight = self.module._parameters.get("weight")
        return weight if is_parameter(weight) else None

    def trained_bias(self, parameters: set[int] | None) -> nn.Parameter | None:
        """The layer's bias, if it has one that is trained and among the parameters (None: all)."""
        bias = self.module._parameters.get("bias")
        if bias is None or not bias.requires_grad or (parameters is not None and id(bias) not in parameters):
            return None
        return bias if is_parameter(bias) else None

    def units(self, weight: Tensor) -> Tensor:
        """A tensor of the weight's shape as (groups, outputs, inputs, sites)."""
        return self.kind.units(self.module, weight)

    def shape(self, weight: Tensor) -> tuple[int, int, int, int]:
        """The shape of the view that `units` gives."""
        if self._shape is None or self._shape[0] != weight.shape:
            groups, outputs, inputs, sites = self.units(torch.empty(weight.shape, device="meta")).shape
            self._shape = weight.shape, (groups, outputs, inputs, sites)
        return self._shape[1]

    @property
    def pending(self) -> Rows | None:
        """All rows whose gradient is in weight.grad, pooled.

        If no backward has added to it, whoever took the gradients by hand is expected to have put them there.
        """
        rows = self._accumulated.rows
        if not self._tally.empty and (weight := self.weight) is not None:
            traced = self._tally.rows(weight)
            return traced if traced is None or rows is None else traced.merge(rows)
        return self.handed_out if rows is None else rows

    @property
    def handed_out(self) -> Rows | None:
        """The rows whose gradient torch.autograd.grad has returned to its caller."""
        self._settle()
        return self._handed_out.rows

    def update(self, weight: nn.Parameter, grad: Tensor, parameters: set[int] | None) -> Update | None:
        """What the step of this layer is about; None if no input was seen.

        Raises:
            ValueError: If its running averages are for other inputs.
        """
        rows, token = self._accumulated.rows, self._tally.token
        if rows is None or (token is not None and token.grad is not None):
            rows = self.pending
            if rows is None:
                return None
        bias = self.trained_bias(parameters)
        batch, last = rows.moments, self._update
        if (
            last is not None
            and type(batch) is KernelMoments
            and batch.recipe is self._update_is_for[0]
            and bias is self._update_is_for[1]
            and grad.shape == self._update_is_for[2]
            and self.running is last.running
        ):
            last.weight, last.batch = grad, batch
            last.bias = None if bias is None else bias.grad
            return last
        batch = rows.columns().to(weight.device)
        self._check(batch)
        update = Update(
            weight=grad,
            bias=None if bias is None else bias.grad,
            batch=batch,
            running=self._average(batch),
            samples=rows.samples,
            outputs=rows.outputs,
            units=self.units,
            shape=self.shape(weight),
            by_output=self.kind.units is output_first,
        )
        if self._recipe is not None and type(batch) is KernelMoments:
            self._update, self._update_is_for = update, (batch.recipe, bias, grad.shape)
        return update

    def _check(self, batch: Moments) -> None:
        """Refuse rows that the running averages are not for."""
        if self.running is not None and self.running.mean.shape != batch.shape:
            raise ValueError(
                f"Layer {self.name!r} has statistics of shape {tuple(self.running.mean.shape)}, but its input has "
                f"{tuple(batch.shape)}; make a new BNP for the changed layer."
            )

    def _average(self, batch: Moments) -> RunningAverage:
        """The running averages, made for or moved to where the moments are."""
        if self.running is None:
            self.running = RunningAverage(batch, debias=self.options.debias)
        elif self.running.to(batch) and (weight := self.weight) is not None:
            self._update = None
            self._fit(weight)
        return self.running

    def discard(self) -> None:
        """Forget the pending rows, and those that could become pending."""
        if self._reached:
            self._reached.clear()
        for pool in (self._accumulated, self._handed_out):
            if pool.rows is not None:
                pool.hold(None)
        self._gradient_held = None
        if not self._tally.empty:
            self._tally.forget()

    def restore(self, running: RunningAverage | None, accumulated: Rows | None, handed_out: Rows | None) -> None:
        """Take up a saved state. Accumulated rows stay if weight.grad is restored before the next backward."""
        self.discard()
        self.running = running
        self._accumulated.hold(accumulated)
        self._handed_out.hold(handed_out)

    def start(self) -> None:
        """Put the hook on the layer, if it is not."""
        if self._handle is None:
            hook = LayerHook(self._forward, self.kind, self.options, self._tally)
            self._handle = self.module.register_forward_hook(hook, with_kwargs=True)
            self._fit(self.weight)

    def stop(self) -> None:
        """Take the hooks off and forget the pending rows."""
        self.discard()
        self._watch(None)
        self._tally.clear()
        self._update, self._update_is_for = None, (None, None, torch.Size())
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Forward hook: get the rows of the input and let them wait on the output."""
        rows = self._rows_again(module, args, output)
        outputs: Sequence[Tensor] = (output,)
        if rows is None:
            seen = observable(module, args, kwargs, output)
            if seen is None:
                return
            x, outputs, weight = seen
            rows = self._rows(module, x, outputs[0])
            if rows is None:
                return
            if weight is not self._watched:
                self._watch(weight)
        if self._reached and _current_backward() == -1:  # no backward is under way: what it reached came to nothing
            self._settle()
        kernels, number = self._kernels, next(_number)

        def reached(grad: Tensor) -> None:
            if kernels.waiting:
                kernels.compute()
            backward = _current_backward()
            if backward != self._backward:
                self._begin(backward)
            if self._hands_out:
                self._handed_out.add({number: rows})
            elif (others := self._reached.get(backward)) is None:
                self._reached[backward] = {number: rows}
            else:
                others[number] = rows

        for y in outputs:
            # A view that is changed in place later (Linear on three dimensions, then relu_) gets a new place in the
            # graph, and its base keeps the old one.
            if y._base is not None and y._base.requires_grad:
                y = y._base
            if y._backward_hooks is None and y.grad_fn is not None:  # as register_hook does it, in a fifth of its time
                y._backward_hooks = OrderedDict(((-1, reached),))
                y.grad_fn._register_hook_dict(y)
            else:
                y.register_hook(reached)

    def _rows_again(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Rows | None:
        """The rows of a call that is like the last one, for which all is known; None if it is not."""
        recipe, weight = self._recipe, self._watched
        if recipe is None or weight is None or type(output) is not Tensor or not args:
            return None
        x = args[0]
        if (
            module._parameters.get("weight") is not weight
            or not (weight.requires_grad and output.requires_grad)
            or type(x) is not Tensor
            or x.layout is not torch.strided
            or x.shape != recipe.shape
            or output.shape != self._recipe_is_for[0]
            or x.dtype is not recipe.dtype
            or x.stride() != recipe.strides
            or x.device != recipe.device
        ):
            return None
        if recipe.waits and not kept_now(x):
            return None
        moments = recipe.moments(x)
        if moments is None:
            return None
        if recipe.waits:
            self._kernels.let_wait(moments)
        return Rows(moments, self._recipe_is_for[1], self._recipe_is_for[2])

    def _rows(self, module: nn.Module, x: Tensor, y: Tensor) -> Rows | None:
        """The rows of any call; None if there are none."""
        rows = self.kind.observe(module, x, y, self.options)
        found = rows.moments
        if type(found) is KernelMoments:
            if found.x is not None:
                self._kernels.let_wait(found)
            if self.kind.by_shape:
                self._recipe, self._recipe_is_for = found.recipe, (y.shape, rows.samples, rows.outputs)
        elif found.count == 0:
            return None
        return rows

    def _watch(self, weight: nn.Parameter | None) -> None:
        """Put the hooks on this weight, and on no other."""
        if weight is self._watched:
            return
        for handle in self._weight_handles:
            handle.remove()
        self._watched = weight
        self._weight_handles = []
        if weight is not None:
            self._weight_handles.append(weight.register_post_accumulate_grad_hook(self._accumulate))
            if self._is_compiled:
                self._weight_handles.append(weight.register_hook(self._gradient))
            self._fit(weight)

    def _fit(self, weight: nn.Parameter | None) -> None:
        """Be ready for compiled code, which cannot make itself what it needs."""
        if weight is not None and not isinstance(weight, nn.UninitializedParameter) and weight.numel():
            self._tally.fit(weight, self.shape(weight), self.options, self._token_reached)

    def _begin(self, backward: int) -> None:
        """A backward has come to the layer, or to its weight's gradient: rows whose gradient is gone do not count."""
        self._backward, self._hands_out = backward, False
        if not self._asks and self._accumulated.rows is None and self._tally.empty:
            return
        assert self._watched is not None
        try:
            # Not kept: while somebody holds this place of the graph, the weight cannot get another shape.
            if not _comes_to(torch.autograd.graph.get_gradient_edge(self._watched).node):
                return  # the gradient of something else is wanted
        except RuntimeError:  # torch.autograd.grad has been asked for the weight's: this is how torch says so
            self._hands_out = True
        if self._was_dropped():
            self._accumulated.hold(None)
            self._tally.forget()

    def _settle(self) -> None:
        """What a backward reached and did not add to weight.grad, it has handed out, unless it is known what it did."""
        if self._reached:
            if not self._asks:
                for forwards in self._reached.values():
                    self._handed_out.add(forwards)
            self._reached.clear()
            self._asks = True

    def _gradient(self, grad: Tensor) -> None:
        """Tensor hook, for compiled code: a backward has the weight's gradient."""
        if (backward := _current_backward()) != self._backward:
            self._begin(backward)

    def _token_reached(self, sums: Tensor) -> None:
        """Tensor hook: a backward through compiled code has come to this layer.

        The same backward has the weight's gradient; which of the two comes first is not known.
        """
        weight = self.weight
        if not self._is_compiled:
            self._is_compiled, self._watched = True, None
        self._watch(weight)
        self._gradient(sums)
        if self.running is None and weight is not None:  # before a compiled step, which would be compiled twice
            like = sums.new_empty(self._tally.columns, dtype=precision_of(weight), device=weight.device)
            self.running = RunningAverage(like, debias=self.options.debias)

    def _accumulate(self, weight: Tensor) -> None:
        """Post-accumulate hook: this backward's gradient has been added to weight.grad.

        So the loop does not work by hand, and what was handed out before was for another purpose.
        """
        backward, grad = _current_backward(), weight.grad
        # If it did not come through a call of the layer, nobody has looked yet whether the gradient before was dropped.
        if backward != self._backward and (self._gradient_held is None or grad is not self._gradient_held[0]()):
            self._accumulated.hold(None)
        rows = self._reached.pop(backward, None)
        if rows is not None:
            self._accumulated.add(rows)
            self._asks = False
        if self._handed_out.rows is not None:
            self._handed_out.hold(None)
        if grad is not None:
            self._gradient_held = weakref.ref(grad), grad._version

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
