"""Which layers of a model BNP sees, and which of them it leaves alone and why."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from trimtab.bnp.hooks import ModuleHook
from trimtab.bnp.kernels import Kernels
from trimtab.bnp.layers import layer_type
from trimtab.bnp.neglect import Neglect
from trimtab.bnp.observer import Observer
from trimtab.bnp.options import Options
from trimtab.bnp.stale import refuse_what_has_run
from trimtab.notice import say


class Watch:
    """Observers for the supported layers of a model, kept in step with the model as it changes.

    Attributes:
        model: The model.
        observers: By the layer's name, in the order of the model's modules.
        suited: Those of layers that can be preconditioned, as of the last `synchronize`.
        neglect: Whether the model is trained without BNP's steps.
    """

    def __init__(self, model: nn.Module, options: Options, skip: tuple[str, ...], kernels: Kernels) -> None:
        """Look at the model; `start` puts the hooks on.

        Raises:
            ValueError: If a layer cannot do what the options ask for, a pattern in `skip` matches nothing,
                or no layer is left.
        """
        self.model = model
        self.observers: dict[str, Observer] = {}
        self.suited: list[Observer] = []
        self.neglect = Neglect()
        self._options = options
        self._kernels = kernels
        self._skip = skip
        self._handle: RemovableHandle | None = None
        self._active = False  # beside the handle, at which compiled code cannot look
        self._contents: dict[str, list[dict[str, Any]]] = {}  # of all modules, their dictionaries of one kind,
        self._children: list[int] = []  # the identities of the modules in them,
        self._parameters: list[int] = []  # and of the parameters: to see when something has changed
        self._layers: list[nn.Module] = []  # the observed ones
        self._classes: set[type[nn.Module]] = set()  # of these
        self._forwards: list[Any] = []  # what decided about their forwards when their hooks were put on
        self._owners: dict[int, set[str]] = {}

        names = [name for name, module in clean_names(model) if layer_type(module) is not None]
        for pattern in skip:
            if not any(matches(name, pattern) for name in names):
                raise ValueError(f"skip: no layer matches {pattern!r}; the layers are {', '.join(map(repr, names))}.")
        self._look_at_modules()
        if not self.observers:
            raise ValueError(
                "The model has no layer that BNP can precondition (Linear, Conv, ConvTranspose, or a type "
                "given to trimtab.register_layer)" + (" outside those in skip." if names else ".")
            )

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which have no hooks and know no identities: they look at their model when it is needed."""
        unseen = {"_contents": {"_modules": [], "_parameters": []}, "_children": [-1], "_parameters": [], "_owners": {}}
        return {**self.__dict__, **unseen, "_forwards": [], "_handle": None, "_active": False, "neglect": Neglect()}

    @property
    def active(self) -> bool:
        """Whether the hooks are on."""
        return self._active

    def start(self) -> None:
        """Put the hooks on, if they are not.

        Raises:
            RuntimeError: If the model was compiled and has run without them.
        """
        if not self.active:
            refuse_what_has_run(observer.module for observer in self.observers.values())
            self._active = True
            self._handle = self.model.register_forward_pre_hook(ModuleHook(self._before_forward))
            for observer in self.observers.values():
                observer.start()
            self.synchronize()

    def stop(self) -> None:
        """Take the hooks off."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            self._active = False
        for observer in self.observers.values():
            observer.stop()
        self._kernels.forget()

    def synchronize(self) -> None:
        """Observe layers that were added since, let go of those that were removed, see what is shared.

        While compiling the model is as it was: what is compiled here is compiled again when its parameters change.
        """
        if torch.compiler.is_dynamo_compiling():
            return
        if self._children != self._identities("_modules"):
            self._look_at_modules()
        if self._parameters != self._identities("_parameters"):
            self._look_at_parameters()

    def _before_forward(self, *_: Any) -> None:
        """See new layers before they are called. Parameters wait: functional_call swaps them for a while."""
        if self._kernels.waiting:
            self._kernels.compute()
        if torch.compiler.is_dynamo_compiling():
            return
        if self._children != self._identities("_modules"):
            self._look_at_modules()
        if self._forwards != (forwards := self._forwards_now()):
            self._forwards = forwards
            for observer in self.observers.values():
                observer.look_again()

    def _forwards_now(self) -> list[Any]:
        """All that can decide about the layers' forwards: their classes, their own attributes, those of the classes."""
        own = [
            part
            for module in self._layers
            for part in (module.__class__, module.__dict__.get("forward"), module.__dict__.get("_conv_forward"))
        ]
        return own + [getattr(cls, "forward", None) for cls in self._classes]

    def _identities(self, kind: str) -> list[int]:
        """The identities of what all modules have in one of their dictionaries.

        If modules were added or removed, some module that is known does not consist of what it did.
        """
        return list(map(id, chain.from_iterable(map(dict.values, self._contents[kind]))))

    def _look_at_modules(self) -> None:
        known = {id(observer.module): observer for observer in self.observers.values()}
        observers: dict[str, Observer] = {}
        for name, module in clean_names(self.model):
            kind = layer_type(module)
            if kind is None or self.skipped(name):
                continue
            if self._options.spatial not in kind.spatial:
                raise ValueError(
                    f"Layer {name!r}: spatial={self._options.spatial!r} is not defined for {type(module).__name__}; "
                    f"use spatial='channel' or skip={name!r}."
                )
            observer = known.pop(id(module), None) or Observer(name, module, kind, self._options, self._kernels)
            observer.name = name
            observer.ledger.neglect = self.neglect
            observers[name] = observer
        for observer in known.values():
            observer.stop()
        if self.active:
            for observer in observers.values():
                observer.start()
        self.observers = observers
        self._layers = [observer.module for observer in observers.values()]
        self._classes = set(map(type, self._layers))
        self._kernels.most = max(64, 2 * len(observers))
        kinds = ("_modules", "_parameters")
        self._contents = {kind: [module.__dict__[kind] for module in self.model.modules()] for kind in kinds}
        self._children = self._identities("_modules")
        self._parameters = []  # to be looked at, too

    def say_problems(self, observers: Iterable[Observer]) -> None:
        """Say which of these layers cannot be preconditioned, if that has come out when they ran, once for each."""
        self._say_unsuited({observer.name: observer.problem for observer in observers})

    def _look_at_parameters(self) -> None:
        self._owners = {}
        for name, module in clean_names(self.model):
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._owners.setdefault(id(parameter), set()).add(name)
        self._parameters = self._identities("_parameters")
        reasons = {name: self._unsuited(observer) for name, observer in self.observers.items()}
        self.suited = [observer for name, observer in self.observers.items() if reasons[name] is None]
        self._say_unsuited(reasons)

    def skipped(self, name: str) -> bool:
        """Whether `skip` names a layer."""
        return any(matches(name, pattern) for pattern in self._skip)

    def why_left_alone(self, observer: Observer) -> str | None:
        """Why a layer is not preconditioned, in a few words; None if it is."""
        weight = observer.weight
        if weight is not None and not weight.requires_grad:
            return "its weight is frozen"
        return self._unsuited(observer) or observer.problem

    def _unsuited(self, observer: Observer) -> str | None:
        """Why a layer as it is built cannot be preconditioned."""
        module, weight = observer.module, observer.weight
        for name in ("weight", "bias"):
            # Asking for the attribute would compute it, and spectral norm's computation leaves a trace.
            if is_parametrized(module, name) or name in module.__dict__:
                return f"its {name} is computed from other parameters"
        if weight is None:
            return "it has no weight"
        for parameter in (weight, module._parameters.get("bias")):
            others = self._owners.get(id(parameter), set()) - {observer.name}
            if others:
                return f"it shares parameters with {', '.join(map(repr, sorted(others)))}"
        if not weight.is_floating_point():
            return f"its weight is {str(weight.dtype).removeprefix('torch.')}"
        if not isinstance(weight, nn.UninitializedParameter) and weight.numel() == 0:
            return "its weight is empty"
        return None

    def _say_unsuited(self, reasons: dict[str, str | None]) -> None:
        """Say which layers are left alone and why, once for each."""
        news = []
        for name, reason in reasons.items():
            observer = self.observers[name]
            if reason is not None and not observer.said_unsuited:
                observer.said_unsuited = True
                news.append(f"{name!r} ({reason})")
        if news:
            say(f"BNP leaves these layers alone: {', '.join(news)}.")


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


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern names the layer or a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))
