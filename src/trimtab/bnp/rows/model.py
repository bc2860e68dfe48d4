"""Which layers of a model BNP observes, and which of them it leaves alone and why."""

from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from operator import is_
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab import _torch
from trimtab.bnp.backends import Backends
from trimtab.bnp.layer_shapes import is_sharded
from trimtab.bnp.layers import layer_type
from trimtab.bnp.options import Options
from trimtab.bnp.rows.compiled_before import refuse_what_has_run
from trimtab.bnp.rows.hooks import ModuleHook, can_be_paused
from trimtab.bnp.rows.layer import ObservedLayer
from trimtab.bnp.rows.model_output import CannotLookIntoError, tensors_in
from trimtab.bnp.rows.observation import Observation
from trimtab.bnp.rows.supported import clean_names, matches, owners_of_parameters, refuse_flattened, why_unsupported
from trimtab.bnp.rows.unused_steps import UnusedSteps
from trimtab.notice import warn_user


class ObservedModel:
    """The observed layers of a model, kept up to date as the model changes.

    Attributes:
        model: The model.
        skip: The patterns of names of layers that are left out.
        layers: By the layer's name, in the order of the model's modules.
        supported: Those that can be preconditioned, as of the last `update`.
        sharded: Those of them of whose weight this process holds a part.
        unused_steps: Whether the model is trained without BNP's steps.
    """

    def __init__(self, model: nn.Module, options: Options, skip: tuple[str, ...], backends: Backends) -> None:
        """Look at the model; `start` puts the hooks on.

        Raises:
            ValueError: If a layer cannot do what the options ask for, a pattern in `skip` matches nothing,
                or no layer is left.
        """
        self.model = model
        self.skip = skip
        self.layers: dict[str, ObservedLayer] = {}
        self.supported: list[ObservedLayer] = []
        self.sharded: list[ObservedLayer] = []
        self.unused_steps = UnusedSteps()
        self._observation = Observation(model, options, backends)
        self._contents: _Contents | None = None
        self._handles: list[RemovableHandle] = []
        self._active = False  # beside the handles, at which compiled code cannot look

        names = [name for name, module in clean_names(model) if layer_type(module) is not None]
        for pattern in skip:
            if not any(matches(name, pattern) for name in names):
                raise ValueError(f"skip: no layer matches {pattern!r}; the layers are {', '.join(map(repr, names))}.")
        self._contents = self._find_layers()
        if not self.layers:
            raise ValueError(
                "The model has no layer that BNP can precondition (Linear, Conv, ConvTranspose, or a type "
                "given to trimtab.register_layer)" + (" outside those in skip." if names else ".")
            )

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which have no hooks and look at their model when it is needed."""
        afresh: dict[str, Any] = {"_contents": None, "_handles": [], "_active": False, "unused_steps": UnusedSteps()}
        return {**self.__dict__, **afresh}

    @property
    def active(self) -> bool:
        """Whether the hooks are on."""
        return self._active

    def start(self) -> None:
        """Put the hooks on, if they are not.

        Raises:
            RuntimeError: If the model was compiled and has run without them.
        """
        if self._active:
            return
        refuse_what_has_run(layer.module for layer in self.layers.values())
        self._active = True
        pause = self._observation.pause
        for layer in self.layers.values():
            layer.start()
        self._handles = [
            self.model.register_forward_pre_hook(ModuleHook(self._before_forward, pause)),
            self.model.register_forward_hook(ModuleHook(self._after_forward, pause), always_call=True),
        ]
        can_be_paused(self.model.modules(), pause)
        self.update()

    def stop(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._active = [], False
        for layer in self.layers.values():
            layer.stop()
        self._observation.open_calls.release()
        self._observation.backends.waiting.clear()

    def close(self) -> None:
        """Take the hooks off for good, and let go of the averages at once: layers and their hooks hold each other."""
        self.stop()
        for layer in self.layers.values():
            layer.running = None

    def discard(self) -> None:
        """Forget the rows seen since the last step."""
        self._observation.open_calls.release()
        for layer in self.layers.values():
            layer.books.discard()

    def update(self) -> None:
        """Observe layers that were added since, let go of those that were removed, see what is shared.

        While compiling the model is as it was: what is compiled here is compiled again when its parameters change.
        """
        if _torch.is_compiling():
            return
        if self._contents is None or self._contents.changed():
            self._contents = self._find_layers()
            self._check_layers()
            self._contents.note()

    def _before_forward(self, *_: Any) -> None:
        """See new layers before they are called. Parameters wait: functional_call swaps them for a while."""
        if _torch.is_compiling():
            return
        observation, contents = self._observation, self._contents
        if observation.backends.waiting:
            observation.backends.flush()
        observation.open_calls.begin()
        if contents is None or contents.modules_changed():
            contents = self._contents = self._find_layers()
        if contents.forwards_changed():
            for layer in self.layers.values():
                layer.hooks.refresh()

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """A backward may begin at an output of the model, unless that was called within a backward."""
        if _torch.is_compiling() or _torch.current_backward() != -1:
            return
        open_calls = self._observation.open_calls
        if type(output) is Tensor:
            open_calls.end((output,))
            return
        try:
            open_calls.end(list(tensors_in(output)))
        except CannotLookIntoError:
            open_calls.release()
            open_calls.end(())

    def _find_layers(self) -> "_Contents":
        """Observe the layers that are in the model now; returns what to compare it with later."""
        refuse_flattened(self.model)
        known = {id(layer.module): layer for layer in self.layers.values()}
        layers: dict[str, ObservedLayer] = {}
        spatial = self._observation.options.spatial
        for name, module in clean_names(self.model):
            kind = layer_type(module)
            if kind is None or self.skips(name):
                continue
            if spatial not in kind.spatial:
                raise ValueError(
                    f"Layer {name!r}: spatial={spatial!r} is not defined for {type(module).__name__}; "
                    f"use spatial='channel' or skip={name!r}."
                )
            layer = known.pop(id(module), None) or ObservedLayer(name, module, kind, self._observation)
            layer.rename(name)
            layer.books.unused_steps = self.unused_steps
            layers[name] = layer
        for layer in known.values():
            layer.stop()
        if self._active:
            for layer in layers.values():
                layer.start()
            can_be_paused(self.model.modules(), self._observation.pause)
        self.layers = layers
        self._observation.backends.layers = len(layers)
        return _Contents(self.model, layers.values())

    def _check_layers(self) -> None:
        owners = owners_of_parameters(clean_names(self.model))
        reasons = {name: why_unsupported(name, layer.module, owners) for name, layer in self.layers.items()}
        self.supported = [layer for name, layer in self.layers.items() if reasons[name] is None]
        self.sharded = [layer for layer in self.supported if layer.weight is not None and is_sharded(layer.weight)]
        self._warn_left_alone(reasons)

    def skips(self, name: str) -> bool:
        """Whether `skip` names a layer."""
        return any(matches(name, pattern) for pattern in self.skip)

    def why_left_alone(self, layer: ObservedLayer) -> str | None:
        """Why a layer is not preconditioned, in a few words; None if it is."""
        weight = layer.weight
        if weight is not None and not weight.requires_grad:
            return "its weight is frozen"
        return why_unsupported(layer.name, layer.module, owners_of_parameters(clean_names(self.model))) or layer.problem

    def warn_problems(self, layers: Iterable[ObservedLayer]) -> None:
        """Warn of those of these layers that cannot be preconditioned, as has come out when they ran, once for each."""
        self._warn_left_alone({layer.name: layer.problem for layer in layers})

    def _warn_left_alone(self, reasons: Mapping[str, str | None]) -> None:
        """Say which layers are left alone and why, once for each."""
        news = []
        for name, reason in reasons.items():
            layer = self.layers[name]
            if reason is not None and not layer.warned_unsupported:
                layer.warned_unsupported = True
                news.append(f"{name!r} ({reason})")
        if news:
            warn_user(f"BNP leaves these layers alone: {', '.join(news)}.")


class _Contents:
    """What a model consists of, to see in little time whether that has changed."""

    def __init__(self, model: nn.Module, layers: Iterable[ObservedLayer]) -> None:
        """As it is now; parameters and forwards are yet to be looked at.

        If modules were added or removed, some module that is known does not consist of what it did.
        """
        self._modules = list(model.modules())  # kept, so that no new one is where one of these was
        children = list(map(_torch.children_of, self._modules))
        self._children = _Values(children)
        self._everything = _Values([*children, *map(_torch.parameters_of, self._modules)])
        self._children.note()
        self._layers = [layer.module for layer in layers]
        methods = [(layer.module, name) for layer in layers for name in layer.kind.methods]
        self._own = [module.__dict__ for module, _ in methods], [name for _, name in methods]
        classes = {(type(module), name) for module, name in methods}
        self._of_classes = [cls for cls, _ in classes], [name for _, name in classes]
        self._known_forwards: list[Any] = []

    def modules_changed(self) -> bool:
        """Whether other modules are in the model."""
        return self._children.changed()

    def changed(self) -> bool:
        """Whether other modules or parameters are in the modules that are known than when they were noted."""
        return self._everything.changed()

    def note(self) -> None:
        """Note the modules and parameters as they are now."""
        self._everything.note()

    def forwards_changed(self) -> bool:
        """Whether layers have another `forward` than when this was last asked.

        Their classes, their own attributes and those of their classes decide about it.
        """
        own, of_classes = map(dict.get, *self._own), map(getattr, *self._of_classes, repeat(None))
        before, self._known_forwards = self._known_forwards, [*map(type, self._layers), *own, *of_classes]
        return before != self._known_forwards


class _Values:
    """The values of mappings that may change."""

    def __init__(self, mappings: Iterable[Mapping[str, Any]]) -> None:
        """None are noted yet."""
        self._views = [*[mapping.values() for mapping in mappings], _END]  # views change with their mappings
        self._noted: list[Any] = []

    def note(self) -> None:
        """Note the values as they are now."""
        self._noted = list(chain.from_iterable(self._views))

    def changed(self) -> bool:
        """Whether something was put into a mapping, taken out or replaced since: all is compared by identity."""
        return not self._noted or not all(map(is_, chain.from_iterable(self._views), self._noted))


_END = (object(),)  # so that values of another number are not the same
