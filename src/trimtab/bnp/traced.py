"""How BNP sees the layers of a compiled model: with no Python left in the compiled code.

An eager forward keeps its rows in Python until a backward arrives. Compiled code cannot do that without a break in its
graph, so there autograd does the bookkeeping. The output passes through a function that leaves it as it is, and that
hands the sums of the rows to a leaf, the token, as if they were its gradient. So the sums of several forwards are added
up, several backwards accumulate in `token.grad`, and a forward that no backward reaches leaves no trace.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.hooks import ModuleHook, is_jit_tracing
from trimtab.bnp.kernels import NUMBERS, SummedMoments
from trimtab.bnp.layers import LayerType
from trimtab.bnp.options import Options
from trimtab.bnp.own_forward import OwnForward
from trimtab.bnp.stale import put_back, set_apart
from trimtab.bnp.statistics import Moments, Rows, at_least, precision_of


def is_exporting() -> bool:
    """Whether this is traced for torch.export. torch's own function of that name is always true when traced by 2.11."""
    exporting: bool = getattr(torch.compiler, "_is_exporting_flag", False)  # not in all versions
    return exporting


def is_parameter(value: Any) -> TypeGuard[nn.Parameter]:
    """Whether it is a parameter; for most of them faster than `isinstance`, which asks several questions."""
    return type(value) is nn.Parameter or isinstance(value, nn.Parameter)


