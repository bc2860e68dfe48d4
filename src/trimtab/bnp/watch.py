"""Which layers of a model BNP sees, and which of them it leaves alone and why."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.layers import layer_type
from trimtab.bnp.observer import ModuleHook, Observer
from trimtab.bnp.options import Options


class Watch:
    """Observers for the supported layers of a model, kept in step with the model as it changes.

    Attributes:
        model: The model.
        observers: By the layer's name, in the order of the model's modules.
    """

    def __init__(self, model: nn.Module, options: Options, skip: tuple[str, ...]) -> None:
        """Look at the model; `start` puts the hooks on.

        Raises:
            ValueError: If a layer cannot do what the options ask for, a pattern in `skip` matches nothing,
                or no layer is left.
        """
        self.model = model
        self.observers: dict[str, Observer] = {}
        self._options = options
        self._skip = skip
        self._handle: RemovableHandle | None = None
        self._structure: list[int] = []
        self._owners: dict[int, set[str]] = {}

        names = [name for name, module in clean_names(model) if layer_type(module) is not None]
        for pattern in skip:
            if not any(_matches(name, pattern) for name in names):
                raise ValueError(f"skip: no layer matches {pattern!r}; the layers are {', '.join(map(repr, names))}.")
        self._synchronize()
        if not self.observers:
            raise ValueError(
                "The model has no layer that BNP can precondition (Linear, Conv, ConvTranspose, or a type "
                "given to trimtab.register_layer)" + (" outside those in skip." if names else ".")
            )

    @property
    def active(self) -> bool:
        """Whether the hooks are on."""
        return self._handle is not None

    def start(self) -> None:
        """Put the hooks on, if they are not."""
        if not self.active:
            self._handle = self.model.register_forward_pre_hook(ModuleHook(self._before_forward))
            self.synchronize()
            for observer in self.observers.values():
                observer.start()

    def stop(self) -> None:
        """Take the hooks off."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for observer in self.observers.values():
            observer.stop()

    def synchronize(self) -> None:
        """Observe layers that were added since, let go of those that were removed."""
        if _structure(self.model) != self._structure:
            self._synchronize()

    def _synchronize(self) -> None:
        modules = list(clean_names(self.model))
        known = {id(observer.module): observer for observer in self.observers.values()}
        observers: dict[str, Observer] = {}
        for name, module in modules:
            kind = layer_type(module)
            if kind is None or self.skipped(name):
                continue
            if self._options.spatial not in kind.spatial:
                raise ValueError(
                    f"Layer {name!r}: spatial={self._options.spatial!r} is not defined for {type(module).__name__}; "
                    f"use spatial='channel' or skip={name!r}."
                )
            observer = known.pop(id(module), None) or Observer(name, module, kind, self._options)
            observer.name = name
            observers[name] = observer
        for observer in known.values():
            observer.stop()
        if self.active:
            for observer in observers.values():
                observer.start()
        self.observers = observers
        self._structure = _structure(self.model)
        self._owners = {}
        for name, module in modules:
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._owners.setdefault(id(parameter), set()).add(name)

    def _before_forward(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.synchronize()

    def skipped(self, name: str) -> bool:
        """Whether `skip` names a layer."""
        return any(_matches(name, pattern) for pattern in self._skip)

    def why_left_alone(self, observer: Observer) -> str | None:
        """Why a layer is not preconditioned, in a few words; None if it is."""
        weight = observer.weight
        for name in ("weight", "bias"):
            if observer.module._parameters.get(name) is None and getattr(observer.module, name, None) is not None:
                return f"its {name} is computed from other parameters"
        if weight is None:
            return "it has no weight"
        if not weight.requires_grad:
            return "its weight is frozen"
        for parameter in (weight, observer.bias):
            others = self._owners.get(id(parameter), set()) - {observer.name}
            if others:
                return f"it shares parameters with {', '.join(map(repr, sorted(others)))}"
        if isinstance(weight, nn.UninitializedParameter):
            return None
        if not weight.is_floating_point():
            return f"its weight is {str(weight.dtype).removeprefix('torch.')}"
        return None if weight.numel() else "its weight is empty"


def clean_names(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules with their names, without the names that wrappers put in between.

    `_orig_mod` is torch.compile's; `module` is that of DistributedDataParallel, DataParallel and
    AveragedModel, told from a user's own `module` by being its parent's only content.
    """
    modules = dict(model.named_modules())
    cleaned = {"": ""}
    for name, module in modules.items():
        if name:
            parent, _, own = name.rpartition(".")
            prefix = cleaned[parent]
            hidden = own == "_orig_mod" or (own == "module" and _only_wraps(modules[parent]))
            cleaned[name] = prefix if hidden else f"{prefix}.{own}".lstrip(".")
        yield cleaned[name], module


def _only_wraps(parent: nn.Module) -> bool:
    return list(parent._modules) == ["module"] and not parent._parameters


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names the layer or a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def _structure(model: nn.Module) -> list[int]:
    """The identities of all modules and parameters: what has to be looked at again when it changes."""
    identities: list[int] = []
    seen: set[int] = set()
    stack = [model]
    while stack:
        module = stack.pop()
        if id(module) not in seen:
            seen.add(id(module))
            identities.append(id(module))
            identities.extend(map(id, module._parameters.values()))
            stack.extend(child for child in module._modules.values() if child is not None)
    return identities
