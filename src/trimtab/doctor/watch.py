"""Looks at a training without computing anything of it twice: gradients, weights, statistics, activations.

At a step that is looked at, hooks are on the layers and a copy of the parameters is kept until the next step; at all
others there is neither.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from trimtab import _torch
from trimtab.bnp.layers import layer_type
from trimtab.bnp.rows.hooks import ModuleHook, Pause, can_be_paused
from trimtab.doctor.measures import (
    batch_beside_running,
    input_numbers,
    norms_of,
    numbers_of,
    root_mean_square,
    running_tensors,
    silent_rows,
    spread_of,
    unlike_sizes,
)
from trimtab.doctor.record import InputLook, LayerLook, Look, NormLook

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
        gradients: The norm of each parameter's gradient.
        weights: The norm of each layer's weight.
        silence: For each layer how many outputs are dead, and how many entries of the gradient are zero.
        rows: How many outputs each layer has, and how many entries its weight has.
        rates: The learning rate of each layer's weight.
        seen: What the hooks have seen: for each layer the root mean squares of input and output.
        inputs: What they have seen of the network's inputs.
        norms: For each layer with running statistics, shift and ratio.
        values: How many values of a channel its statistics were of.
        half: Whether something was in half precision.
    """

    step: int
    lr: float
    before: dict[str, Tensor]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    silence: dict[str, Tensor]
    rows: dict[str, tuple[int, int]]
    rates: dict[str, float]
    seen: dict[str, Tensor]
    inputs: dict[str, Tensor]
    norms: dict[str, Tensor]
    values: dict[str, float]
    half: bool


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
        self._seen: dict[str, Tensor] = {}
        self._inputs: dict[str, Tensor] = {}
        self._values: dict[str, float] = {}
        self._half = False
        self._versions: dict[str, int | None] = {}  # of the weights when their layers were called
        self.failures: dict[str, str] = {}
        self.compiled = False
        self._statistics: dict[str, list[Tensor]] = {}
        self._silent: deque[Tensor] = deque(maxlen=DEAD_LOOKS)  # the outputs of all layers, one after the other
        self._silent_of: dict[str, tuple[int, int]] = {}

    def arm(self, *, hooks: bool = True) -> None:
        """Look at the forward that comes next, with hooks or without, which sees no activations."""
        self.disarm()
        norms = dict(running_norms(self._model))
        copies = _torch.clone_all([tensor for norm in norms.values() for tensor in running_tensors(norm)])
        self._statistics = {name: copies[3 * number : 3 * number + 3] for number, name in enumerate(norms)}
        if self._hooked and hooks:
            compiled = compiled_layers(self._model)
            self.compiled = not compiled.isdisjoint(weighted_layers(self._model).values())
            for name, layer in weighted_layers(self._model).items():
                if layer not in compiled:
                    hook = ModuleHook(partial(self._call, self._see, name), self._pause)
                    self._handles.append(layer.register_forward_hook(hook))
            for name, norm in running_norms(self._model):
                if norm not in compiled:
                    hook = ModuleHook(partial(self._call, self._count, name), self._pause)
                    self._handles.append(norm.register_forward_hook(hook))

    def disarm(self) -> None:
        """Take the hooks away, and forget what they have seen."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._half = [], False
        self._seen, self._inputs, self._values, self._statistics = {}, {}, {}, {}
        self._versions = {}

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
        gradients = {name: p.grad for name, p in mine.items() if p.grad is not None and not p.grad.is_sparse}
        layers: dict[str, Any] = {
            name: layer
            for name, layer in weighted_layers(self._model).items()
            if layer.weight.grad is not None and not layer.weight.grad.is_sparse
        }
        silence, rows = self._silence(layers)
        taken = Taken(
            step=step,
            lr=largest_option(self._optimizer, "lr"),
            before=dict(zip(mine, _torch.clone_all(list(mine.values())), strict=True)),
            gradients=norms_of(gradients),
            weights=norms_of({name: layer.weight for name, layer in layers.items()}),
            silence=silence,
            rows=rows,
            rates=self._rates(),
            seen=dict(self._seen),
            inputs=dict(self._inputs),
            norms=batch_beside_running(dict(running_norms(self._model)), self._statistics),
            values=dict(self._values),
            half=self._half or any(p.dtype.itemsize < 4 for p in mine.values()),
        )
        self.disarm()
        return taken

    @torch.no_grad()
    def finish(self, taken: Taken) -> tuple[Look, dict[str, Tensor]]:
        """The look, and the step that was taken since: where it has led less where it began."""
        now = {name: p for name, p in self._model.named_parameters() if name in taken.before}
        before = [taken.before[name] for name in now]
        moved = dict(zip(now, _torch.subtract_all(list(now.values()), before), strict=True))
        gradients, weights, silence = numbers_of(taken.gradients), numbers_of(taken.weights), numbers_of(taken.silence)
        steps, seen = numbers_of(norms_of(moved)), numbers_of(taken.seen)
        looks = []
        for name, (dead, zeros) in silence.items():
            rows, entries = taken.rows[name]
            own = f"{name}.weight" if name else "weight"
            rms = seen.get(name, [math.nan] * 5)
            looks.append(
                LayerLook(
                    layer=name,
                    weight=weights[name][0],
                    gradient=gradients.get(own, [math.nan])[0],
                    update=steps.get(own, [math.nan])[0],
                    rows=rows,
                    dead=dead / max(rows, 1),
                    zeros=zeros / max(entries, 1),
                    input_rms=rms[0],
                    output_rms=rms[1],
                    input_spread=rms[2],
                    output_spread=rms[3],
                    columns=rms[4],
                    lr=taken.rates.get(name, math.nan),
                )
            )
        look = Look(
            step=taken.step,
            lr=taken.lr,
            gradient=math.hypot(*(each[0] for each in gradients.values())),
            layers=tuple(looks),
            norms=tuple(
                NormLook(layer=name, shift=a, ratio=b, values=taken.values.get(name, math.nan))
                for name, (a, b) in numbers_of(taken.norms).items()
            ),
            inputs=tuple(
                InputLook(layer=name, rms=a, offset=b, smallest=c, largest=d)
                for name, (a, b, c, d) in numbers_of(taken.inputs).items()
            ),
            half=taken.half,
        )
        return look, moved

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
            unlike = unlike_sizes(layer, x) if x.requires_grad else torch.full((), math.nan, device=x.device)
            self._seen[name] = torch.stack(
                [root_mean_square(x), root_mean_square(output), spread_of(x), spread_of(output), unlike]
            )
            if not x.requires_grad:
                self._inputs[name] = input_numbers(layer, x)

    def _count(self, name: str, norm: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = args[0] if args else None
        if isinstance(x, Tensor) and x.ndim >= 2 and x.requires_grad and norm.training:
            self._values[name] = x.numel() / x.shape[1]

    def _rates(self) -> dict[str, float]:
        rates = {id(p): option(g, "lr") for g in self._optimizer.param_groups for p in g["params"]}
        layers = weighted_layers(self._model).items()
        return {name: rates[id(layer.weight)] for name, layer in layers if id(layer.weight) in rates}

    def _silence(self, layers: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, tuple[int, int]]]:
        """For each layer the numbers of dead outputs and of zeros in the gradient, and out of how many."""
        if not layers:
            return {}, {}
        silent, zeros = zip(*[silent_rows(layer) for layer in layers.values()], strict=True)
        rows = {
            name: (each.numel(), layer.weight.numel())
            for (name, layer), each in zip(layers.items(), silent, strict=True)
        }
        if rows != self._silent_of:
            self._silent.clear()
            self._silent_of = rows
        self._silent.append(torch.cat(silent))
        dead = torch.zeros(len(rows), device=silent[0].device)
        if len(self._silent) == DEAD_LOOKS:
            always = torch.stack(tuple(self._silent)).all(0).float()
            dead = torch.stack([each.sum() for each in always.split([each for each, _ in rows.values()])])
        return dict(zip(layers, torch.stack([dead, torch.stack(zeros).float()], 1), strict=True)), rows


def weighted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Layers whose own weight is trained: dense ones and convolutions."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        weight = _torch.parameters_of(module).get("weight")
        if layer_type(module) is not None and weight is not None and weight.requires_grad:
            found[name] = module
    return found


def compiled_layers(model: nn.Module) -> set[nn.Module]:
    """All that is within a compiled module, or was called by compiled code: a hook would have that compiled anew."""
    within = {each for module in model.modules() if _torch.is_compiled(module) for each in module.modules()}
    called = {m for m in model.modules() if any(map(_torch.was_compiled, _torch.parameters_of(m).values()))}
    return within | called


def running_norms(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers that normalize by the batch and move running averages by a share of it."""
    for name, module in model.named_modules():
        share, mean = getattr(module, "momentum", None), getattr(module, "running_mean", None)
        counted = isinstance(getattr(module, "num_batches_tracked", None), Tensor)
        if isinstance(share, float) and share > 0 and isinstance(mean, Tensor) and counted and module.training:
            yield name, module


def held_by(optimizer: Optimizer) -> set[int]:
    """The parameters that an optimizer moves, by identity."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def option(group: Mapping[str, Any], name: str) -> float:
    """A number of one of an optimizer's groups; 0 if it is not there, or None: some optimizers choose their rate."""
    value = group.get(name)
    return 0.0 if value is None else float(value)


def largest_option(optimizer: Optimizer, name: str) -> float:
    """The largest of the groups."""
    return max((option(group, name) for group in optimizer.param_groups), default=0.0)
