"""The hooks on the calls of one layer: a function is called when it runs, the token is used when it is compiled."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab import _torch
from trimtab.bnp.layers import LayerType
from trimtab.bnp.options import Options
from trimtab.bnp.rows.compiled import CompiledRows
from trimtab.bnp.rows.hooks import ModuleHook, Pause
from trimtab.bnp.rows.own_forward import OwnForward


class _ObservingHook(ModuleHook):
    """What the hooks of a layer have in common.

    What is read here while compiling is the same for all layers of one shape, or is a tensor. So equal parts of a model
    that are compiled one by one share their code.
    """

    def __init__(self, function: Any, kind: LayerType, options: Options, compiled: CompiledRows, pause: Pause) -> None:
        """Call `function`, or observe as the type of layer says while compiling."""
        super().__init__(function, pause)
        # Disabled for torch.compile here and not by a decorator: that would double the time of our import.
        self.not_compiled = torch.compiler.disable(function)
        self.kind = kind
        self.options = options
        self.compiled = compiled


class LayerHook(_ObservingHook):
    """The forward hook of a layer; `function` is called as forward hooks are."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Any:
        """The output to go on with, if it is another one."""
        if self.function is None or self.pause.depth:
            return None
        if not _torch.is_compiling():
            if not _torch.is_jit_tracing():
                self.function(module, args, kwargs, output)
            return None
        if _torch.is_exporting():
            return None
        if isinstance(output, Tensor) and not self.kind.is_overridden_in(module):
            observed = observable(module, args, kwargs, output)
            if observed is None:
                return None
            y = self.compiled.witness(self.kind, module, observed[0], output, self.options)
            if y is not None:
                return y
        self.not_compiled(module, args, kwargs, output)
        return None


class OwnForwardHook(_ObservingHook):
    """The forward hook of a layer with a `forward` of its own, to be called always; see `own_forward`.

    `function` is called with the settings, the input and the output of each affine call that has the layer's weight.
    """

    def __init__(self, module: nn.Module, *args: Any) -> None:
        """As other hooks, for this layer."""
        super().__init__(*args)
        self.forward = OwnForward(module, self.kind, self._affine_call)

    def before(self) -> ModuleHook:
        """The forward pre-hook that belongs to it."""
        return ModuleHook(self._enter, self.pause)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """The forward is over."""
        self.forward.leave(module)

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not _torch.is_exporting():
            self.forward.enter(module)

    def _affine_call(self, settings: Any, x: Tensor, y: Tensor) -> Tensor:
        if not y.requires_grad or not is_dense(x):
            return y
        if _torch.is_compiling():
            witnessed = self.compiled.witness(self.kind, settings, x, y, self.options)
            if witnessed is not None:
                return witnessed
            self.not_compiled(settings, x, y)
        else:
            self.function(settings, x, y)
        return y


class CallHooks:
    """Puts on a layer the hooks that its `forward` needs: PyTorch's own, or one of its own.

    Attributes:
        own_forward: Follows a `forward` of the layer's own; None if it has none.
    """

    def __init__(
        self,
        module: nn.Module,
        called: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any], Any], None],
        seen: Callable[[Any, Tensor, Sequence[Tensor], nn.Parameter], None],
        kind: LayerType,
        options: Options,
        compiled: CompiledRows,
        pause: Pause,
    ) -> None:
        """Have a function called when the layer runs.

        Args:
            module: The layer.
            called: The function for PyTorch's own `forward`, called as a forward hook.
            seen: The function for a `forward` of the layer's own, called for each affine call in it with the settings
                of that, its input, its outputs and the weight.
            kind: What is known of the layer's type.
            options: BNP's.
            compiled: What compiled code sees of the layer.
            pause: Whether to do nothing for now.
        """
        self.own_forward: OwnForward | None = None
        self._module, self._called, self._seen, self._kind = module, called, seen, kind
        self._about = (kind, options, compiled, pause)
        self._handles: list[RemovableHandle] = []
        self._implementations: tuple[Any, ...] = ()  # of `forward`, that the hooks are for

    @property
    def on(self) -> bool:
        """Whether they are on the layer."""
        return bool(self._handles)

    def put_on(self) -> None:
        """Put the hooks on the layer."""
        module = self._module
        self._implementations = self._kind.implementations(module)
        if self._kind.is_overridden_in(module):
            own = OwnForwardHook(module, self._affine_call, *self._about)
            self.own_forward = own.forward
            self._handles = [
                module.register_forward_pre_hook(own.before()),
                module.register_forward_hook(own, always_call=True),
            ]
        else:
            # Before the hook by which FSDP takes the gathered weight away again
            hook = LayerHook(self._called, *self._about)
            self._handles = [module.register_forward_hook(hook, with_kwargs=True, prepend=True)]

    def take_off(self) -> None:
        """Take the hooks off the layer."""
        for handle in self._handles:
            handle.remove()
        if self.own_forward is not None:
            self.own_forward.close()
        self._handles, self.own_forward = [], None

    def refresh(self) -> None:
        """See to it that the hooks are those for the layer's `forward`, which may have been replaced."""
        if self._handles and self._kind.implementations(self._module) != self._implementations:
            self.take_off()
            self.put_on()

    def _affine_call(self, settings: Any, x: Tensor, y: Tensor) -> None:
        weight = _torch.parameters_of(self._module).get("weight")
        if isinstance(weight, nn.Parameter) and weight.requires_grad and weight.numel():
            self._seen(settings, x, (y,), weight)


def observable(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> tuple[Tensor, Sequence[Tensor], nn.Parameter] | None:
    """A layer's input in one call, its outputs that have a gradient and its weight; None if there is nothing to see."""
    weight = _torch.parameters_of(module).get("weight")
    if not isinstance(weight, nn.Parameter) or not weight.requires_grad or not weight.numel():
        return None
    x = args[0] if args else kwargs.get("input", next(iter(kwargs.values()), None))
    if not is_dense(x):
        return None
    if isinstance(output, Tensor):
        return (x, (output,), weight) if output.requires_grad else None
    outputs = (
        [y for y in output if isinstance(y, Tensor) and y.requires_grad] if isinstance(output, tuple | list) else []
    )
    return (x, outputs, weight) if outputs else None


def is_dense(x: Any) -> bool:
    """Whether it is a tensor whose rows can be looked at."""
    return isinstance(x, Tensor) and not x.is_nested and x.layout is torch.strided and x.is_floating_point()
