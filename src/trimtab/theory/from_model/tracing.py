"""Tracing with torch.fx: what a module's forward does to two samples, with the shapes of all values on the way.

Values are computed while they are traced, so that shapes are plain numbers, and code that asks for them can be traced.
A module is looked into unless its forward is torch's own. What cannot be traced stays one call of a module, `opaque`.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimtab import _torch
from trimtab.theory.from_model.known import CONV, LEAVES

_FORWARD = "forward"
_OWNERS = ("torch.nn.", "trimtab.norms.")  # whose forwards are known


class Trace:
    """The calls of a module's forward, in order.

    Attributes:
        nodes: Of the graph of torch.fx. `meta["value"]` is the shape of a tensor, a list of shapes for a tuple with
            tensors in it, or None. `meta["module"]` is the name of the module whose forward it is in.
        modules: All modules by name.
        opaque: Modules that could not be looked into.
        random: Names of modules that do nothing in evaluation, but drop at random in training.
    """

    def __init__(self, model: nn.Module, input_shape: tuple[int, ...]) -> None:
        """Trace it in evaluation mode.

        Args:
            model: A module that nobody else uses; it is left as it is, but for constants that torch.fx puts into it.
            input_shape: The shape of one sample.

        Raises:
            ValueError: If it cannot be traced, or does not take such inputs.
        """
        self.opaque: set[nn.Module] = set()
        self.modules = dict(model.named_modules())
        like = next(iter(model.parameters()), torch.zeros(()))
        devices = [like.device] if like.is_cuda else []
        while True:
            tracer = _Tracer(torch.zeros(2, *input_shape, dtype=like.dtype, device=like.device), self.opaque)
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=devices), _traced_plain_forwards(tracer):
                    self.nodes = list(tracer.trace(model).nodes)
                break
            except _DoesNotRunError as error:
                raise ValueError(f"model does not take inputs of input_shape {input_shape}: {error}") from error
            except Exception as error:  # torch.fx lets through whatever the model's code raises when given a proxy
                if tracer.failed is None or tracer.failed in self.opaque:  # the model itself, or what is not in it
                    reason = str(error).split("\n")[0]
                    raise ValueError(f"model cannot be traced by torch.fx, which predict needs: {reason}") from error
                self.opaque.add(tracer.failed)
        self.random = tracer.random
        self._root = model
        self._constants: dict[fx.Node, Any] = {}

    def constant(self, node: fx.Node) -> Any:
        """The value of a node that does not depend on the input, with its graph of gradients to the parameters."""
        if node not in self._constants:
            args, kwargs = (fx.map_arg(x, self.constant) for x in (node.args, node.kwargs))
            with torch.enable_grad():
                self._constants[node] = _run(self._root, node.op, node.target, args, kwargs)
        return self._constants[node]


class _DoesNotRunError(Exception):
    """A call failed for the values that were given, not for being traced."""


class _Proxy(fx.Proxy):
    """Stands for a value, and has it."""

    value: Any

    @property
    def shape(self) -> torch.Size:
        return self.value.shape  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return self.value.ndim  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return self.value.device  # type: ignore[no-any-return]

    def size(self, *args: Any) -> Any:
        return self.value.size(*args)

    def dim(self) -> int:
        return self.value.dim()  # type: ignore[no-any-return]

    def numel(self) -> int:
        return self.value.numel()  # type: ignore[no-any-return]

    def __getattr__(self, k: str) -> Any:
        # What is not a method, as weight.T, is computed at once: torch.fx would only do so where it is used next.
        value = vars(self).get("value")
        if k.startswith("_") or value is None or not hasattr(value, k) or callable(getattr(value, k)):
            return super().__getattr__(k)
        return self.tracer.create_proxy("call_function", getattr, (self, k), {})

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[fx.Proxy]:
        return iter([operator.getitem(self, i) for i in range(len(self.value))])


class _Tracer(fx.Tracer):
    def __init__(self, inputs: Tensor, opaque: set[nn.Module]) -> None:
        super().__init__()
        self.inputs = inputs
        self.opaque = opaque
        self.failed: nn.Module | None = None
        self.random: list[str] = []
        self.plain: dict[nn.Module, Callable[..., Any]] = {}
        self._running = False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m in self.opaque:
            return True
        known = isinstance(m, LEAVES) or super().is_leaf_module(m, module_qualified_name)
        return known and not has_own_forward(m)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._running:
            return forward(*args, **kwargs)
        try:
            result = super().call_module(m, forward, args, kwargs)
        except _DoesNotRunError:
            raise
        except Exception:
            self.failed = m if self.failed is None else self.failed  # the innermost one
            raise
        if any(result is x for x in args) and any(getattr(m, name, None) for name in ("drop_prob", "p")):
            self.random.append(self.path_of_module(m))
        return result

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> Any:
        if kind == "placeholder":
            return self._placeholder(target, args, *more, **options)
        made: Any = super().create_proxy(kind, target, args, kwargs, *more, **options)
        made.node.meta["module"] = next(reversed(self.module_stack.values()), ("", None))[0]
        if kind == "output":
            return made
        args, kwargs = (fx.node.map_aggregate(x, _value_of) for x in (args, kwargs))
        self._running = True
        try:
            plain = self.plain.get(self.root.get_submodule(target)) if kind == "call_module" else None
            value = plain(*args) if plain else _run(self.root, kind, target, args, kwargs)
        except Exception as error:
            raise _DoesNotRunError(str(error).split("\n")[0]) from error
        finally:
            self._running = False
        made.node.meta["value"] = _shape(value) if _has_tensor(value) else None
        made.value = value
        return made if _has_tensor(value) else value

    def _placeholder(self, target: str, args: Any, *more: Any, **options: Any) -> Any:
        """The first argument is the input; others have their defaults."""
        if target.startswith("*"):
            first = target.count("*") == 1 and not self._has_input()
            if not first:
                return () if target.count("*") == 1 else {}
        elif self._has_input():
            if not args:
                raise _DoesNotRunError(f"its forward has another argument without a default, {target}")
            return args[0]
        made: Any = super().create_proxy("placeholder", target.lstrip("*"), (), {}, *more, **options)
        made.node.meta["value"] = tuple(self.inputs.shape)
        made.value = self.inputs
        return (made,) if target.startswith("*") else made

    def _has_input(self) -> bool:
        return any(node.op == "placeholder" for node in self.graph.nodes)


def has_own_forward(module: nn.Module) -> bool:
    """Whether a module's forward was replaced, in its class or in itself."""
    names = _torch.CONVOLUTION_METHODS if isinstance(module, CONV) else ("forward",)
    return any(
        name in vars(module) or not f"{getattr(type(module), name).__module__}.".startswith(_OWNERS) for name in names
    )


