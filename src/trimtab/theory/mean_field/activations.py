"""Activation functions for mean field: expectations over two correlated Gaussian preactivations.

For preactivations (a, b) ~ N(0, [[v₁, c], [c, v₂]]) an activation φ gives three numbers:

- `value`: E φ(a)φ(b), which turns q into q̂ (meanfield, eqs. 85, 89, 94);
- `slope`: E φ′(a)φ′(b), which carries q̃ back (eqs. 68, 112, 139);
- `gain`: E aφ′(a)·bφ′(b), for the gradient with respect to a γ before the activation (the third term of eq. 157).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr

from trimtab.theory.checks import finite

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

NODES = 48
NARROW = 1.5  # variances up to which so many Gauss–Hermite nodes see a smooth activation to 1e-6
STEPS = 200
MOST_STEPS = 4000
REACH = 8.0  # deviations on each side
FINEST = 0.5  # the longest step in units of the preactivation, in which activations bend at distances of about 1
CHUNK = 1 << 22  # values of a function held in memory at a time
WORK = 1 << 26  # values of a function, above which a series is faster than quadrature in two dimensions
DEGREE = 150
ROWS = 16
MOST_CODES = 1 << 26  # combinations of values that are told apart


@runtime_checkable
class Activation(Protocol):
    """An activation function as the recursions need it. The three expectations broadcast."""

    def phi(self, x: Array) -> Array:
        """φ itself."""
        ...

    def prime(self, x: Array) -> Array:
        """φ′."""
        ...

    def value(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """E φ(a)φ(b)."""
        ...

    def slope(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """E φ′(a)φ′(b)."""
        ...

    def gain(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """E aφ′(a)·bφ′(b)."""
        ...


@dataclass(frozen=True)
class LeakyReLU:
    """max(x, 0) + a·min(x, 0), in closed form; a = 0 is ReLU, a = 1 the identity.

    Args:
        negative_slope: The slope a on the negative side.
    """

    negative_slope: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a slope that is not a finite number."""
        finite(self.negative_slope, "negative_slope")

    def phi(self, x: Array) -> Array:
        """φ itself."""
        return np.where(x > 0, x, self.negative_slope * x)

    def prime(self, x: Array) -> Array:
        """φ′."""
        return np.where(x > 0, 1.0, self.negative_slope)

    def value(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """(1 + a²) times eq. 129, plus 2a times its mirror image; φ(x) = relu(x) − a·relu(−x)."""
        c = np.asarray(c, dtype=float)
        scale, rho = _correlation(v1, v2, c)
        root = np.sqrt(1 - rho**2)
        same = scale / (2 * np.pi) * (root + rho * (np.pi / 2 + np.arcsin(rho)))
        opposite = same - c / 2  # E relu(a)·relu(−b): the same with −ρ, negated where linear
        a = self.negative_slope
        return np.asarray((1 + a * a) * same - 2 * a * opposite)

    def slope(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """(1 + a²) P(a, b > 0) + 2a P(a > 0 > b), with P(a, b > 0) = (π/2 + asin ρ)/(2π) as in eq. 22."""
        _, rho = _correlation(v1, v2, np.asarray(c, dtype=float))
        both = 0.25 + np.arcsin(rho) / (2 * np.pi)
        a = self.negative_slope
        return np.asarray((1 + a * a) * both + 2 * a * (0.5 - both))

    def gain(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """The value: aφ′(a) = φ(a)."""
        return self.value(v1, v2, c)


@dataclass(frozen=True)
class Erf:
    """erf(x/√2), in closed form (Williams, 1997)."""

    def phi(self, x: Array) -> Array:
        """φ itself."""
        return np.asarray(2 * ndtr(x) - 1)

    def prime(self, x: Array) -> Array:
        """φ′."""
        return 2 * normal_density(x)

    def value(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """2/π asin(c/√((1 + v₁)(1 + v₂)))."""
        a, b, c = (np.asarray(x, dtype=float) for x in (v1, v2, c))
        return np.asarray(2 / np.pi * np.arcsin(c / np.sqrt((1 + a) * (1 + b))))

    def slope(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """2/π / √((1 + v₁)(1 + v₂) − c²), since φ′(x) = √(2/π) exp(−x²/2)."""
        a, b, c = (np.asarray(x, dtype=float) for x in (v1, v2, c))
        return np.asarray(2 / np.pi / np.sqrt((1 + a) * (1 + b) - c**2))

    def gain(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """2/π c/((1 + v₁)(1 + v₂) − c²)^(3/2): the slope times the covariance under the narrowed Gaussian."""
        a, b, c = (np.asarray(x, dtype=float) for x in (v1, v2, c))
        return np.asarray(2 / np.pi * c / ((1 + a) * (1 + b) - c**2) ** 1.5)


@dataclass(frozen=True)
class Quadrature:
    """Any activation, by quadrature.

    Args:
        function: φ on arrays.
        derivative: φ′ on arrays; None: central differences.
        smooth: Whether φ has no kink. Then a few Gauss–Hermite nodes are enough, as long as preactivations are narrow.
            For wide ones, and where φ′ jumps (nodes are off by the weight of one, up to a tenth), many equal steps are
            taken instead, the more the wider.
    """

    function: Function
    derivative: Function | None = None
    smooth: bool = False

    def phi(self, x: Array) -> Array:
        """φ itself."""
        return self.function(x)

    def prime(self, x: Array) -> Array:
        """φ′."""
        if self.derivative is not None:
            return self.derivative(x)
        step = 1e-5
        return (self.function(x + step) - self.function(x - step)) / (2 * step)

    def value(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """E φ(a)φ(b)."""
        return self._expect(self.function, v1, v2, c)

    def slope(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """E φ′(a)φ′(b)."""
        return self._expect(self.prime, v1, v2, c)

    def gain(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """E aφ′(a)·bφ′(b)."""
        return self._expect(lambda a: a * self.prime(a), v1, v2, c)

    def _expect(self, function: Function, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        """E g(a)g(b), computed once for each different (v₁, v₂, c): most positions of an image share theirs."""
        arrays = [np.asarray(x, dtype=float) for x in (v1, v2, c)]
        widest = max(float(variance.max(initial=0.0)) for variance in arrays[:2])
        x, w = gauss_hermite(NODES) if self.smooth and widest <= NARROW else equal_steps(_enough(widest))
        weights = w[:, None] * w[None, :]
        which = _different(arrays, WORK // weights.size)
        if which is None:
            return _by_hermite_series(function, v1, v2, arrays[2])
        at = np.zeros(which.max(initial=-1) + 1, dtype=np.intp)  # of each of them one place
        at[which.ravel()] = np.arange(which.size)
        each = np.stack([np.broadcast_to(x, which.shape).ravel()[at] for x in arrays], axis=1)
        rows = max(1, CHUNK // weights.size)
        parts = []
        for start in range(0, len(each), rows):
            a2, b2, ab = each[start : start + rows].T[:, :, None, None]
            _, rho = _correlation(a2, b2, ab)
            first = function(np.sqrt(a2) * x[None, :, None])
            mixed = rho * x[None, :, None] + np.sqrt(1 - rho**2) * x[None, None, :]
            parts.append((weights * first * function(np.sqrt(b2) * mixed)).sum((1, 2)))
        return np.asarray(np.concatenate(parts)[which])


def _different(arrays: Sequence[Array], most: int) -> NDArray[np.intp] | None:
    """For each place of the arrays, broadcast, the number of the combination of values there; None if more than `most`.

    Values are compared up to 1e-9 of the largest. Each array is sorted before it is broadcast, since most are small.
    """
    scale = max(max(float(np.abs(x).max(initial=0.0)) for x in arrays), 1e-300)
    codes, count = np.zeros((), dtype=np.int64), 1
    for x in arrays:
        rounded = np.round(x / scale, 9)
        values = np.unique(rounded)
        count *= len(values)
        if len(values) > most or count > MOST_CODES:
            return None
        codes = codes * len(values) + np.searchsorted(values, rounded)
    is_there = np.bincount(codes.ravel(), minlength=count) > 0
    if int(is_there.sum()) > most:
        return None
    return (np.cumsum(is_there) - 1)[codes]


def _enough(variance: float) -> int:
    """The number of steps that preactivations of that variance need; it is even."""
    if not np.isfinite(variance):  # whoever gave such numbers is told elsewhere
        return STEPS
    return 2 * int(np.clip(np.ceil(REACH * np.sqrt(variance) / FINEST), STEPS // 2, MOST_STEPS // 2))


@cache
def equal_steps(steps: int) -> tuple[Array, Array]:
    """Nodes and weights with equal steps from −8 to 8. Their number is even, so that none is at 0, where kinks are."""
    x = np.linspace(-REACH, REACH, steps)
    w = normal_density(x)
    return x, w / w.sum()


def _by_hermite_series(function: Function, v1: ArrayLike, v2: ArrayLike, c: Array) -> Array:
    """E g(a)g(b) = Σ_k ρᵏ g_k(v₁) g_k(v₂), g_k(v) being the coefficients of g(√v t) in Hermite polynomials (Mehler)."""
    t, weights = equal_steps(max(2 * STEPS, _enough(float(np.max(v1)))))
    basis = [np.ones_like(t), t]
    for k in range(1, DEGREE - 1):
        basis.append((t * basis[-1] - np.sqrt(k) * basis[-2]) / np.sqrt(k + 1))

    def coefficients(v: ArrayLike) -> Array:
        each, inverse = np.unique(np.asarray(v, dtype=float), return_inverse=True)
        table = (weights * np.stack(basis)) @ function(np.sqrt(each)[:, None] * t).T
        missing = (1,) * (rho.ndim - np.ndim(v))
        found = table[:, inverse.ravel()].reshape(DEGREE, *missing, *np.shape(v))
        return found if len(each) > 1 else table.reshape(DEGREE, *[1] * rho.ndim)

    _, rho = _correlation(v1, v2, c)
    first, second = coefficients(v1), coefficients(v2)  # no larger than the variances
    total = np.zeros_like(rho)
    if not rho.ndim:
        return np.asarray(np.polynomial.polynomial.polyval(rho, first * second))
    for begin in range(0, len(rho), ROWS):  # so few at a time that they stay in the processor's cache
        rows = slice(begin, begin + ROWS)
        part = total[rows]
        here, there = (each[:, rows] if each.shape[1] > 1 else each for each in (first, second))
        for k in reversed(range(DEGREE)):  # Horner's scheme
            part *= rho[rows]
            part += here[k] * there[k]
    return total


def _correlation(v1: ArrayLike, v2: ArrayLike, c: Array) -> tuple[Array, Array]:
    """√(v₁v₂) and the correlation c/√(v₁v₂), clipped to [−1, 1]; 0 where there is no variance."""
    scale = np.sqrt(np.asarray(v1, dtype=float) * np.asarray(v2, dtype=float))
    ratio = np.divide(c, scale, out=np.zeros(np.broadcast_shapes(c.shape, scale.shape)), where=scale > 0)
    return scale, np.clip(ratio, -1.0, 1.0)


@cache
def gauss_hermite(nodes: int) -> tuple[Array, Array]:
    """Nodes and weights for the expectation over a standard Gaussian."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return x, w / np.sqrt(2 * np.pi)


def expectation(function: Function, variance: Array) -> Array:
    """E f(a) for a ~ N(0, variance)."""
    x, w = equal_steps(max(2 * STEPS, _enough(float(np.max(variance, initial=0.0)))))
    return np.asarray(function(np.sqrt(variance)[..., None] * x) @ w)


def shifted(phi: Activation, mean: float) -> Activation:
    """The activation x ↦ φ(x + mean), by quadrature unless the mean is 0; its `gain` is with respect to x + mean."""
    if not mean:
        return phi
    return _Shifted(lambda x: phi.phi(x + mean), lambda x: phi.prime(x + mean), mean=mean)


@dataclass(frozen=True)
class _Shifted(Quadrature):
    mean: float = 0.0

    def gain(self, v1: ArrayLike, v2: ArrayLike, c: ArrayLike) -> Array:
        return self._expect(lambda x: (x + self.mean) * self.prime(x), v1, v2, c)


def normal_density(x: Array) -> Array:
    """The density of the standard Gaussian."""
    return np.asarray(np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


ACTIVATIONS: dict[str, Activation] = {
    "relu": LeakyReLU(0.0),
    "leaky_relu": LeakyReLU(),
    "linear": LeakyReLU(1.0),
    "erf": Erf(),
    "tanh": Quadrature(np.tanh, lambda x: 1 - np.tanh(x) ** 2, smooth=True),
    "sigmoid": Quadrature(expit, lambda x: expit(x) * (1 - expit(x)), smooth=True),
    "softplus": Quadrature(lambda x: np.logaddexp(0, x), expit, smooth=True),
    "silu": Quadrature(lambda x: x * expit(x), lambda x: expit(x) * (1 + x * (1 - expit(x))), smooth=True),
    "gelu": Quadrature(lambda x: x * ndtr(x), lambda x: ndtr(x) + x * normal_density(x), smooth=True),
}
"""The activations by name; any other is a `Quadrature`."""


def activation(which: "str | Activation | Callable[[Any], Any]") -> Activation:
    """An activation by name, as it is, or made of a function on arrays.

    Raises:
        ValueError: If there is none of that name.
    """
    if isinstance(which, str):
        if which not in ACTIVATIONS:
            raise ValueError(f"activation has no {which!r}; known are {', '.join(ACTIVATIONS)}, or give a function.")
        return ACTIVATIONS[which]
    if isinstance(which, Activation):
        return which
    if callable(which):
        return Quadrature(which)
    raise ValueError(f"activation must be a name, a function or an Activation, not {which!r}.")
