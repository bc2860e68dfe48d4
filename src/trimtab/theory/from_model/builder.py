"""Puts mean-field operations together to a graph, and keeps what is to be said about it."""

from trimtab.theory.from_model.axes import channels, exchanged, same, sites
from trimtab.theory.from_model.values import IDENTITY, Part, Value
from trimtab.theory.mean_field.graph import Node, Operation
from trimtab.theory.mean_field.joining import Concatenate, Offset, Reshape, Scale
from trimtab.theory.mean_field.operations import Activate, Add, Affine, Flatten, Normalize
from trimtab.theory.mean_field.positions import Sites


class InputReadDifferentlyError(Exception):
    """A layer mixes other dimensions of the input than those taken for channels; `roles` are those it needs."""

    def __init__(self, roles: str) -> None:
        """Keep the letters of the dimensions."""
        super().__init__(roles)
        self.roles = roles


class GraphBuilder:
    """A graph of operations that grows.

    Attributes:
        nodes: The operations so far.
        padded: Whether something makes positions differ.
    """

    def __init__(self, shape: tuple[int, ...], roles: str) -> None:
        """Begin with an input.

        Args:
            shape: Of the input, with its samples.
            roles: A letter for each dimension, see `axes`.
        """
        self.nodes: list[Node] = []
        self.padded = False
        self.input = Value((Part(-1, 0, channels(shape, roles)),), shape, roles)
        self._sizes: dict[int, Sites] = {-1: sites(shape, roles)}
        self._above: dict[int, int] = {-1: 0}  # all nodes that a node depends on, and itself, as bits
        self._made: dict[object, int] = {}
        self._sentences: list[tuple[str, str]] = []  # for one name, and for several
        self._names: dict[tuple[str, str], list[str]] = {}

    def note(self, sentence: str) -> None:
        """Keep a sentence, unless it is there already."""
        self.note_of("", sentence, sentence)

    def note_of(self, name: str, singular: str, plural: str) -> None:
        """Keep that something is true of a layer; of several layers it is said once.

        Args:
            name: Of the layer.
            singular: What follows the name.
            plural: What follows "the first name and so many more".
        """
        names = self._names.setdefault((singular, plural), [])
        if not names:
            self._sentences.append((singular, plural))
        if name not in names:
            names.append(name)

    def note_dropping(self, name: str) -> None:
        """Keep that a layer is random in training."""
        self.note_of(
            name,
            " drops at random in training; it is taken as it is in evaluation.",
            " drop at random in training; they are taken as they are in evaluation.",
        )

    @property
    def unseen(self) -> list[str]:
        """A sentence for each property of the model that the graph does not have."""
        found = []
        for singular, plural in self._sentences:
            first, *others = self._names[singular, plural]
            found.append(f"{first} and {len(others)} more{plural}" if others else first + singular)
        return found

    def put(self, operation: Operation, inputs: tuple[int, ...], size: Sites) -> int:
        """Add an operation whose output has that height and width; returns its number."""
        self.nodes.append(Node(operation, inputs))
        number = len(self.nodes) - 1
        self._sizes[number] = size
        self._above[number] = 1 << number
        for i in inputs:
            self._above[number] |= self._above[i]
        return number

    def place(self, value: Value) -> int:
        """The node that has a value."""
        places = tuple(self.part(value, part) for part in value.parts)
        if len(places) == 1:
            return places[0]
        key = places, tuple(part.channels for part in value.parts)
        if key not in self._made:
            self._made[key] = self.put(Concatenate(key[1]), places, self._sizes[places[0]])
        return self._made[key]

    def part(self, value: Value, part: Part) -> int:
        """The node that has a part of a value, at positions of the value's height and width."""
        place = part.root
        if part.function is not IDENTITY:
            key: object = part.root, part.function
            if key not in self._made:
                if part.function.known is None and part.function.line is not None:
                    a, b = part.function.line
                    operation: Operation = Scale("", a, a * a, b)
                else:
                    operation = Activate(part.function.activation())
                    self._check_gaussian(part.root)
                self._made[key] = self.put(operation, (part.root,), self._sizes[part.root])
            place = self._made[key]
        size = sites(value.shape, value.roles)
        if self._sizes[place] == size:
            return place
        if (place, size) not in self._made:
            self._made[place, size] = self.put(Reshape(size), (place,), size)
        return self._made[place, size]

    def _check_gaussian(self, place: int) -> None:
        """Say so where an activation reads another one that was only normalized, or channels of different variances."""
        while place >= 0 and isinstance(operation := self.nodes[place].operation, Normalize | Scale | Offset | Reshape):
            place = self.nodes[place].inputs[0]
            below = self.nodes[place].operation if place >= 0 else None
            varied = isinstance(operation, Scale) and operation.square > 1.1 * operation.mean**2
            if not isinstance(operation, Reshape) and (varied or isinstance(below, Activate)):
                reason = "the channels differ in variance" if varied else "it was an activation before"
                rest = f"to an activation what is not Gaussian, since {reason}; it is taken for Gaussian."
                self.note_of(operation.name, f" gives {rest}", f" give {rest}")

    def read_as(self, value: Value, roles: str) -> int | None:
        """The node that has a value, for a layer with weights that mix certain dimensions.

        Args:
            value: The value.
            roles: What dimensions the layer takes for channels and positions.

        Returns:
            None if it has no such node.

        Raises:
            InputReadDifferentlyError: If it is the input, which can be read so from the start.
        """
        if same(value.shape, value.roles, roles):
            return self.place(value)
        if value is self.input:
            raise InputReadDifferentlyError(roles)
        if not exchanged(value.shape, value.roles, roles):
            return None
        size = sites(value.shape, roles)
        return self.put(Flatten(size), (self.place(value),), size)

    def value(self, place: int, channels: int, shape: tuple[int, ...], roles: str) -> Value:
        """All channels of a node, as a tensor."""
        return Value((Part(place, 0, channels),), shape, roles)

    def are_independent(self, one: int, other: int) -> bool:
        """Whether two nodes have nothing in common: each pair of layers they are computed by has weights of its own."""
        return all(
            a != b and (self._is_fresh(a, b) or self._is_fresh(b, a))
            for a in self._last_layers(one)
            for b in self._last_layers(other)
        )

    def _is_fresh(self, layer: int, other: int) -> bool:
        """Whether it is a layer whose weights the other does not depend on."""
        return layer >= 0 and not self._above[other] >> layer & 1

    def _last_layers(self, place: int) -> set[int]:
        """The layers with weights, or the input, that a node comes from without another such layer between."""
        if place < 0 or isinstance(self.nodes[place].operation, Affine):
            return {place}
        return set().union(*(self._last_layers(i) for i in self.nodes[place].inputs))

    def add(self, one: int, other: int) -> int:
        """The sum of two nodes."""
        return self.put(Add(), (one, other), self._sizes[one])

    def pruned(self, last: int) -> list[Node]:
        """The nodes that the last one depends on."""
        kept = [i for i in range(len(self.nodes)) if self._above[last] >> i & 1]
        number = {-1: -1, **{old: new for new, old in enumerate(kept)}}
        return [Node(self.nodes[i].operation, tuple(number[j] for j in self.nodes[i].inputs)) for i in kept]