@contextmanager
def _traced_plain_forwards(tracer: _Tracer) -> Iterator[None]:
    """Within, `super().forward(x)` in a forward that is traced is one call of the module as torch has it."""
    owners = {next(base for base in kind.__mro__ if "forward" in vars(base)) for kind in LEAVES}
    before = {owner: vars(owner)["forward"] for owner in owners}

    def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self: nn.Module, x: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(x, fx.Proxy) or args or kwargs:
                return original(self, x, *args, **kwargs)
            tracer.plain[self] = original.__get__(self)
            return tracer.create_proxy("call_module", tracer.path_of_module(self), (x,), {})

        forward.__module__ = original.__module__  # by which it is known
        return forward

    try:
        for owner, forward in before.items():
            setattr(owner, _FORWARD, replaced(forward))
        yield
    finally:
        for owner, forward in before.items():
            setattr(owner, _FORWARD, forward)


def _run(root: nn.Module, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
    """Do what a node stands for."""
    if kind == "get_attr":
        value: Any = root
        for name in target.split("."):
            value = getattr(value, name)
        return value
    if kind == "call_module":
        return root.get_submodule(target)(*args, **kwargs)
    if kind == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


def _value_of(x: Any) -> Any:
    return x.value if isinstance(x, _Proxy) else x


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return [_shape(x) if isinstance(x, Tensor) else None for x in value]


def _has_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, tuple | list) and any(isinstance(x, Tensor) for x in value))
