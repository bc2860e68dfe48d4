"""The hooks on one layer: they gather the rows whose gradient has arrived.

The forward computes the moments of the input; `ledger` knows which of them count. What is evaluated, never reaches a
loss, or is differentiated for another purpose (an input's gradient, say) leaves no trace.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.kernels import KernelMoments, Kernels, Recipe
from trimtab.bnp.layers import LayerType, kept_now, misfit, output_first
from trimtab.bnp.ledger import Ledger
from trimtab.bnp.options import Options
from trimtab.bnp.own_forward import OwnForward
from trimtab.bnp.statistics import Moments, Number, Rows, RunningAverage, precision_of
from trimtab.bnp.traced import LayerHook, OwnForwardHook, Tally, is_exporting, is_parameter, observable
from trimtab.bnp.update import Update

_FOR_NOTHING = (None, None, torch.Size())


class Observer:
    """Watches one layer and keeps its statistics.

    Attributes:
        name: The layer's name in the model.
        module: The layer.
        kind: What is known of its type.
        running: The running averages, from the first step on.
        ledger: Which of the rows that were seen count.
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
        # How rows were got the last time, for an output of which shape, and with how many samples and outputs.
        self._recipe: Recipe | None = None
        self._recipe_is_for: tuple[torch.Size, Number, Number] = (torch.Size(), 0, 0)
        # What the last step was about, if it can be used again; for rows of which recipe, for which bias and shape.
        self._update: Update | None = None
        self._update_is_for: tuple[Recipe | None, nn.Parameter | None, torch.Size] = _FOR_NOTHING
        self._shape: tuple[Any, tuple[int, int, int, int]] | None = None
        self._tally = Tally()  # what compiled code has seen
        self.ledger = Ledger(self._tally)
        self._handles: list[RemovableHandle] = []
        self._implementations: tuple[Any, ...] = ()  # what the hooks are for
        self._even_if_silent = False
        self._own: OwnForward | None = None  # what is seen of a forward of its own
        # Why the layer is left alone, if that has come out when it ran, and what it was like then.
        self._problem: str | None = None
        self._problem_is_for: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """For copies: without hooks, rows, addresses of memory and what is for the kernels of this machine."""
        tally = Tally()
        without = {"_update": None, "_update_is_for": _FOR_NOTHING, "_recipe": None, "_own": None, "_problem": None}
        afresh = {
            "_handles": [],
            "_implementations": (),
            "_problem_is_for": (),
            "_tally": tally,
            "ledger": Ledger(tally),
        }
        return {**self.__dict__, **without, **afresh}

    @property
    def weight(self) -> nn.Parameter | None:
        """The layer's weight, if it is a parameter of its own (and not computed from others)."""
        weight = self.module._parameters.get("weight")
        return weight if is_parameter(weight) else None

    def trained_bias(self, parameters: set[int] | None) -> nn.Parameter | None:
        """The layer's bias, if it has one that is trained and among the parameters (None: all)."""
        bias = self.module._parameters.get("bias")
        if self._own is not None and not self._own.adds_bias:
            return None
        if bias is None or not bias.requires_grad or (parameters is not None and id(bias) not in parameters):
            return None
        return bias if type(bias) is nn.Parameter or is_parameter(bias) else None

    @property
    def problem(self) -> str | None:
        """Why the layer is left alone, in a few words, if that has come out when it ran; until the layer changes."""
        if self._own is not None and self._own.problem is not None:
            self._has(self._own.problem)
            self._own.problem = None
        if self._problem is not None and self._problem_is_for != self._likeness():
            self._problem = None
        return self._problem

    @property
    def adds_bias(self) -> bool:
        """Whether the layer adds its bias, if it has one, where it multiplies its weight."""
        return self._own is None or self._own.adds_bias

    def _has(self, problem: str) -> None:
        """Leave the layer alone for this reason, as long as it is as it is now."""
        self._problem, self._problem_is_for = problem, self._likeness()

    def _likeness(self) -> tuple[Any, ...]:
        """What can be changed about a layer so that it has no problem any longer."""
        weight = self.module._parameters.get("weight")
        about = () if weight is None else (weight.shape, weight.dtype, weight.device)
        return (*about, getattr(self.module, "groups", 1), *self.kind.implementations(self.module))

    def units(self, weight: Tensor) -> Tensor:
        """A tensor of the weight's shape as (groups, outputs, inputs, sites)."""
        return self.kind.units(self.module, weight)

    def shape(self, weight: Tensor) -> tuple[int, int, int, int] | None:
        """The shape of the view that `units` gives; None, and a problem, if it gives none."""
        known_for = weight.shape, getattr(self.module, "groups", 1)
        if self._shape is None or self._shape[0] != known_for:
            like = torch.empty(weight.shape, device="meta")
            try:
                units = self.units(like)
                groups, outputs, inputs, sites = units.shape
            except Exception:  # it may be a user's function
                units = None
            if units is None or units._base is not like or units.numel() != like.numel():
                self._has(f"a weight of shape {tuple(weight.shape)} is not laid out as the units of its type say")
                return None
            self._shape = known_for, (groups, outputs, inputs, sites)
        return self._shape[1]

    @property
    def pending(self) -> Rows | None:
        """All rows whose gradient is in weight.grad, pooled.

        If no backward has added to it, whoever took the gradients by hand is expected to have put them there.
        """
        rows = self.ledger.accumulated
        if not self._tally.empty and (weight := self.weight) is not None:
            traced = self._tally.rows(weight)
            return traced if traced is None or rows is None else traced.merge(rows)
        return self.handed_out if rows is None else rows

    @property
    def handed_out(self) -> Rows | None:
        """The rows whose gradient torch.autograd.grad has returned to its caller."""
        return self.ledger.handed_out

    def update(self, weight: nn.Parameter, grad: Tensor, parameters: set[int] | None) -> Update | None:
        """What the step of this layer is about; None if no input was seen, or if there is a `problem`.

        Raises:
            ValueError: If its running averages are for other inputs.
        """
        if (self._problem is not None or self._own is not None) and self.problem is not None:
            return None
        rows, token = self.ledger.accumulated, self._tally.token
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
        if grad.shape != weight.shape:
            self._has(f"its gradient has shape {tuple(grad.shape)}, its weight {tuple(weight.shape)}")
            return None
        shape = self._fitting_shape(rows, weight)
        if shape is None:
            return None
        batch = rows.columns().to(weight.device)
        self._check(batch)
        if token is not None and token.device != weight.device:  # the model was moved; these sums have been, too
            self._fit(weight)
        update = Update(
            weight=grad,
            bias=None if bias is None else bias.grad,
            batch=batch,
            running=self._average(batch),
            samples=rows.samples,
            outputs=rows.outputs,
            units=self.units,
            shape=shape,
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
        elif self.running.to(batch):
            self._update = None
        return self.running

    def restore(self, running: RunningAverage | None, accumulated: Rows | None, handed_out: Rows | None) -> None:
        """Take up a saved state. Accumulated rows stay if weight.grad is restored before the next backward."""
        self.running = running
        self.ledger.restore(accumulated, handed_out)

    def start(self) -> None:
        """Put the hooks on the layer, if they are not."""
        if not self._handles:
            self.hook()
            self._follow(self.weight)

    def hook(self, *, even_if_silent: bool = False) -> None:
        """Put the hooks on the layer's calls."""
        module, about = self.module, (self.kind, self.options, self._tally)
        self._implementations, self._even_if_silent = self.kind.implementations(module), even_if_silent
        if self.kind.is_overridden_in(module):
            own = OwnForwardHook(module, self._multiplied, *about, even_if_silent=even_if_silent)
            self._own = own.forward
            self._handles = [
                module.register_forward_pre_hook(own.before()),
                module.register_forward_hook(own, always_call=True),
            ]
        else:
            hook = LayerHook(self._forward, *about, even_if_silent=even_if_silent)
            self._handles = [module.register_forward_hook(hook, with_kwargs=True)]

    def unhook(self) -> None:
        """Take the hooks off the layer's calls."""
        for handle in self._handles:
            handle.remove()
        if self._own is not None:
            self._own.close()
        self._handles, self._own = [], None

    def look_again(self) -> None:
        """See to it that the hooks are those for the layer's `forward`, which may have been replaced."""
        if self._handles and self.kind.implementations(self.module) != self._implementations:
            self.unhook()
            self.hook(even_if_silent=self._even_if_silent)

    def stop(self) -> None:
        """Take the hooks off and forget the pending rows."""
        self.ledger.discard()
        self.ledger.follow(None)
        self._tally.clear()
        self._update, self._update_is_for = None, _FOR_NOTHING
        self.unhook()

    def _forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Forward hook: get the rows of the input and let them wait on the output."""
        if self._problem is not None and self.problem is not None:
            return
        if "forward" in module.__dict__:  # replaced since the hooks were put on: this call was not followed
            self.look_again()
            return
        rows = self._rows_again(module, args, output)
        outputs: Sequence[Tensor] = (output,)
        if rows is None:
            seen = None if is_exporting() else observable(module, args, kwargs, output)
            if seen is None:
                return
            x, outputs, weight = seen
            rows = self._rows(module, x, outputs[0], weight)
            if rows is None:
                return
        self._let_wait(rows, outputs)

    def _multiplied(self, settings: Any, x: Tensor, y: Tensor) -> None:
        """Get the rows of an affine call, in a forward of the layer's own, and let them wait on its output."""
        weight = self.weight
        if self.problem is not None or weight is None or not weight.requires_grad or not weight.numel():
            return
        rows = self._rows_again(self.module, (x,), y) or self._rows(settings, x, y, weight)
        if rows is None:
            return
        self._let_wait(rows, (y,))

    def _let_wait(self, rows: Rows, outputs: Sequence[Tensor]) -> None:
        """Let rows wait until a backward comes to an output."""
        reached = self.ledger.entry(rows, self._kernels)
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
        recipe, weight = self._recipe, self.ledger.weight
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

    def _rows(self, layer: Any, x: Tensor, y: Tensor, weight: nn.Parameter) -> Rows | None:
        """The rows of any call; None if there are none, or if they cannot be the layer's."""
        rows = self.kind.observe(layer, x, y, self.options)
        if self._fitting_shape(rows, weight) is None:
            return None
        found = rows.moments
        if found.count == 0:
            return None
        if type(found) is KernelMoments:
            if found.x is not None:
                self._kernels.let_wait(found)
            if self.kind.by_shape:
                self._recipe, self._recipe_is_for = found.recipe, (y.shape, rows.samples, rows.outputs)
        if weight is not self.ledger.weight:
            self._follow(weight)
        return rows

    def _fitting_shape(self, rows: Rows, weight: nn.Parameter) -> tuple[int, int, int, int] | None:
        """The shape of the weight, if rows can be those of the layer; else None, and that is its problem."""
        shape = self.shape(weight)
        if shape is not None and (problem := misfit(rows, weight, shape)) is not None:
            self._has(problem)
            return None
        return shape

    def _follow(self, weight: nn.Parameter | None) -> None:
        """See what becomes of this weight's gradients."""
        if weight is not None and not isinstance(weight, nn.UninitializedParameter):
            self.ledger.follow(weight if weight.requires_grad else None)
            self._fit(weight)

    def _fit(self, weight: nn.Parameter | None) -> None:
        """Be ready for compiled code, which cannot make itself what it needs."""
        if weight is not None and weight.numel() and (shape := self.shape(weight)) is not None:
            self._tally.fit(weight, shape, self.options, self._token_reached)

    def _token_reached(self, sums: Tensor) -> None:
        """Tensor hook: a backward through compiled code has come to this layer."""
        weight = self.weight
        if weight is not self.ledger.weight:
            self._follow(weight)
        self.ledger.reached_by_compiled_code()
        if self.running is None and weight is not None:  # before a compiled step, which would be compiled twice
            like = sums.new_empty(self._tally.columns, dtype=precision_of(weight), device=weight.device)
            self.running = RunningAverage(like, debias=self.options.debias)