def observable(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> tuple[Tensor, Sequence[Tensor], nn.Parameter] | None:
    """A layer's input in one call, its outputs that have a gradient and its weight; None if there is nothing to see."""
    weight = module._parameters.get("weight")
    if not is_parameter(weight) or not weight.requires_grad or not weight.numel():
        return None
    if type(output) is Tensor:
        outputs: Sequence[Tensor] = (output,) if output.requires_grad else ()
    else:
        outputs = [y for y in _as_tuple(output) if isinstance(y, Tensor) and y.requires_grad]
    x = args[0] if args else kwargs.get("input", next(iter(kwargs.values()), None))
    if not outputs or not has_rows(x):
        return None
    return x, outputs, weight


def has_rows(x: Any) -> bool:
    """Whether it is a tensor whose rows can be looked at."""
    return isinstance(x, Tensor) and not x.is_nested and x.layout is torch.strided


class Tally:
    """What compiled code has seen of one layer.

    Attributes:
        token: The leaf whose gradient gathers the sums. None if the layer has no shape yet, or if its device has no
            float64; then the layer is seen by a break in the graph.
        columns: The shape of the layer's columns, by which the sums are read.
    """

    def __init__(self) -> None:
        """Nothing yet; `fit` makes the token."""
        self.token: nn.Parameter | None = None
        self.columns: tuple[int, ...] = ()
        self._handle: RemovableHandle | None = None
        self._weight: Tensor | None = None

    def fit(
        self,
        weight: Tensor,
        units: tuple[int, int, int, int],
        options: Options,
        reached: Callable[[Tensor], None],
    ) -> None:
        """See to it that the token fits a layer, and that `reached` is called when a backward has come to it.

        Args:
            weight: The layer's weight.
            units: Its shape as (groups, outputs, inputs, sites).
            options: BNP's.
            reached: A tensor hook.
        """
        columns = (units[0] * units[2], *(weight.shape[2:] if options.spatial == "site" else ()))
        if self.token is None or self.token.device != weight.device or self.columns != columns:
            self.clear()
            if weight.device.type != "mps":
                self.columns = columns
                size = NUMBERS + 2 * torch.Size(columns).numel()
                # Its own values are not used, so that they need no memory.
                nothing = torch.zeros(1, dtype=torch.float64, device=weight.device).expand(size)
                self.token = nn.Parameter(nothing)
                self._handle = self.token.register_hook(reached)
        if set_apart(weight):
            self._weight = weight

    def takes(self, moments: Moments, y: Tensor) -> bool:
        """Whether the token has a place for the sums of these moments, of the rows of an output."""
        found = (moments.mean, moments.variance)
        return all(x.shape == self.columns and x.device == y.device and x.is_floating_point() for x in found)

    @property
    def empty(self) -> bool:
        """Whether no backward has come to it since it was begun."""
        return self.token is None or self.token.grad is None

    def rows(self, weight: Tensor) -> Rows | None:
        """All rows whose gradient has arrived, on the weight's device and in a type to compute in."""
        if self.token is None or self.token.grad is None:
            return None
        return rows_of(self.token.grad.to(weight.device), self.columns, precision_of(weight))

    def forget(self) -> None:
        """Begin anew."""
        if self.token is not None and self.token.grad is not None:
            self.token.grad = None

    def clear(self) -> None:
        """Let the token go."""
        if self._handle is not None:
            self._handle.remove()
        if self._weight is not None:
            put_back(self._weight)
        self.token = self._handle = self._weight = None


class ObservingHook(ModuleHook):
    """What the hooks of a layer have in common.

    What is read here while compiling is the same for all layers of one shape, or is a tensor. So equal parts of a model
    that are compiled one by one share their code.
    """

    def __init__(
        self, function: Any, kind: LayerType, options: Options, tally: Tally, *, even_if_silent: bool = False
    ) -> None:
        """Call `function`, or observe as the type of layer says while compiling."""
        super().__init__(function, even_if_silent=even_if_silent)
        # Disabled for torch.compile here and not by a decorator: that would double the time of our import.
        self.not_compiled = torch.compiler.disable(function)
        self.kind = kind
        self.options = options
        self.tally = tally

    def witnessed(self, layer: Any, x: Tensor, y: Tensor) -> Tensor | None:
        """In compiled code: the output of a layer, whose backward hands the sums of its rows to the token.

        None if that cannot be done, and the layer has to be seen by a break in the graph.
        """
        token = self.tally.token
        if token is None:
            return None
        with torch.no_grad():
            rows = self.kind.observe(layer, x, y, self.options)
        if not isinstance(rows, Rows) or not self.tally.takes(rows.moments, y):
            return None
        if rows.moments.count == 0:
            return y
        # The token is on another device for one step, after the model was moved.
        return _witness(y, token.to(y.device), sums_of(rows))


class LayerHook(ObservingHook):
    """The forward hook of a layer: its function when run, the token's way when compiled."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Any:
        """The output to go on with, if it is another one."""
        if self.function is None or (ModuleHook.silent and not self.even_if_silent):  # `is_on`, in less time
            return None
        if not torch.compiler.is_dynamo_compiling():
            if not is_jit_tracing():
                self.function(module, args, kwargs, output)
            return None
        if is_exporting():
            return None
        if isinstance(output, Tensor) and not self.kind.is_overridden_in(module):
            seen = observable(module, args, kwargs, output)
            if seen is None:
                return None
            witnessed = self.witnessed(module, seen[0], output)
            if witnessed is not None:
                return witnessed
        self.not_compiled(module, args, kwargs, output)
        return None


class OwnForwardHook(ObservingHook):
    """The forward hook of a layer with a `forward` of its own, to be called always; see `own_forward`.

    `function` is called with the settings, the input and the output of each affine call that has the layer's weight.
    """

    def __init__(self, module: nn.Module, *args: Any, even_if_silent: bool = False) -> None:
        """As other hooks, for this layer."""
        super().__init__(*args, even_if_silent=even_if_silent)
        self.forward = OwnForward(module, self.kind, self._seen)

    def before(self) -> ModuleHook:
        """The forward pre-hook that belongs to it."""
        return ModuleHook(self._enter, even_if_silent=self.even_if_silent)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """The forward is over."""
        self.forward.leave(module)

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not is_exporting():
            self.forward.enter(module)

    def _seen(self, settings: Any, x: Tensor, y: Tensor) -> Tensor:
        if not y.requires_grad or not has_rows(x):
            return y
        if torch.compiler.is_dynamo_compiling():
            witnessed = self.witnessed(settings, x, y)
            if witnessed is not None:
                return witnessed
            self.not_compiled(settings, x, y)
        else:
            self.function(settings, x, y)
        return y


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


def sums_of(rows: Rows) -> Tensor:
    """What is added up over the forwards of a step: how many rows, samples and outputs, Σx and Σx² of each column.

    In float64, so that the variance can be got back from them. Written as a sum of two vectors and not as a
    concatenation, of which a compiler makes a kernel per part.
    """
    moments = rows.moments
    mean, variance = moments.mean.double().flatten(), moments.variance.double().flatten()
    numbers: tuple[Any, ...] = (moments.count + at_least(rows.zeros, 0), rows.samples, rows.outputs)
    square = torch.arange(2, device=mean.device).unsqueeze(1) == 1
    sums = (moments.count * torch.where(square, variance + mean.square(), mean)).flatten()
    place = torch.arange(NUMBERS + len(sums), device=mean.device)
    constants = sum((place == i) * mean.new_full((), number) for i, number in enumerate(numbers))
    return constants + F.pad(sums, (NUMBERS, 0))


def rows_of(sums: Tensor, columns: tuple[int, ...], dtype: torch.dtype) -> Rows:
    """The rows that have these sums. Their numbers are tensors, so that no device has to be waited for."""
    return Rows(SummedMoments(sums, columns, dtype), sums[1], sums[2])


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
