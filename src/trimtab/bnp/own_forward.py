"""Layers with a `forward` of their own: seen where they multiply their weight.

A subclass of Linear or Conv, or an instance whose `forward` was replaced, may do anything to its input before it calls
torch.nn.functional.linear (or conv2d, ...): add coordinates, pad, flatten. What BNP needs is what arrives there. So
while such a `forward` runs, a TorchFunctionMode looks for the call that has the layer's own weight. If the weight is
used in any other way (transposed, cast, sliced, standardized), its gradient is not that of an affine map, and the layer
is left alone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trimtab.bnp.layers import LayerType

Seen = Callable[[Any, Tensor, Tensor], Tensor]
"""Called with the call, its input and its output; returns the output to go on with."""

# The arguments of the operations in their order; those of torch.nn.functional.linear are the first three.
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


class AffineCall(NamedTuple):
    """A call of an affine operation, with the names that a layer has for its settings."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    padding_mode: str = "zeros"  # another one has been applied to the input before the call


class OwnForward:
    """Follows the calls of one layer, from its forward pre-hook to its forward hook.

    Attributes:
        problem: Why the layer cannot be preconditioned, in a few words; None as long as it can.
        adds_bias: Whether all affine calls so far had the layer's bias, too.
        operation: The function that multiplies the weight,
        arguments: the names of its arguments,
        seen: and what is told of its calls.
    """

    def __init__(self, module: nn.Module, kind: LayerType, seen: Seen) -> None:
        """For a layer of a type that has an `operation`; `seen` is told of each call of that with the weight."""
        assert kind.operation is not None
        name = kind.operation.__name__
        self.problem: str | None = None
        self.adds_bias = True
        self.operation = kind.operation
        self.arguments = _TRANSPOSED if name.startswith("conv_transpose") else _ARGUMENTS
        self.seen = seen
        self._module = module
        self._outside = f"outside torch.nn.functional.{name}"
        self._mode: _AffineCalls | None = None

    def enter(self, module: nn.Module) -> None:
        """The layer's forward begins; replicas that DataParallel makes of the layer are not followed."""
        if self._mode is not None:
            self._drop(self._mode)
        if module is self._module and torch.is_grad_enabled():
            self._mode = _AffineCalls(self, module._parameters)
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, module: nn.Module) -> None:
        """The layer's forward has ended, if need be with an exception."""
        mode = self._mode
        if mode is None or module is not self._module:
            return
        self._mode = None
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.adds_bias = self.adds_bias and not mode.misses_bias
        if mode.uses_weight or (mode.uses_bias and self.adds_bias):
            self.problem = f"its forward uses its {'weight' if mode.uses_weight else 'bias'} {self._outside}"

    def _drop(self, mode: "_AffineCalls") -> None:
        """Leave a forward that was interrupted (Ctrl-C), for which PyTorch has called no hook."""
        self._mode = None
        mode.is_over = True
        if torch.overrides._get_current_function_mode() is mode:
            mode.__exit__(None, None, None)


class _AffineCalls(TorchFunctionMode):
    """Sees what is done with a layer's parameters while it is active.

    Attributes:
        misses_bias: Whether a call had the weight but not the bias.
        uses_weight: Whether something else than such a call was computed from the weight.
        uses_bias: The same of the bias.
        is_over: Whether calls are only passed on.
    """

    def __init__(self, own: OwnForward, parameters: Mapping[str, Tensor | None]) -> None:
        super().__init__()
        self.misses_bias = self.uses_weight = self.uses_bias = self.is_over = False
        self._own = own
        self._parameters = parameters  # looked up at each call: some code puts others in while the layer runs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass the call on, and look at it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.is_over:
            return result
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        if func is self._own.operation:
            told = {**dict(zip(self._own.arguments, args, strict=False)), **kwargs}
            if told["weight"] is weight and told["input"] is not weight:
                self.misses_bias = self.misses_bias or told.get("bias") is not bias
                return self._own.seen(_call(told), told["input"], result)
        # ATen's own names are what compiled code calls, below the call that was seen when it was traced.
        if _is_differentiable(result) and getattr(func, "namespace", None) != "aten":
            given = [*args, *kwargs.values()]
            if result is not weight and _has(given, weight):
                self.uses_weight = True
            if bias is not None and result is not bias and _has(given, bias):
                self.uses_bias = True
        return result


def _call(told: Mapping[str, Any]) -> AffineCall:
    """The settings of a call with these arguments."""
    kernel_size = tuple(told["weight"].shape[2:])
    padding = told.get("padding", 0)
    return AffineCall(
        kernel_size,
        _each(told.get("stride", 1), kernel_size),
        padding if isinstance(padding, str) else _each(padding, kernel_size),
        _each(told.get("dilation", 1), kernel_size),
    )


def _each(value: Any, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A setting for each dimension; one number is for all of them."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * len(sizes) if len(values) == 1 else values


def _is_differentiable(result: Any) -> bool:
    """Whether a gradient can come through what a function returned. Shapes, types and detached tensors have none."""
    if isinstance(result, Tensor):
        return result.requires_grad
    return isinstance(result, tuple | list) and any(_is_differentiable(one) for one in result)


def _has(given: Iterable[Any], parameter: Any) -> bool:
    return any(one is parameter or (isinstance(one, tuple | list) and _has(one, parameter)) for one in given)
