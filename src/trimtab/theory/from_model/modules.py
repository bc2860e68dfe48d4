"""Reading calls of modules, and of functions that do the same as a module."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from trimtab.theory.from_model.axes import channels, reshaped, same, sites
from trimtab.theory.from_model.builder import GraphBuilder
from trimtab.theory.from_model.known import (
    BATCH,
    CONV,
    DROPOUT,
    ELEMENTWISE,
    MAX,
    MEAN,
    SAMPLE,
    WHOLE,
    activation_of,
    conv_window,
    pool_window,
)
from trimtab.theory.from_model.layers import affine, normalization, of_batch
from trimtab.theory.from_model.tracing import Trace
from trimtab.theory.from_model.values import IDENTITY, Elementwise, Part, Value
from trimtab.theory.mean_field.graph import Operation
from trimtab.theory.mean_field.joining import Reshape
from trimtab.theory.mean_field.operations import Flatten, MeanPool
from trimtab.theory.mean_field.pooling import ActivatedMaxPool
from trimtab.theory.mean_field.positions import Window

Read = Value | list[Value | None]
"""What a traced node is read as: a tensor, or a tuple of tensors and other things."""


FEW = 32  # channels of a group, below which statistics differ so much that their mean is off by a tenth
VARY = "groups of {} channels, whose statistics vary from group to group; the mean of them is taken."


class ModuleReader:
    """Reads traced modules.

    Attributes:
        values: What each node was read as.
    """

    def __init__(self, builder: GraphBuilder, trace: Trace, *, frozen: bool) -> None:
        """Begin.

        Args:
            builder: What operations are added to.
            trace: What is read.
            frozen: Whether the gradient does not pass through BatchNorm's statistics.
        """
        self.values: dict[fx.Node, Read] = {}
        self._builder = builder
        self._trace = trace
        self._frozen = frozen
        self._called: set[object] = set()

    def _module(self, node: fx.Node, name: str, module: Any, x: Value) -> Read:
        """Read a call of a module; the first argument is x."""
        norm: Any = module  # mypy takes what is an instance of a tuple of types for an object
        if module in self._trace.opaque:
            return self._unknown(node, f"{type(module).__name__}, which torch.fx cannot trace", x, name, module)
        if any(True for _ in module.parameters()):
            self._count(name, getattr(module, "weight", None))
        if isinstance(module, nn.Linear):
            return self._affine(node, name, x, module.weight, module.bias, layer=module)
        if isinstance(module, CONV):
            return self._convolution(node, name, x, module.weight, module.bias, module, layer=module)
        if isinstance(module, BATCH):
            options = of_batch(name, norm, self._builder.note_of)
            return self._batch_norm(node, name, x, norm.weight, norm.bias, eps=norm.eps, **options)
        if isinstance(module, SAMPLE):
            return self._sample_norm(node, name, x, module)
        if isinstance(module, ELEMENTWISE):
            if getattr(module, "inplace", False):
                module = copy(module)
                module.inplace = False
            return x.then(Elementwise(module, None, activation_of(module)))
        if isinstance(module, MAX):
            return self._max_pool(node, name, module, x)
        if isinstance(module, MEAN + WHOLE):
            return self._mean_pool(node, name, module, x)
        if isinstance(module, nn.Flatten | nn.Unflatten):
            return self._reshape(node, x)
        if isinstance(module, DROPOUT):
            if getattr(module, "p", 0.0):
                self._builder.note_dropping(name)
            return x
        return self._unknown(node, type(module).__name__, x, name, module)

    def _count(self, name: str, weight: Tensor | None = None) -> None:
        """Remember that a layer was called, and its weight, which other layers may have too."""
        keys = {name} if weight is None or not weight.is_leaf else {name, id(weight)}
        if keys & self._called:
            self._builder.note_of(
                name,
                " is used more than once; its uses are taken for independent.",
                " are used more than once; their uses are taken for independent.",
            )
        self._called |= keys

    def _affine(
        self, node: fx.Node, name: str, x: Value, weight: Tensor, bias: Tensor | None, layer: nn.Module | None = None
    ) -> Read:
        operation = affine(name, weight, bias, Window((1, 1)), self._builder.note_of, layer)
        roles = "b" + "p" * (len(x.shape) - 2) + "c"
        place = self._builder.read_as(x, roles)
        if place is None:
            return self._unknown(node, "a Linear layer over channels and positions", x, name, layer)
        shape = shape_of(node)
        return self._builder.value(self._builder.put(operation, (place,), sites(shape, roles)), shape[-1], shape, roles)

    def _convolution(
        self,
        node: fx.Node,
        name: str,
        x: Value,
        weight: Tensor,
        bias: Tensor | None,
        options: Any,
        layer: nn.Module | None = None,
    ) -> Read:
        """`options` has kernel_size, stride, padding, dilation, and maybe padding_mode, as the module has."""
        window, note = conv_window(options), self._builder.note_of
        if any(window.padding) and getattr(options, "padding_mode", "zeros") != "zeros":
            mode = f"by {options.padding_mode!r}; zeros are assumed."
            note(name, f" pads {mode}", f" pad {mode}")
        operation = affine(name, weight, bias, window, note, layer)
        shape = shape_of(node)
        roles = "bc" + "p" * (len(shape) - 2)
        place = self._builder.read_as(x, roles) if len(x.shape) == len(shape) else None
        if place is None:
            return self._unknown(node, "a convolution over channels and positions", x, name, layer)
        self._builder.padded |= any(window.padding)
        here, size = window.output(sites(x.shape, roles)), sites(shape, roles)
        place = self._builder.put(operation, (place,), here)
        if here != size:
            more = "more on one side than on the other; the same on both is assumed."
            note(name, f" pads {more}", f" pad {more}")
            place = self._builder.put(Reshape(size), (place,), size)
        return self._builder.value(place, shape[1], shape, roles)

    def _batch_norm(
        self, node: fx.Node, name: str, x: Value, gamma: Tensor | None, beta: Tensor | None, **options: Any
    ) -> Read:
        if not same(x.shape, x.roles, "bc" + "p" * (len(x.shape) - 2)):
            return self._unknown(node, "BatchNorm of what other layers take for positions", x, name)
        found, start = [], 0
        for part in x.parts:  # each channel has statistics of its own
            of_part = [None if p is None else p[start : start + part.channels] for p in (gamma, beta)]
            operation = normalization(name, *of_part, frozen=self._frozen, **options)
            start += part.channels
            found.append(self._then(x, part, operation))
        return replace(x, parts=tuple(found))

    def _then(self, x: Value, part: Part, operation: Operation) -> Part:
        place = self._builder.put(operation, (self._builder.part(x, part),), sites(x.shape, x.roles))
        return Part(place, 0, part.channels)

    def _sample_norm(self, node: fx.Node, name: str, x: Value, module: Any) -> Read:
        kind = type(module).__name__
        options: dict[str, Any] = {"divide": "sample", "eps": module.eps}
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            first = len(x.shape) - len(module.normalized_shape)
            roles = [role for n, role in zip(x.shape[first:], x.roles[first:], strict=True) if n > 1]
            everything = roles.count("p") == sum(n > 1 and r == "p" for n, r in zip(x.shape, x.roles, strict=True))
            if roles.count("c") != sum(n > 1 and r == "c" for n, r in zip(x.shape, x.roles, strict=True)):
                if x is self._builder.input:
                    self._builder.read_as(x, "b" + "p" * (first - 1) + "c" * len(module.normalized_shape))
                return self._unknown(node, f"{kind} over positions", x, name, module)
            if "p" in roles and not everything:
                return self._unknown(node, f"{kind} over some of the positions", x, name, module)
            options |= {"own": "p" in roles} if everything and "p" in roles else {"divide": "position"}
            if isinstance(module, nn.RMSNorm):
                options |= {"centre": False, "eps": module.eps or torch.finfo(torch.float32).eps}
        elif not same(x.shape, x.roles, "bc" + "p" * (len(x.shape) - 2)):
            return self._unknown(node, f"{kind} of what other layers take for positions", x, name, module)
        else:
            group = module.num_channels // module.num_groups if isinstance(module, nn.GroupNorm) else 1
            if 1 < group < FEW and module.num_groups > 1:
                self._builder.note_of(
                    name, f" ({kind}) takes {VARY.format(group)}", f" ({kind}) take {VARY.format(group)}"
                )
            options["group"] = group
        beta = getattr(module, "bias", None)
        operation = normalization(name, module.weight, beta, frozen=self._frozen, **options)
        size = sites(x.shape, x.roles)
        place = self._builder.put(operation, (self._builder.place(x),), size)
        return self._builder.value(place, channels(x.shape, x.roles), x.shape, x.roles)

    def _each(self, node: fx.Node, x: Value, make: Callable[[Part], Operation], roles: str | None = None) -> Value:
        """An operation on each channel, which changes positions."""
        shape, letters = shape_of(node), x.roles if roles is None else roles
        size = sites(shape, letters)
        parts = []
        for part in x.parts:
            operation = make(part)
            below = part if not isinstance(operation, ActivatedMaxPool) else replace(part, function=IDENTITY)
            place = self._builder.put(operation, (self._builder.part(x, below),), size)
            parts.append(Part(place, 0, part.channels))
        return Value(tuple(parts), shape, letters)

    def _max_pool(self, node: fx.Node, name: str, module: Any, x: Value) -> Read:
        window, note = pool_window(module), self._builder.note_of
        if not self._fits(node, x, window):
            return self._unknown(node, "pooling by windows of different sizes", x, name)
        self._builder.padded |= any(window.padding)
        if any(window.padding):
            zeros = "; the padding is taken for zeros of the preactivation."
            note(name, f" pads{zeros}", f" pad{zeros}")
        for part in x.parts:
            if part.function is IDENTITY:
                note(
                    name,
                    " does not read an activation; what it reads is taken for Gaussian.",
                    " do not read an activation; what they read is taken for Gaussian.",
                )
            elif part.function.activation().prime(np.linspace(-8, 8, 200)).min() < -0.2:
                return self._unknown(node, "the largest of an activation that decreases", x, name)
        return self._each(node, x, lambda part: ActivatedMaxPool(part.function.activation(), window))

    def _mean_pool(self, node: fx.Node, name: str, module: Any, x: Value) -> Read:
        size, out = sites(x.shape, x.roles), sites(shape_of(node), x.roles)
        if isinstance(module, MEAN):
            window = pool_window(module)
            if getattr(module, "divisor_override", None) or (any(window.padding) and not module.count_include_pad):
                return self._unknown(node, "a mean that divides by something else", x, name)
        else:
            window = Window((size[0] // out[0], size[1] // out[1]), (size[0] // out[0], size[1] // out[1]))
            if size[0] % out[0] or size[1] % out[1]:
                return self._unknown(node, "pooling by windows of different sizes", x, name)
        if not self._fits(node, x, window):
            return self._unknown(node, "pooling by windows of different sizes", x, name)
        self._builder.padded |= any(window.padding)
        return self._each(node, x, lambda part: MeanPool(window))

    def _fits(self, node: fx.Node, x: Value, window: Window) -> bool:
        """Whether channels are where a pooling expects them, and its windows are all of one size."""
        roles = "bc" + "p" * (len(x.shape) - 2)
        return same(x.shape, x.roles, roles) and window.output(sites(x.shape, roles)) == sites(shape_of(node), roles)

    def _reshape(self, node: fx.Node, x: Value) -> Read:
        shape = shape_of(node)
        if shape == x.shape:
            return x
        roles = reshaped(x.shape, x.roles, shape)
        if roles is None:
            return self._unknown(node, f"reshaping {x.shape[1:]} to {shape[1:]}", x)
        count = channels(shape, roles)
        if count == channels(x.shape, x.roles):
            return replace(x, shape=shape, roles=roles)
        return self._builder.value(self._builder.put(Flatten(), (self._builder.place(x),), (1, 1)), count, shape, roles)

    def _unknown(
        self, node: fx.Node, what: str, x: Value, name: str | None = None, module: nn.Module | None = None
    ) -> Read:
        """Say that it is not known, and let order parameters pass."""
        if name is None:
            within = node.meta["module"]
            name = f"{within}.{node.name}" if within else node.name
        parameters = sum(p.numel() for p in module.parameters() if p.requires_grad) if module is not None else 0
        several = sum(isinstance(self.values.get(n), Value | list) for n in node.all_input_nodes) > 1
        counted = f", and {{}} {parameters} parameters are not counted" if parameters else ""
        self._builder.note_of(
            name,
            f" ({what}) is not known: {'those of its first input' if several else 'order parameters'} pass it unchanged"
            f"{counted.format('its')}.",
            f" ({what}) are not known: {'those of their first inputs' if several else 'order parameters'} pass them "
            f"unchanged{counted.format('their')}{' each' if parameters else ''}.",
        )
        shapes = node.meta["value"]
        if isinstance(shapes, tuple):
            return self._passed(x, shapes)
        return [None if shape is None else self._passed(x, shape) for shape in shapes]

    def _passed(self, x: Value, shape: tuple[int, ...]) -> Value:
        """The same order parameters in another shape."""
        if len(shape) == len(x.shape):
            roles = x.roles
        elif len(shape) > 2 and shape[-1] == channels(x.shape, x.roles) != shape[1]:
            roles = "b" + "p" * (len(shape) - 2) + "c"
        else:
            roles = ("bc" + "p" * len(shape))[: len(shape)]
        size = sites(shape, roles)
        place = self._builder.put(Reshape(size), (self._builder.place(x),), size)
        return self._builder.value(place, channels(shape, roles), shape, roles)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of the tensor that a node stands for."""
    shape: tuple[int, ...] = node.meta["value"]
    return shape
