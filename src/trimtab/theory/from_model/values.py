"""What is known of a traced tensor: the nodes that its channels come from, and a function of each entry."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.theory.mean_field.activations import Activation, Array, LeakyReLU, Quadrature

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Elementwise:
    """A function of each entry.

    Attributes:
        call: The function; it does not change its argument.
        line: (a, b) if it is x ↦ ax + b.
        known: The activation, if its expectations are known in closed form.
    """

    call: Function
    line: tuple[float, float] | None = None
    known: Activation | None = None

    def activation(self) -> Activation:
        """The function as mean field needs it."""
        if self.known is not None:
            return self.known

        def function(x: Array) -> Array:
            with torch.no_grad():
                return np.asarray(self.call(torch.from_numpy(np.array(x, dtype=float))).numpy())

        def derivative(x: Array) -> Array:
            with torch.enable_grad():
                point = torch.from_numpy(np.array(x, dtype=float)).requires_grad_()
                y = self.call(point)
                if not y.requires_grad:  # rounding, say
                    return np.zeros_like(x)
                (slope,) = torch.autograd.grad(y.sum(), point)
            return np.asarray(slope.numpy())

        return Quadrature(function, derivative)

    def is_finite(self) -> bool:
        """Whether its values and slopes are numbers wherever a Gaussian of some width may be."""
        x = np.linspace(-8, 8, 200)
        phi = self.activation()
        return bool(np.isfinite(phi.phi(x)).all() and np.isfinite(phi.prime(x)).all())


IDENTITY = Elementwise(lambda x: x, (1.0, 0.0), LeakyReLU(1.0))


@dataclass(frozen=True)
class Part:
    """Some channels of a value: a function of the channels of a node.

    Attributes:
        root: The node's number; −1 is the input.
        start: The first of the node's channels.
        channels: How many.
        function: Applied to each entry.
    """

    root: int
    start: int
    channels: int
    function: Elementwise = IDENTITY

    def then(self, function: Elementwise) -> "Part":
        """The same with another function applied to the result."""
        first = self.function
        if first is IDENTITY:
            return replace(self, function=function)
        line = None
        if first.line is not None and function.line is not None:
            line = function.line[0] * first.line[0], function.line[0] * first.line[1] + function.line[1]
        return replace(self, function=Elementwise(lambda x: function.call(first.call(x)), line))

    def with_other(self, other: "Part", operation: Callable[[Any, Any], Any]) -> "Part":
        """An operation on the same entries of two functions of the same channels."""
        one, two = self.function, other.function
        return replace(self, function=Elementwise(lambda x: operation(one.call(x), two.call(x.clone()))))

    def is_same(self, other: "Part") -> bool:
        """Whether both are of the same channels of the same node."""
        return (self.root, self.start, self.channels) == (other.root, other.start, other.channels)


@dataclass(frozen=True, eq=False)
class Value:
    """A traced tensor.

    Attributes:
        parts: Its channels, in order.
        shape: Of the tensor.
        roles: A letter for each dimension, see `axes`.
    """

    parts: tuple[Part, ...]
    shape: tuple[int, ...]
    roles: str

    def then(self, function: Elementwise) -> "Value":
        """The same with a function applied to each entry."""
        return replace(self, parts=tuple(part.then(function) for part in self.parts))

    def cut(self, start: int, count: int, shape: tuple[int, ...], roles: str) -> "Value":
        """Some of its channels, as a tensor of that shape."""
        found, place = [], 0
        for part in self.parts:
            first, last = max(start, place), min(start + count, place + part.channels)
            if first < last:
                found.append(replace(part, start=part.start + first - place, channels=last - first))
            place += part.channels
        return Value(tuple(found), shape, roles)
