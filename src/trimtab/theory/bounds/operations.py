"""What a step costs: BNP's and BatchNorm's operations, counted while they are made (bnp Prop. 6 and after it).

The papers' algorithms are run as they are printed, on arrays that count what is done with them.
"""

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike

from trimtab.theory.bounds.sides import Array, Form, Sides, check_form
from trimtab.theory.checks import whole

ARITHMETIC = frozenset({np.add, np.subtract, np.multiply, np.divide, np.sqrt})
FREE = frozenset({np.maximum})
"""Comparisons, which the paper does not count."""
LARGEST = 1 << 25
"""Entries of an array: a few arrays of this size are 1 GB."""


class Counter:
    """Counts operations on single numbers.

    Attributes:
        made: How many there were.
    """

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, value: ArrayLike) -> "Counted":
        """An array with which all operations are counted here."""
        return Counted(np.asarray(value, dtype=np.float64), self)


class Counted(NDArrayOperatorsMixin):
    """An array that counts the arithmetic done with it; other functions of numpy are refused.

    Attributes:
        value: The array.
        counter: Where it counts.
    """

    def __init__(self, value: Array, counter: Counter) -> None:
        self.value, self.counter = value, counter

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> "Counted":
        """One operation for each entry of the result, and N − 1 for a sum of N terms."""
        values = [one.value if isinstance(one, Counted) else np.asarray(one) for one in inputs]
        if ufunc not in ARITHMETIC | FREE or method not in ("__call__", "reduce") or "out" in options:
            raise TypeError(f"Operations of {ufunc.__name__} ({method}) are not counted.")
        result = np.asarray(getattr(ufunc, method)(*values, **options))
        if ufunc in ARITHMETIC:
            self.counter.made += result.size if method == "__call__" else values[0].size - result.size
        return Counted(result, self.counter)

    def sum(self, axis: int) -> "Counted":
        """Along a dimension, which stays with size 1."""
        result: Counted = np.add.reduce(self, axis=axis, keepdims=True)  # type: ignore[call-overload]
        return result


def bnp_operations(n_in: int, n_out: int, batch: int, *, form: Form = "corrected") -> Sides:
    """Floating point operations of one step of BNP on a dense layer, counted, and in sum (bnp Prop. 6).

    Left: Algorithm 2 is run for such a layer, and its operations are counted. Right, as printed:
    4nN + 6nn′ + 2n′ + 8n. The count has n′ for 2n′ (a sum of n terms has n − 1 additions, as in 4nN) and four
    operations on single numbers more (1 − ρ, ε₁ max σ², q², 1/q²). Comparisons are not counted.

    Args:
        n_in: n, the layer's inputs.
        n_out: n′, its outputs.
        batch: N.
        form: The sum as it comes out or as printed.

    Raises:
        ValueError: If a size is no whole number above 0, or if arrays of these sizes are too large to be computed with.
    """
    check_form(form)
    n_in, n_out, batch = whole(n_in, "n_in"), whole(n_out, "n_out"), whole(batch, "batch")
    _check_size(n_in * max(n_out, batch), "n_in times n_out or batch")
    rng, counter = np.random.default_rng(0), Counter()
    bnp_step(counter, rng.normal(size=(batch, n_in)), rng.normal(size=(n_out, n_in)), rng.normal(size=n_out))
    smaller = n_out + 4 if form == "corrected" else 2 * n_out
    return Sides(float(counter.made), float(4 * n_in * batch + 6 * n_in * n_out + smaller + 8 * n_in), "==")


def bn_operations(n_in: int, batch: int, *, form: Form = "corrected") -> Sides:
    """Floating point operations of a BatchNorm layer, both ways, counted, and in sum (bnp Sec. 3.3).

    Left: eq. 2 with the running averages and the gradient in closed form (landscape Fact C.1) are run, and their
    operations are counted. Right, as printed: 32nN + 4n, of which the backward pass has 24nN − 3n. Counted, the
    backward pass has 7nN + n, the forward pass the printed 8nN + 7n and one operation on single numbers (1 − ρ), in sum
    15nN + 8n + 1. BNP is then cheaper than BN for 11N > 6n′, not already for 28N > 6n′.

    Args:
        n_in: n, the layer's features.
        batch: N.
        form: The sum with the closed form or as printed.

    Raises:
        ValueError: If a size is no whole number above 0, or if arrays of these sizes are too large to be computed with.
    """
    check_form(form)
    n_in, batch = whole(n_in, "n_in"), whole(batch, "batch")
    _check_size(n_in * batch, "n_in times batch")
    rng, counter = np.random.default_rng(0), Counter()
    inputs, slopes = rng.normal(size=(2, batch, n_in))
    with np.errstate(invalid="ignore"):  # of one sample σ is 0: what comes out is no number, and counted all the same
        bn_step(counter, inputs, slopes, rng.normal(size=n_in), rng.normal(size=n_in))
    right = 15 * n_in * batch + 8 * n_in + 1 if form == "corrected" else 32 * n_in * batch + 4 * n_in
    return Sides(float(counter.made), float(right), "==")


