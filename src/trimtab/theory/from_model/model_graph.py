"""Turns a traced module into the graph of operations that mean field computes with."""

import math
import operator
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from trimtab import _torch
from trimtab.theory.from_model.layers import affine, normalization
from trimtab.theory.from_model.tracing import (
    BATCH,
    DROPOUT,
    FUNCTIONS,
    LEAVES,
    MAX,
    MEAN,
    PRODUCTS,
    SAMPLE,
    SUMS,
    WHOLE,
    activation_of,
    channels_and_size,
    pool_window,
    traced,
)
from trimtab.theory.mean_field.activations import LeakyReLU
from trimtab.theory.mean_field.graph import Node, Operation, State, forward
from trimtab.theory.mean_field.operations import Activate, Add, Affine, Flatten, MeanPool, Normalize, Reshape
from trimtab.theory.mean_field.pooling import ActivatedMaxPool
from trimtab.theory.mean_field.positions import Sites, Uniform, Window

_PLAIN_FORWARDS = (nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward)


class ModelGraph:
    """A model as a graph of mean-field operations.

    Attributes:
        nodes: The graph; the last node is the output.
        unseen: A sentence for each property of the model that the graph does not have.
        padded: Whether some layer pads with zeros.
    """

    def __init__(self, model: nn.Module, input_shape: tuple[int, ...], *, frozen: bool) -> None:
        """Trace a copy of the model and translate it, node by node.

        Args:
            model: The model.
            input_shape: The shape of one sample.
            frozen: Whether the gradient does not pass through BatchNorm's statistics.

        Raises:
            ValueError: If it cannot be traced, does not take such inputs, or has no Linear or Conv layer.
        """
        self.nodes: list[Node] = []
        self.unseen: list[str] = []
        self.padded = False
        self._frozen = frozen
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be a torch.nn.Module, not {type(model).__name__}.")
        try:
            copy = deepcopy(model).eval()
        except RuntimeError as error:
            raise ValueError(
                f"model cannot be copied ({str(error).splitlines()[0]}); if it uses torch.nn.utils.weight_norm, take "
                "that of torch.nn.utils.parametrizations."
            ) from error
        for part in copy.modules():  # a user's hooks have nothing to see here
            _torch.clear_hooks(part)
        if isinstance(copy, LEAVES):  # a tracer looks into whatever it is given
            copy = nn.Sequential(copy)
        self._modules = dict(copy.named_modules())
        module, self._shapes = traced(copy, input_shape)
        self._place: dict[fx.Node, int] = {}
        self._called: set[str] = set()
        result: int | None = None
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self._place.setdefault(node, -1)
            elif node.op == "output":
                result = self._output(node)
            elif node in self._shapes:
                inputs = [x for x in node.all_input_nodes if x in self._place]
                if inputs:  # else it is a constant, and whoever uses it says so
                    self._place[node] = self._read(node, inputs)
        if result is None or not any(isinstance(node.operation, Affine) for node in self.nodes[: result + 1]):
            raise ValueError(
                "Nothing can be predicted: the model has no Linear or Conv layer between input and output."
            )
        self.nodes = self.nodes[: result + 1]

    def pairs_of_positions(self, size: Sites) -> int:
        """The number of pairs of positions, summed over all nodes: what the memory is proportional to."""
        states = forward(self.nodes, State(Uniform(size), *Uniform(size).fill(1.0, 0.0, 0.0)))
        return sum(state.layout.count**2 for state in states)

    def note(self, sentence: str) -> None:
        """Add a sentence to `unseen`, unless it is there already."""
        if sentence not in self.unseen:
            self.unseen.append(sentence)

    def _output(self, node: fx.Node) -> int | None:
        results = [x for x in node.all_input_nodes if x in self._place]
        if len(results) > 1:
            self.note("The model has several outputs; the first one is meant.")
        return self._place[results[0]] if results else None

    def _read(self, node: fx.Node, inputs: list[fx.Node]) -> int:
        """Translate one traced node; returns the index of the node that has its value."""
        if node.op == "call_module":
            return self._module(str(node.target), self._modules[str(node.target)], node, inputs[0])
        if node.target in SUMS:
            return self._sum(node, inputs)
        if node.target in FUNCTIONS:
            module = FUNCTIONS[node.target](*node.args, **node.kwargs)
            return self._module(node.name, module, node, inputs[0])
        if node.target in PRODUCTS and len(inputs) == 1:
            return self._product(node, inputs[0])
        if node.target in ("mean", torch.mean) and self._is_over_positions(node, inputs[0]):
            return self._module(node.name, nn.AdaptiveAvgPool2d(1), node, inputs[0])
        if node.target is operator.getitem:
            return self._slice(node, inputs[0])
        if getattr(node.target, "__name__", None) == F.pad.__name__ and self._size(node) == self._size(inputs[0]):
            share = self._channels(inputs[0]) / self._channels(node)
            return self._append(Reshape(self._size(node), share), inputs[0])
        return self._unknown(node.name, getattr(node.target, "__name__", str(node.target)), node, inputs[0])

    def _is_over_positions(self, node: fx.Node, source: fx.Node) -> bool:
        """Whether `mean` is taken over all positions, and over no other dimension."""
        given = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        dims = len(self._shapes[source])
        found = [given] if isinstance(given, int) else list(given) if isinstance(given, tuple | list) else []
        return dims > 2 and sorted(d % dims for d in found if isinstance(d, int)) == list(range(2, dims))

    def _module(self, name: str, module: nn.Module, node: fx.Node, source: fx.Node) -> int:
        """Translate a call of a module, or of a function that does the same as a module."""
        if name in self._called and any(True for _ in module.parameters()):
            self.note(f"{name} is used more than once; its uses are taken for independent.")
        self._called.add(name)
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            return self._affine(name, module, node, source)
        if isinstance(module, BATCH + SAMPLE):
            return self._append(normalization(name, module, self.note, frozen=self._frozen), source)
        if (phi := activation_of(module)) is not None:
            return self._append(Activate(phi), source)
        if isinstance(module, MAX):
            return self._max_pool(name, module, node, source)
        if isinstance(module, MEAN + WHOLE):
            return self._mean_pool(name, module, node, source)
        if isinstance(module, nn.Flatten):
            return self._flatten(name, node, source)
        if isinstance(module, DROPOUT):
            if getattr(module, "p", 0.0):
                self.note(f"{name} drops at random in training; it is taken as it is in evaluation.")
            return self._place[source]
        return self._unknown(name, type(module).__name__, node, source, module)

    def _affine(self, name: str, layer: nn.Linear | nn.Conv1d | nn.Conv2d, node: fx.Node, source: fx.Node) -> int:
        operation = affine(name, layer, self.note)
        place, window = self._place[source], operation.window
        self.padded |= any(window.padding)
        if isinstance(layer, nn.Linear) and len(self._shapes[source]) > 2:
            self.note(f"{name} is a Linear layer at several positions; means over positions are taken for them.")
            place = self._append(Reshape((1, math.prod(self._shapes[source][1:-1]))), source)
        place = self._put(Node(operation, (place,)))
        if not isinstance(layer, nn.Linear) and window.output(self._size(source)) != self._size(node):
            self.note(f"{name} pads more on one side than on the other; the same on both is assumed.")
            place = self._put(Node(Reshape(self._size(node)), (place,)))
        return place

    def _max_pool(self, name: str, module: Any, node: fx.Node, source: fx.Node) -> int:
        window = pool_window(module)
        if window.output(self._size(source)) != self._size(node):
            return self._unknown(name, "pooling by windows of different sizes", node, source)
        place = self._place[source]
        self.padded |= any(window.padding)
        if any(window.padding):
            self.note(f"{name} pads; the padding is taken for zeros of the preactivation.")
        if place >= 0 and isinstance(self.nodes[place].operation, Activate):
            below = self.nodes[place]
            assert isinstance(below.operation, Activate)
            return self._put(Node(ActivatedMaxPool(below.operation.activation, window), below.inputs))
        self.note(f"{name} does not read an activation; what it reads is taken for Gaussian.")
        return self._append(ActivatedMaxPool(LeakyReLU(1.0), window), source)

    def _mean_pool(self, name: str, module: Any, node: fx.Node, source: fx.Node) -> int:
        size = self._size(source)
        if isinstance(module, MEAN):
            window = pool_window(module)
            if getattr(module, "divisor_override", None) or (any(window.padding) and not module.count_include_pad):
                return self._unknown(name, "a mean that divides by something else", node, source)
        else:
            out = self._size(node)
            if size[0] % out[0] or size[1] % out[1]:
                return self._unknown(name, "pooling by windows of different sizes", node, source)
            window = Window((size[0] // out[0], size[1] // out[1]), (size[0] // out[0], size[1] // out[1]))
        if window.output(size) != self._size(node):
            return self._unknown(name, "pooling by windows of different sizes", node, source)
        self.padded |= any(window.padding)
        return self._append(MeanPool(window), source)

    def _flatten(self, name: str, node: fx.Node, source: fx.Node) -> int:
        before, after = self._shapes[source], self._shapes[node]
        if before == after:
            return self._place[source]
        if len(after) == 2 and after[0] == before[0]:
            return self._append(Flatten(), source)
        return self._unknown(name, f"reshaping {before[1:]} to {after[1:]}", node, source)

    def _sum(self, node: fx.Node, inputs: list[fx.Node]) -> int:
        alike = len(inputs) == 2 and self._shapes[inputs[0]] == self._shapes[inputs[1]]
        if not alike or node.kwargs.get("alpha", 1) != 1:
            return self._unknown(node.name, "a sum with something else", node, inputs[0])
        places = self._place[inputs[0]], self._place[inputs[1]]
        if not any(self._mixed(place) for place in places):
            self.note(
                f"{node.name} adds two values that no weights of their own keep independent; they are taken for it."
            )
        return self._put(Node(Add(), places))

    def _mixed(self, place: int) -> bool:
        """Whether a value was computed by weights of its own, so that it is independent of others."""
        if place < 0:
            return False
        operation = self.nodes[place].operation
        if isinstance(operation, Normalize | MeanPool | Reshape):
            return self._mixed(self.nodes[place].inputs[0])
        return isinstance(operation, Affine)

    def _product(self, node: fx.Node, source: fx.Node) -> int:
        quotient = node.target in (operator.truediv, torch.div, "div")
        factor = next((x for x in node.args if isinstance(x, int | float)), 0.0)
        if factor <= 0 or node.kwargs or (quotient and node.args[0] is not source):
            return self._unknown(node.name, "a product", node, source)
        by = 1 / factor if quotient else factor
        return self._append(Normalize(node.name, by * by, centre=False, divide=None, parameters=()), source)

    def _slice(self, node: fx.Node, source: fx.Node) -> int:
        """Translate `x[:, :, ::2, ::2]`, which takes every other position, as shortcuts without weights do."""
        index = node.args[1]
        steps = [x.step or 1 if isinstance(x, slice) else 0 for x in index] if isinstance(index, tuple) else []
        size, here = self._size(node), self._size(source)
        if len(steps) == 4 and steps[:2] == [1, 1] and min(steps) > 0:
            window = Window((1, 1), (steps[2], steps[3]))
            if window.output(here) == size and self._channels(node) == self._channels(source):
                return self._append(MeanPool(window), source)
        return self._unknown(node.name, "an index", node, source)

    def _unknown(self, name: str, what: str, node: fx.Node, source: fx.Node, module: nn.Module | None = None) -> int:
        count = sum(p.numel() for p in module.parameters() if p.requires_grad) if module is not None else 0
        missing = f", and its {count} parameters are not counted" if count else ""
        several = "those of its first input" if len(node.all_input_nodes) > 1 else "order parameters"
        self.note(f"{name} ({what}) is not known: {several} pass it unchanged{missing}.")
        return self._append(Reshape(self._size(node)), source)

    def _append(self, operation: Operation, source: fx.Node) -> int:
        return self._put(Node(operation, (self._place[source],)))

    def _put(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _channels(self, node: fx.Node) -> int:
        return channels_and_size(self._shapes[node][1:])[0]

    def _size(self, node: fx.Node) -> Sites:
        return channels_and_size(self._shapes[node][1:])[1]
