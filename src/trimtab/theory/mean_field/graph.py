"""The forward and backward recursions of order parameters, for any network without loops: a graph of operations.

Each operation maps the state of its inputs, (v, c) as in `positions`, to that of its output, and the order parameters
of the gradient at its output back to those at its inputs. Of the gradient, v and c are sums over channels, as q̃ is.
`from_model` builds such a graph from a module, `assemble` from a list of layer descriptions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.theory.mean_field.activations import Array
from trimtab.theory.mean_field.positions import Layout


@dataclass(frozen=True)
class State:
    """The order parameters of a feature map.

    Attributes:
        layout: Its positions.
        v: q or q̂: for one sample at one position.
        c: q_xy and q_αβ,xy, or q̂'s: for two samples at two positions.
        mean: The mean over units: 0 after weights of mean 0, not after an activation. v and c are not about it.
        spread: How much that mean varies from position to position, as a mean square: where positions have been units
            of a layer, each has a bias of its own.
    """

    layout: Layout
    v: Array
    c: Array
    mean: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class Gradient:
    """The order parameters of the gradient of one output with respect to a feature map; sums over channels.

    Attributes:
        v: q̃: for one sample at one position.
        c: q̃_xy and q̃_αβ,xy.
        radial: Computes the same two for the gradient times the feature itself, where the next operation knows them
            better than by taking both for independent; a γ alone needs them.
    """

    v: Array
    c: Array
    radial: Callable[[], tuple[Array, Array]] | None = None

    def __add__(self, other: "Gradient") -> "Gradient":
        """The gradient where a value is used twice; the weights of both uses are independent."""
        return Gradient(self.v + other.v, self.c + other.c)


@dataclass(frozen=True)
class Term:
    """The contribution of one parameter to λ_max.

    Attributes:
        layer: The layer's name.
        parameter: `weight`, `bias`, `gamma` or `beta`.
        value: Its mean over pairs of different samples: f_l (eq. 155).
        diagonal: Its mean over single samples: its contribution to the upper bound (eq. 147).
    """

    layer: str
    parameter: str
    value: float
    diagonal: float


class Operation(Protocol):
    """What a node computes."""

    def forward(self, *inputs: State) -> State:
        """The state of the output."""
        ...

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> Sequence[Gradient]:
        """The gradient at each input."""
        ...

    def terms(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Term]:
        """The contributions of its parameters to λ_max."""
        ...


class Parameterless:
    """An operation that has no parameters."""

    def terms(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Term]:
        """None."""
        return []


@dataclass(frozen=True)
class Node:
    """An operation and the indices of its input nodes; -1 is the input of the network."""

    operation: Operation
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Flow:
    """The result of `propagate`.

    Attributes:
        states: Of each node.
        gradients: At each node; None if the output does not depend on it.
        own_terms: What the parameters of each node add.
        sources: For each node, the nodes that its gradient comes from, with what comes from each.
    """

    states: list[State]
    gradients: list[Gradient | None]
    own_terms: list[list[Term]]
    sources: list[list[tuple[int, Gradient]]]

    @property
    def terms(self) -> list[Term]:
        """All terms in forward order."""
        return [term for terms in self.own_terms for term in terms]


def forward(nodes: Sequence[Node], start: State) -> list[State]:
    """The states of all nodes. Nodes come after their inputs."""
    states: list[State] = []
    for node in nodes:
        states.append(node.operation.forward(*(start if i < 0 else states[i] for i in node.inputs)))
    return states


def propagate(nodes: Sequence[Node], start: State) -> Flow:
    """Forward, then back from the last node, one of whose outputs has q̃ = q̃_xy = 1 (eq. 64).

    Where the output is a feature map, that is one position, and the result is the mean over which one it is.
    """
    states = forward(nodes, start)
    gradients: list[Gradient | None] = [None] * len(nodes)
    last = states[-1].layout
    gradients[-1] = Gradient(*last.fill(1 / last.count, 1 / last.count, 0.0))
    found: list[list[Term]] = [[] for _ in nodes]
    sources: list[list[tuple[int, Gradient]]] = [[] for _ in nodes]
    for number in reversed(range(len(nodes))):
        gradient, node = gradients[number], nodes[number]
        if gradient is None:
            continue
        inputs = [start if i < 0 else states[i] for i in node.inputs]
        found[number] = node.operation.terms(gradient, inputs, states[number])
        for i, below in zip(node.inputs, node.operation.backward(gradient, inputs, states[number]), strict=True):
            if i >= 0:
                before = gradients[i]
                gradients[i] = below if before is None else before + below
                sources[i].append((number, below))
    return Flow(states, gradients, found, sources)
