"""Operations that join a value with others or with constants, or arrange it anew."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.theory.mean_field.activations import Array
from trimtab.theory.mean_field.graph import Gradient, Parameterless, State, Term
from trimtab.theory.mean_field.positions import Grid, Layout


@dataclass(frozen=True)
class Concatenate(Parameterless):
    """Channels beside each other, for weights of the same variance for all of them.

    Attributes:
        channels: Of each input.
    """

    channels: tuple[int, ...]

    def forward(self, *inputs: State) -> State:
        """Means over all channels."""
        v, c, mean, spread = (
            sum(share * getattr(x, name) for share, x in zip(self._shares, inputs, strict=True))
            for name in ("v", "c", "mean", "spread")
        )
        return State(inputs[0].layout, v, c, mean, spread)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """Sums over channels: each input has its share of them."""
        return [Gradient(share * gradient.v, share * gradient.c) for share in self._shares]

    @property
    def _shares(self) -> list[float]:
        return [n / sum(self.channels) for n in self.channels]


@dataclass(frozen=True)
class Scale:
    """A factor for each channel, or one for all; and a number that is added.

    Attributes:
        name: The name of the factor, if it is a parameter.
        mean: The factor's mean.
        square: Its mean square.
        offset: Added after it.
        trained: Whether it is trained.
    """

    name: str
    mean: float
    square: float
    offset: float = 0.0
    trained: bool = False

    def forward(self, *inputs: State) -> State:
        """The mean square times v and c."""
        (h,) = inputs
        mean = self.mean * h.mean
        more = self.offset**2 + 2 * self.offset * mean
        v, c = self.square * h.v + more, self.square * h.c + more
        return State(h.layout, v, c, mean + self.offset, self.mean**2 * h.spread)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """The same factor."""
        return [Gradient(self.square * gradient.v, self.square * gradient.c)]

    def terms(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Term]:
        """As for a γ, the third term of eq. 157."""
        if not self.trained:
            return []
        if gradient.radial is None or not self.square or self.offset:
            sums = output.layout.dot((gradient.v, gradient.c), (inputs[0].v, inputs[0].c))
        else:
            pair, single = output.layout.dot(gradient.radial(), output.layout.fill(1.0, 1.0, 1.0))
            sums = pair / self.square, single / self.square
        return [Term(self.name, "gamma", *sums)]


@dataclass(frozen=True, eq=False)
class Offset:
    """A constant or a parameter that is added: one number for each channel, and maybe for each position.

    Attributes:
        name: Its name.
        values: (channels, positions), with one column if all positions have the same.
        trained: Whether it is a parameter that is trained.
    """

    name: str
    values: Array
    trained: bool = False

    def forward(self, *inputs: State) -> State:
        """Its moments are added: it is the same for all samples."""
        (h,) = inputs
        mean = float(self.values.mean())
        v, c = self._moments(h.layout)
        more = 2 * mean * h.mean
        return replace(h, v=h.v + v + more, c=h.c + c + more, mean=h.mean + mean)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """Unchanged."""
        return [Gradient(gradient.v, gradient.c)]

    def terms(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Term]:
        """Σ q̃ over pairs of positions; over equal ones if each position has its own."""
        if not self.trained:
            return []
        together = 1.0 if self.values.shape[1] == 1 else 0.0
        sums = output.layout.dot((gradient.v, gradient.c), output.layout.fill(1.0, 1.0, together))
        return [Term(self.name, "bias", *sums)]

    def _moments(self, layout: Layout) -> tuple[Array, Array]:
        square = float(np.square(self.values).mean())
        positions = self.values.shape[1]
        if positions == 1:
            return layout.fill(square, square, square)
        if isinstance(layout, Grid):
            c = self.values.T @ self.values / len(self.values)
            return np.diag(c).reshape(layout.size), c.reshape(layout.size * 2)
        pairs = float(np.square(self.values.sum(1)).mean())
        return layout.fill(square, square, (pairs - positions * square) / (positions * (positions - 1)))


@dataclass(frozen=True)
class Reshape(Parameterless):
    """Another height and width for the same positions, or another number of them; also new channels that are zero.

    Attributes:
        size: Height and width of the output.
        share: The share of channels that are not zero.
    """

    size: tuple[int, int]
    share: float = 1.0

    def forward(self, *inputs: State) -> State:
        """Means over positions, unless their number stays."""
        (h,) = inputs
        layout = h.layout.at(self.size)
        if layout.count == h.layout.count:
            v, c = h.layout.renamed(self.share * h.v, self.share * h.c, layout)
            return State(layout, v, c, self.share * h.mean, self.share * h.spread)
        same, other = h.layout.mean(h.layout.same(h.c)), h.layout.mean_other(h.c)
        v, c = layout.fill(h.layout.mean(h.v), same, other)
        return State(layout, v, c, h.mean)

    def backward(self, gradient: Gradient, inputs: Sequence[State], output: State) -> list[Gradient]:
        """Sums over positions are kept."""
        here, there = inputs[0].layout, output.layout
        if there.count == here.count:
            return [Gradient(*there.renamed(self.share * gradient.v, self.share * gradient.c, here))]
        ratio = there.count / here.count
        v, same = there.mean(gradient.v) * ratio, there.mean(there.same(gradient.c)) * ratio
        pairs = there.count * (there.count - 1) / max(here.count * (here.count - 1), 1)
        return [Gradient(*here.fill(v, same, there.mean_other(gradient.c) * pairs))]