def cheaper_than_bn(n_out: int, batch: int, *, positions: int = 1, sites: int = 1, form: Form = "corrected") -> Sides:
    """6n′ ≤ 11N, or 28N as printed: for such a layer BNP takes fewer operations than BN (bnp, after Prop. 6).

    To first order: terms without a product of two sizes are left out, as in the paper. A convolution with k² sites,
    on maps of r·s positions, has k²n rows of weights and Nrs of statistics: 6k²n′ ≤ 11Nrs.

    Args:
        n_out: n′, the layer's outputs or output channels.
        batch: N.
        positions: r·s of a convolution's input.
        sites: k² of its kernel.
        form: BN's backward pass as counted in `bn_operations`, or as printed.

    Raises:
        ValueError: If a size is no whole number above 0.
    """
    check_form(form)
    rows = whole(batch, "batch") * whole(positions, "positions")
    left = 6 * whole(n_out, "n_out") * whole(sites, "sites")
    return Sides(float(left), float((11 if form == "corrected" else 28) * rows))


def bnp_step(
    counter: Counter,
    inputs: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike,
    *,
    rho: float = 0.99,
    eps1: float = 1e-2,
    eps2: float = 1e-4,
) -> tuple[Array, Array]:
    """The first step of Algorithm 2, as printed.

    Args:
        counter: Counts the operations.
        inputs: H, (N, n).
        weight: The gradient of the weight, (n′, n).
        bias: The gradient of the bias, (n′,).
        rho: ρ.
        eps1: ε₁.
        eps2: ε₂.

    Returns:
        The new gradients of weight and bias.
    """
    rows, slopes = counter(inputs), counter(weight)
    offsets = counter(np.asarray(bias)[:, None])
    samples, width = rows.value.shape
    batch_mean, batch_variance = _moments(rows)
    mean, variance = _averages(counter, batch_mean, batch_variance, rho)
    scale = variance + counter(eps1) * np.maximum.reduce(variance, axis=None) + eps2  # type: ignore[call-overload]
    inverse = 1.0 / np.maximum(counter(width) / float(samples), 1.0)
    new = inverse * ((slopes - mean * offsets) / scale)
    shifted = inverse * offsets - (new * mean).sum(1)
    return new.value, shifted.value[:, 0]


def bn_step(
    counter: Counter, inputs: ArrayLike, slopes: ArrayLike, gamma: ArrayLike, beta: ArrayLike, *, rho: float = 0.99
) -> tuple[Array, Array, Array, Array]:
    """BatchNorm forwards by eq. 2, with its running averages, and backwards by Fact C.1.

    Args:
        counter: Counts the operations.
        inputs: H, (N, n).
        slopes: ∂L/∂(output), (N, n).
        gamma: γ.
        beta: β.
        rho: ρ of the running averages.

    Returns:
        The output, and the gradients of H, γ and β.
    """
    rows, upstream, factors, shifts = counter(inputs), counter(slopes), counter(gamma), counter(beta)
    samples = float(len(rows.value))
    mean, variance = _moments(rows)
    _averages(counter, mean, variance, rho)
    sigma = np.sqrt(variance)
    standard = (rows - mean) / sigma
    output = standard * factors + shifts
    for_beta, for_gamma = upstream.sum(0), (upstream * standard).sum(0)
    along = standard * (for_gamma / samples)
    back = (factors / sigma) * (upstream - for_beta / samples - along)
    return output.value, back.value, for_gamma.value[0], for_beta.value[0]


def _moments(rows: Counted) -> tuple[Counted, Counted]:
    """Mean and biased variance of each column."""
    samples = float(len(rows.value))
    mean = rows.sum(0) / samples
    away = rows - mean
    return mean, (away * away).sum(0) / samples


def _averages(counter: Counter, mean: Counted, variance: Counted, rho: float) -> tuple[Counted, Counted]:
    """The running averages after the first step, from 0 and 1."""
    old, new = counter(rho), 1.0 - counter(rho)
    start = counter(np.zeros_like(mean.value)), counter(np.ones_like(mean.value))
    return old * start[0] + new * mean, old * start[1] + new * variance


def _check_size(entries: int, what: str) -> None:
    if entries > LARGEST:
        raise ValueError(f"{what} must be at most {LARGEST}, not {entries}: the operations are counted by making them.")
