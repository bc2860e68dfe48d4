"""Layers with a `forward` of their own: seen where they multiply their weight.

A subclass of Linear or Conv, or an instance whose `forward` was replaced, may do anything to its input before it calls
torch.nn.functional.linear (or conv2d, ...): add coordinates, pad, flatten. What BNP needs is what arrives there. So
while such a `forward` runs, a TorchFunctionMode looks for the call that has the layer's own weight. If the weight is
used in any other way (transposed, cast, sliced, standardized), its gradient is not that of an affine map, and the layer
is left alone.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trimtab import _torch
from trimtab.bnp.layers import LayerType

Seen = Callable[[Any, Tensor, Tensor], Tensor]
"""Called with the settings of an affine call, its input and its output; returns the output to go on with."""

# The arguments of the operations in their order; those of torch.nn.functional.linear are the first three.
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


class CallSettings(NamedTuple):
    """The settings of an affine call, with the names that a layer has for them."""

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
        operation: The function of torch.nn.functional that multiplies the weight.
        arguments: The names of its arguments, in their order.
        seen: Called for each call of it that has the layer's weight.
    """

    def __init__(self, module: nn.Module, kind: LayerType, seen: Seen) -> None:
        """For a layer of a type that has an `operation`."""
        assert kind.operation is not None
        name = kind.operation.__name__
        self.problem: str | None = None
        self.adds_bias = True
        self.operation = kind.operation
        self.arguments = _TRANSPOSED if name.startswith("conv_transpose") else _ARGUMENTS
        self.seen = seen
        self._module = module
        self._outside = f"outside torch.nn.functional.{name}"
        self._eager = _Running()
        self._traced: list[_AffineCalls | None] = []

    @property
    def running(self) -> "list[_AffineCalls | None]":
        """The modes of the forwards that run now in this thread: several if the layer calls itself.

        None stands for one that is not followed. Compiled code cannot ask for its thread.
        """
        return self._traced if _torch.is_compiling() else self._eager.modes

    def enter(self, module: nn.Module) -> None:
        """The layer's forward begins; replicas that DataParallel makes of the layer are not followed."""
        if module is not self._module:
            return
        running = self.running
        if running and not _torch.is_compiling():
            self._drop(running[max(_torch.calls_running(module) - 1, 0) :])
        mode = None
        if torch.is_grad_enabled():
            mode = _AffineCalls(self, _torch.parameters_of(module))
            mode.__enter__()  # type: ignore[no-untyped-call]
        running.append(mode)

    def leave(self, module: nn.Module) -> None:
        """The layer's forward has ended, if need be with an exception."""
        # A forward that torch could not compile ends here, in eager code, though its beginning was compiled.
        running = self.running or self._traced
        if module is not self._module or not running:
            return
        mode = running.pop()
        if mode is None:
            return
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.adds_bias = self.adds_bias and not mode.misses_bias
        if mode.uses_weight or (mode.uses_bias and self.adds_bias):
            self.problem = f"its forward uses its {'weight' if mode.uses_weight else 'bias'} {self._outside}"

    def close(self) -> None:
        """Follow nothing any longer."""
        self._drop(list(self._eager.modes))

    def _drop(self, modes: "list[_AffineCalls | None]") -> None:
        """Take off the modes of forwards whose end was not seen: Ctrl-C ended them, for which PyTorch calls no hook."""
        for mode in modes:
            self._eager.modes.remove(mode)
            if mode is not None:
                _torch.remove_mode(mode)
                mode.own = None


class _Running(threading.local):
    """The modes of one layer, in each thread those of its own."""

    def __init__(self) -> None:
        self.modes: list[_AffineCalls | None] = []


class _AffineCalls(TorchFunctionMode):
    """Sees what is done with a layer's parameters while it is active.

    Attributes:
        misses_bias: Whether a call had the weight but not the bias.
        uses_weight: Whether something else than such a call was computed from the weight.
        uses_bias: The same of the bias.
    """

    def __init__(self, own: OwnForward, parameters: Mapping[str, Tensor | None]) -> None:
        super().__init__()
        self.misses_bias = self.uses_weight = self.uses_bias = False
        self.own: OwnForward | None = own  # None once nobody looks any longer
        self._own_parameters = parameters  # looked up at each call: some code puts others in while the layer runs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass the call on, and look at it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        weight, bias = self._own_parameters.get("weight"), self._own_parameters.get("bias")
        own = self.own
        running = [] if own is None else own.running
        if own is None or weight is None or not weight.requires_grad or not running or running[-1] is not self:
            return result  # nothing is to be seen, or an inner call of the same layer sees it
        if func is own.operation:
            given = {**dict(zip(own.arguments[: len(args)], args, strict=True)), **kwargs}
            if given["weight"] is weight and given["input"] is not weight:
                self.misses_bias = self.misses_bias or given.get("bias") is not bias
                return own.seen(_settings(given), given["input"], result)
        # Compiled code calls aten's operators; its use of the weight was seen when it was traced.
        if _is_differentiable(result) and getattr(func, "namespace", None) != "aten":
            values = [*args, *kwargs.values()]
            if result is not weight and _contains(values, weight):
                self.uses_weight = True
            if bias is not None and result is not bias and _contains(values, bias):
                self.uses_bias = True
        return result


def _settings(given: Mapping[str, Any]) -> CallSettings:
    """The settings of a call with these arguments."""
    kernel_size = tuple(given["weight"].shape[2:])
    padding = given.get("padding", 0)
    return CallSettings(
        kernel_size,
        _per_dimension(given.get("stride", 1), kernel_size),
        padding if isinstance(padding, str) else _per_dimension(padding, kernel_size),
        _per_dimension(given.get("dilation", 1), kernel_size),
    )


def _per_dimension(value: Any, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A setting for each dimension; one number is for all of them."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (int(value),)
    return values * len(sizes) if len(values) == 1 else values


def _is_differentiable(result: Any) -> bool:
    """Whether a gradient can come through what a function returned. Shapes, types and detached tensors have none."""
    if isinstance(result, Tensor):
        return result.requires_grad
    return isinstance(result, (tuple, list)) and any(_is_differentiable(one) for one in result)


def _contains(values: Iterable[Any], parameter: Tensor) -> bool:
    return any(one is parameter or (isinstance(one, (tuple, list)) and _contains(one, parameter)) for one in values)
