"""Looks at a training without computing anything of it twice: gradients, weights, statistics, activations.

At a step that is looked at, hooks are on the layers and a copy of the parameters is kept until the next step; at all
others there is neither.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from trimtab import _torch
from trimtab.bnp.rows.hooks import ModuleHook, Pause, can_be_paused
from trimtab.doctor.measures import (
    Array,
    Packed,
    Signal,
    activations,
    batch_beside_running,
    gradients_of_outputs,
    input_look,
    norms_of,
    running_tensors,
    signal_of,
    tensors_of,
)
from trimtab.doctor.parts import (
    compiled_layers,
    held_by,
    largest_option,
    option,
    running_norms,
    weighted_layers,
)
from trimtab.doctor.record import LayerLook, Look, NormLook

DEAD_LOOKS = 4
"""In so many looks running an output is without any gradient before it counts as dead: fewer would count those that
some batches do not reach."""


@dataclass(frozen=True)
class Taken:
    """A look at a step that has not been taken yet.

    Attributes:
        step: Counted from 0.
        lr: The largest learning rate.
        before: The parameters before the step, copies.
        numbers: What was brought together to be brought to the host, by what it is and the name of a parameter or
            layer.
        running: The running statistics before the forward.
        entries: How many numbers each layer's weight has.
        rates: The learning rate of each layer's weight.
        signals: What the hooks have seen of each layer.
        norms: The share of a batch in the running statistics of each layer that has some, and its epsilon.
        values: How many values of a channel its statistics were of.
        half: Whether something was in half precision.
    """

    step: int
    lr: float
    before: dict[str, Tensor]
    numbers: Packed[tuple[str, str]]
    running: Packed[tuple[str, str]]
    entries: dict[str, int]
    rates: dict[str, float]
    signals: dict[str, Signal]
    norms: dict[str, tuple[float, float]]
    values: dict[str, float]
    half: bool


@dataclass(frozen=True)
class Followed:
    """A look at a step that has been taken.

    Attributes:
        taken: The look, without the parameters.
        steps: How far each parameter was moved.
    """

    taken: Taken
    steps: Packed[str]


class Watch:
    """Looks at a model in training.

    Args:
        model: The model, out of its wrappers.
        optimizer: Its optimizer.
        hooks: Whether activations are looked at; not in compiled models, which would be compiled anew.

    Attributes:
        failures: What hooks could not look at since this was last cleared, and why, by layer.
        compiled: Whether there are layers that are not hooked because they are compiled.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, hooks: bool = True) -> None:
        self._model, self._optimizer, self._hooked = model, optimizer, hooks
        self._handles: list[RemovableHandle] = []
        self._pause = Pause()
        can_be_paused(model.modules(), self._pause)  # probes run the model in between
        self._signals: dict[str, Signal] = {}
        self._values: dict[str, float] = {}
        self._half = False
        self._versions: dict[str, int | None] = {}  # of the weights when their layers were called
        self.failures: dict[str, str] = {}
        self.compiled = False
        self._norms: dict[str, Any] = {}
        self._running = Packed[tuple[str, str]]({})
        self._silent: deque[dict[str, Any]] = deque(maxlen=DEAD_LOOKS)  # which outputs of each layer had no gradient

    def arm(self, *, hooks: bool = True) -> None:
        """Look at the forward that comes next, with hooks or without, which sees no activations."""
        self.disarm()
        self._norms = dict(running_norms(self._model))
        self._running = Packed(running_tensors(self._norms))
        if self._hooked and hooks:
            compiled = compiled_layers(self._model)
            self.compiled = not compiled.isdisjoint(weighted_layers(self._model).values())
            for name, layer in weighted_layers(self._model).items():
                if layer not in compiled:
                    hook = ModuleHook(partial(self._call, self._see, name), self._pause)
                    self._handles.append(layer.register_forward_hook(hook))
            for name, norm in self._norms.items():
                if norm not in compiled:
                    hook = ModuleHook(partial(self._call, self._count, name), self._pause)
                    self._handles.append(norm.register_forward_hook(hook))

    def disarm(self) -> None:
        """Take the hooks away, and forget what they have seen."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._half = [], False
        self._signals, self._values, self._norms, self._versions = {}, {}, {}, {}

    @property
    def stepped(self) -> bool:
        """Whether the optimizer has moved weights since their layers were called, as far as hooks have seen that."""
        held = held_by(self._optimizer)
        weights: dict[str, Any] = {name: layer.weight for name, layer in weighted_layers(self._model).items()}
        return any(
            _torch.version_of(weights[name]) != version
            for name, version in self._versions.items()
            if name in weights and id(weights[name]) in held
        )

    @torch.no_grad()
    def look(self, step: int) -> Taken:
        """Look at the gradients, before the optimizer uses them."""
        held = held_by(self._optimizer)
        mine = {name: p for name, p in self._model.named_parameters() if p.requires_grad and id(p) in held}
        weighted: dict[str, Any] = weighted_layers(self._model)
        layers = {
            name: layer
            for name, layer in weighted.items()
            if (grad := layer.weight.grad) is not None and not grad.is_sparse
        }
        gradients = {name: p.grad for name, p in mine.items() if p.grad is not None and not p.grad.is_sparse}
        norms = norms_of(
            {
                **{("gradient", name): grad for name, grad in gradients.items()},
                **{("weight", name): layer.weight for name, layer in layers.items()},
            }
        )
        taken = Taken(
            step=step,
            lr=largest_option(self._optimizer, "lr"),
            before=dict(zip(mine, _torch.clone_all(list(mine.values())), strict=True)),
            numbers=Packed(
                {**norms, **gradients_of_outputs(layers), **tensors_of(self._signals), **running_tensors(self._norms)}
            ),
            running=self._running,
            entries={name: layer.weight.numel() for name, layer in layers.items()},
            rates=self._rates(weighted),
            signals=self._signals,
            norms={name: (norm.momentum, norm.eps) for name, norm in self._norms.items()},
            values=self._values,
            half=self._half or any(p.dtype.itemsize < 4 for p in mine.values()),
        )
        self.disarm()
        return taken

    @torch.no_grad()
    def follow(self, taken: Taken) -> tuple[Followed, dict[str, Tensor]]:
        """The step that was taken since: where it has led less where it began."""
        now = {name: p for name, p in self._model.named_parameters() if name in taken.before}
        before = [taken.before[name] for name in now]
        moved = dict(zip(now, _torch.subtract_all(list(now.values()), before), strict=True))
        return Followed(replace(taken, before={}), Packed(norms_of(moved))), moved

    def result(self, followed: Followed) -> Look:
        """The look, from numbers that are on the host by now, or are waited for."""
        taken = followed.taken
        steps, numbers = followed.steps.arrays(), taken.numbers.arrays()
        silent = {name: _silent(name, numbers) for name in taken.entries}
        dead = self._dead(silent)
        looks = []
        for name, entries in taken.entries.items():
            own = f"{name}.weight" if name else "weight"
            looks.append(
                LayerLook(
                    layer=name,
                    weight=numbers["weight", name].item(),
                    gradient=numbers["gradient", own].item() if ("gradient", own) in numbers else math.nan,
                    update=steps[own].item() if own in steps else math.nan,
                    rows=len(silent[name]),
                    dead=dead[name] / max(len(silent[name]), 1),
                    zeros=1 - numbers["weights", name].sum().item() / max(entries, 1),
                    lr=taken.rates.get(name, math.nan),
                    **(activations(name, taken.signals[name], numbers) if name in taken.signals else {}),
                )
            )
        running = taken.running.arrays()
        norms = []
        for name, (share, epsilon) in taken.norms.items():
            shift, ratio = batch_beside_running(name, share, epsilon, running, numbers)
            norms.append(NormLook(layer=name, shift=shift, ratio=ratio, values=taken.values.get(name, math.nan)))
        return Look(
            step=taken.step,
            lr=taken.lr,
            gradient=math.hypot(*(value.item() for (what, _), value in numbers.items() if what == "gradient")),
            layers=tuple(looks),
            norms=tuple(norms),
            inputs=tuple(
                input_look(name, signal, numbers)
                for name, signal in taken.signals.items()
                if signal.channels is not None
            ),
            half=taken.half,
        )

    def _call(self, see: Callable[..., None], name: str, *about: Any) -> None:
        """Look at a call of a layer: whatever goes wrong, the training's forward goes on."""
        if torch.compiler.is_compiling():  # nothing of a look belongs into compiled code
            return
        try:
            see(name, *about)
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"

    def _see(self, name: str, layer: Any, args: tuple[Any, ...], output: Any) -> None:
        x = args[0] if args else None
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and output.requires_grad and layer.training):
            return
        if not x.is_floating_point() or not x.numel() or _torch.in_backward():
            return
        self._versions[name] = _torch.version_of(layer.weight)
        with torch.no_grad():
            self._half = self._half or output.dtype.itemsize < 4
            self._signals[name] = signal_of(layer, x, output)

    def _count(self, name: str, norm: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = args[0] if args else None
        if isinstance(x, Tensor) and x.ndim >= 2 and x.requires_grad and norm.training:
            self._values[name] = x.numel() / x.shape[1]

    def _rates(self, layers: Mapping[str, Any]) -> dict[str, float]:
        rates = {id(p): option(g, "lr") for g in self._optimizer.param_groups for p in g["params"]}
        return {name: rates[id(layer.weight)] for name, layer in layers.items() if id(layer.weight) in rates}

    def _dead(self, silent: dict[str, Any]) -> dict[str, int]:
        """How many outputs of each layer had no gradient in this look and the last ones."""
        sizes = {name: len(each) for name, each in silent.items()}
        if self._silent and sizes != {name: len(each) for name, each in self._silent[-1].items()}:
            self._silent.clear()
        self._silent.append(silent)
        if len(self._silent) < DEAD_LOOKS:
            return dict.fromkeys(silent, 0)
        return {name: int(np.logical_and.reduce([each[name] for each in self._silent]).sum()) for name in silent}


def _silent(name: str, numbers: Mapping[tuple[str, str], Array]) -> Any:
    """Which outputs of a layer have a gradient of exactly 0, for their weights and bias."""
    silent = numbers["weights", name] == 0
    return silent & (numbers["bias", name] == 0) if ("bias", name) in numbers else silent
