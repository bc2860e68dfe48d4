"""Turns a traced module into the graph of operations that mean field computes with."""

from copy import deepcopy
from typing import Any

from torch import Tensor, fx, nn

from trimtab import _torch
from trimtab.theory.from_model.builder import GraphBuilder, InputReadDifferentlyError
from trimtab.theory.from_model.functions import FunctionReader
from trimtab.theory.from_model.known import LEAVES, is_in_place
from trimtab.theory.from_model.tracing import Trace, has_own_forward
from trimtab.theory.from_model.values import Value
from trimtab.theory.mean_field.graph import Node, State, forward
from trimtab.theory.mean_field.operations import Affine
from trimtab.theory.mean_field.positions import Sites, Uniform


class ModelGraph:
    """A model as a graph of mean-field operations.

    Attributes:
        nodes: The graph; the last node is the output.
        unseen: A sentence for each property of the model that the graph does not have.
        padded: Whether some layer pads with zeros, or something else makes positions differ.
        input_roles: A letter for each dimension of the input, `c` where its entries are channels; see `axes`.
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
        trace = Trace(_copied(model), input_shape)
        self.input_roles = "bc" + "p" * (len(input_shape) - 1)
        try:
            builder, result = _read(trace, self.input_roles, (2, *input_shape), frozen=frozen)
        except InputReadDifferentlyError as error:
            self.input_roles = error.roles
            builder, result = _read(trace, self.input_roles, (2, *input_shape), frozen=frozen)
        self.nodes: list[Node] = [] if result is None else builder.pruned(result)
        self.unseen = builder.unseen
        self.padded = builder.padded
        if not any(isinstance(node.operation, Affine) for node in self.nodes):
            raise ValueError(
                "Nothing can be predicted: the model has no Linear or Conv layer between input and output."
            )

    def pairs_of_positions(self, size: Sites) -> int:
        """The number of pairs of positions, summed over all nodes: what the memory is proportional to."""
        states = forward(self.nodes, State(Uniform(size), *Uniform(size).fill(1.0, 0.0, 0.0)))
        return sum(state.layout.count**2 for state in states)

    def note(self, sentence: str) -> None:
        """Add a sentence to `unseen`, unless it is there already."""
        if sentence not in self.unseen:
            self.unseen.append(sentence)

    def channels_first(self, inputs: Tensor) -> Tensor:
        """Inputs as (samples, channels, *positions), by what the graph takes for channels."""
        roles = self.input_roles
        order = [d for letter in "bcp" for d, role in enumerate(roles) if role == letter]
        positions = [n for n, role in zip(inputs.shape, roles, strict=True) if role == "p"]
        return inputs.permute(order).reshape(len(inputs), -1, *positions)


def _copied(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode without hooks, which a tracer can look into."""
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
    if isinstance(copy, LEAVES) and not has_own_forward(copy):  # a tracer looks into whatever it is given
        copy = nn.Sequential(copy)
    elif "forward" in vars(copy):  # and takes the forward of its class

        def replaced(self: nn.Module, x: Any) -> Any:
            return vars(self)["forward"](x)

        copy.__class__ = type(type(copy).__name__, (type(copy),), {"forward": replaced})
    return copy


def _read(trace: Trace, roles: str, shape: tuple[int, ...], *, frozen: bool) -> tuple[GraphBuilder, int | None]:
    """The graph, and the number of the node that is the output."""
    builder = GraphBuilder(shape, roles)
    reader = FunctionReader(builder, trace, frozen=frozen)
    for name in trace.random:
        builder.note_dropping(name)
    result: int | None = None
    for node in trace.nodes:
        if node.op == "placeholder":
            reader.values[node] = builder.input
        elif node.op == "output":
            results = [x for x in _values(reader, node) if isinstance(x, Value)]
            if len(results) > 1:
                builder.note("The model has several outputs; the first one is meant.")
            result = builder.place(results[0]) if results else None
        elif _values(reader, node) and isinstance(node.meta["value"], tuple | list):
            found = reader.read(node)  # else it is a constant, and whoever uses it reads it
            if _overwrites(trace, node):
                _replace(reader, node, found)
            reader.values[node] = found
    return builder, result


def _values(reader: FunctionReader, node: fx.Node) -> list[Value | list[Value | None]]:
    return [reader.values[x] for x in node.all_input_nodes if x in reader.values]


def _overwrites(trace: Trace, node: fx.Node) -> bool:
    if node.op == "call_module":
        return getattr(trace.modules[str(node.target)], "inplace", False) is True
    return is_in_place(node.target, node.args, node.kwargs)


def _replace(reader: FunctionReader, node: fx.Node, found: Any) -> None:
    """What was overwritten has the new value from then on, under all of its names."""
    first = node.args[0] if node.args else None
    old = reader.values.get(first) if isinstance(first, fx.Node) else None
    for other, value in reader.values.items():
        if value is old:
            reader.values[other] = found
