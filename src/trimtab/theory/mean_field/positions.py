"""Order parameters at the positions of a feature map, and how convolutions and poolings change them.

A layer's state is a pair (v, c): `v` belongs to one sample at one position, `c` to two different samples at two
positions, the same or not. In `Uniform` all positions are alike: v is a number, and c is two, [at equal positions,
mean over different ones], as in the paper (q, q_xy and q_αβ,xy). In `Grid` v has an entry for each position and c one
for each pair of them, which zero padding needs: a position at the border sees fewer inputs than others.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trimtab.theory.mean_field.activations import Array

Sites = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Kernel, stride, padding and dilation of a convolution or pooling, each in height and width.

    Attributes:
        kernel: Sites, in height and width.
        stride: Steps.
        padding: Rows and columns of zeros on each side.
        dilation: Distance of two sites.
    """

    kernel: Sites
    stride: Sites = (1, 1)
    padding: Sites = (0, 0)
    dilation: Sites = (1, 1)

    @property
    def sites(self) -> int:
        """|F|, the number of kernel sites."""
        return prod(self.kernel)

    def output(self, size: Sites) -> Sites:
        """Height and width of the output; 0 or less where the kernel does not fit."""
        rows, columns = (
            (size[i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1) // self.stride[i] + 1
            for i in (0, 1)
        )
        return rows, columns


@dataclass(frozen=True)
class _Layout:
    """Positions of some height and width."""

    size: Sites

    @property
    def count(self) -> int:
        """|K|, the number of positions."""
        return prod(self.size)

    def at(self, size: Sites) -> Self:
        """The same kind of layout for another size."""
        return type(self)(size)


@dataclass(frozen=True)
class Uniform(_Layout):
    """All positions alike; exact without padding, whatever the stride and the overlap of windows.

    Attributes:
        size: Height and width.
    """

    def fill(self, v: float, same: float, other: float) -> tuple[Array, Array]:
        """A number, and two."""
        return np.array(v, dtype=float), np.array([same, other], dtype=float)

    def variances(self, v: Array) -> tuple[Array, Array]:
        """The same at both."""
        return v, v

    def mean(self, v: Array) -> float:
        """The number itself."""
        return float(v)

    def same(self, c: Array) -> Array:
        """The first of the two."""
        return np.asarray(c[0])

    def mean_pairs(self, c: Array) -> float:
        """One pair in |K| is of equal positions."""
        return float(c[0] + (self.count - 1) * c[1]) / self.count

    def mean_other(self, c: Array) -> float:
        """The second of the two."""
        return float(c[1]) if self.count > 1 else 0.0

    def row_means(self, c: Array) -> tuple[Array, Array]:
        """The mean over all pairs, for each position."""
        mean = self.mean_pairs(c)
        return np.array(mean), np.array(2 * mean)

    def renamed(self, v: Array, c: Array, other: "Layout") -> tuple[Array, Array]:
        """Unchanged in a layout of as many positions."""
        return v, c

    def patches(self, v: Array, c: Array, window: Window) -> tuple[Array, Array]:
        """Unchanged: each site of each window sees the same."""
        return v, c

    def spread(self, v: Array, c: Array, window: Window, above: "Layout") -> tuple[Array, Array]:
        """Sums over positions are kept, and so are sums over pairs of different ones."""
        return v * above.count / self.count, c * self._ratios(above)

    def pool(self, v: Array, c: Array, window: Window) -> tuple[Array, Array]:
        """Of the n² pairs of sites n are equal; another window's sites are other positions."""
        n = window.sites
        return (v + (n - 1) * c[1]) / n, np.array([(c[0] + (n - 1) * c[1]) / n, c[1]])

    def unpool(self, v: Array, c: Array, window: Window, above: "Layout") -> tuple[Array, Array]:
        """Each site gets 1/n of its window's gradient; what is left of the sum over pairs is of different sites."""
        n, here = window.sites, self.count
        ratio = above.count / (here * n)
        total = above.count * c[0] + above.count * (above.count - 1) * c[1]
        other = (total - here * ratio * c[0]) / (here * (here - 1)) if here > 1 else 0.0
        return v * ratio, np.array([c[0] * ratio, other])

    def dot(self, back: tuple[Array, Array], forward: tuple[Array, Array]) -> tuple[float, float]:
        """|K| equal pairs and |K|(|K| − 1) different ones (eq. 165, without the decoupling of eq. 166)."""
        n, b, f = self.count, back[1], forward[1]
        others = n * (n - 1) * float(b[1] * f[1])
        return n * float(b[0] * f[0]) + others, n * float(back[0] * forward[0]) + others

    def _ratios(self, above: "Layout") -> Array:
        here, there = self.count, above.count
        return np.array([there / here, there * (there - 1) / (here * (here - 1)) if here > 1 else 0.0])


@dataclass(frozen=True)
class Grid(_Layout):
    """Each position by itself: v has the shape of the image, c that shape twice.

    Attributes:
        size: Height and width.
    """

    @cached_property
    def _equal(self) -> tuple[NDArray[np.intp], ...]:
        rows, columns = np.indices(self.size)
        return rows, columns, rows, columns

    def fill(self, v: float, same: float, other: float) -> tuple[Array, Array]:
        """An image, and a value for each pair of positions."""
        c = np.full(self.size * 2, other, dtype=float)
        c[self._equal] = same
        return np.full(self.size, v, dtype=float), c

    def variances(self, v: Array) -> tuple[Array, Array]:
        """Along the first two axes, and along the last two."""
        return v[:, :, None, None], v[None, None]

    def mean(self, v: Array) -> float:
        """The mean of an image."""
        return float(v.mean())

    def same(self, c: Array) -> Array:
        """The diagonal, as an image."""
        return np.asarray(c[self._equal])

    def mean_pairs(self, c: Array) -> float:
        """The mean of all entries."""
        return float(c.mean())

    def mean_other(self, c: Array) -> float:
        """The mean of all entries off the diagonal."""
        n = self.count
        return float((c.sum() - self.same(c).sum()) / (n * (n - 1))) if n > 1 else 0.0

    def row_means(self, c: Array) -> tuple[Array, Array]:
        """The mean over the last two axes; and r_α + r_β."""
        row = c.mean((2, 3))
        return row, row[:, :, None, None] + row[None, None]

    def renamed(self, v: Array, c: Array, other: "Layout") -> tuple[Array, Array]:
        """The same numbers in a layout of as many positions."""
        return v.reshape(other.size), c.reshape(other.size * 2)

    def patches(self, v: Array, c: Array, window: Window) -> tuple[Array, Array]:
        """One shifted copy for each site of the kernel."""
        wide_v, wide_c = _padded(v, window.padding), _padded(c, window.padding)
        out = window.output(self.size)
        total_v, total_c = np.zeros(out), np.zeros(out * 2)
        for cut in cuts(window, out):
            total_v += wide_v[cut]
            total_c += wide_c[cut * 2]
        return total_v / window.sites, total_c / window.sites

    def spread(self, v: Array, c: Array, window: Window, above: "Layout") -> tuple[Array, Array]:
        """One shifted sum for each site of the kernel; what falls on the padding is lost."""
        wide_v = np.zeros(tuple(n + 2 * p for n, p in zip(self.size, window.padding, strict=True)))
        wide_c = np.zeros(wide_v.shape * 2)
        for cut in cuts(window, above.size):
            wide_v[cut] += v
            wide_c[cut * 2] += c
        inner = tuple(slice(p, p + n) for n, p in zip(self.size, window.padding, strict=True))
        return wide_v[inner] / window.sites, wide_c[inner * 2] / window.sites

    def pool(self, v: Array, c: Array, window: Window) -> tuple[Array, Array]:
        """P c Pᵀ with the matrix P of the means; for one sample the diagonal differs by v − c."""
        matrix = self._matrix(window)
        out = window.output(self.size)
        pooled = (matrix @ c.reshape(self.count, self.count) @ matrix.T).reshape(out * 2)
        excess = (matrix**2 @ (v - self.same(c)).ravel()).reshape(out)
        return self.at(out).same(pooled) + excess, pooled

    def unpool(self, v: Array, c: Array, window: Window, above: "Layout") -> tuple[Array, Array]:
        """Pᵀ c P."""
        matrix = self._matrix(window)
        back = (matrix.T @ c.reshape(above.count, above.count) @ matrix).reshape(self.size * 2)
        excess = ((matrix**2).T @ (v - above.same(c)).ravel()).reshape(self.size)
        return self.same(back) + excess, back

    def dot(self, back: tuple[Array, Array], forward: tuple[Array, Array]) -> tuple[float, float]:
        """Σ over all entries (eq. 165); for one sample the diagonal is that of v."""
        pairs = float(np.vdot(back[1], forward[1]))
        equal = float(np.vdot(self.same(back[1]), self.same(forward[1])))
        return pairs, pairs - equal + float(np.vdot(back[0], forward[0]))

    def _matrix(self, window: Window) -> Array:
        """The means over windows, as a matrix of outputs by inputs."""
        padded = tuple(n + 2 * p for n, p in zip(self.size, window.padding, strict=True))
        numbers = np.full(padded, -1)
        inner = tuple(slice(p, p + n) for n, p in zip(self.size, window.padding, strict=True))
        numbers[inner] = np.arange(self.count).reshape(self.size)
        out = window.output(self.size)
        matrix = np.zeros((prod(out), self.count + 1))
        for cut in cuts(window, out):
            matrix[np.arange(prod(out)), numbers[cut].ravel()] += 1 / window.sites
        return matrix[:, :-1]


Layout = Uniform | Grid


def _padded(x: Array, padding: Sites) -> Array:
    return np.pad(x, [(p, p) for p in padding * (x.ndim // 2)]) if any(padding) else x


def cuts(window: Window, out: Sites) -> list[tuple[slice, slice]]:
    """For each site of the kernel, the inputs that the outputs see there."""
    (rows, columns), (down, right), (dy, dx) = window.kernel, window.stride, window.dilation
    return [
        (slice(i * dy, i * dy + down * out[0], down), slice(j * dx, j * dx + right * out[1], right))
        for i in range(rows)
        for j in range(columns)
    ]
