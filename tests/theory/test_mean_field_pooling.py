"""Max-pooling against channels drawn directly: their means, two samples about these, and the largest site."""

import numpy as np
import pytest

from trimtab.theory.mean_field.activations import ACTIVATIONS
from trimtab.theory.mean_field.graph import Gradient, State
from trimtab.theory.mean_field.pooling import ActivatedMaxPool
from trimtab.theory.mean_field.positions import Grid, Uniform, Window, cuts

Array = np.ndarray
WINDOWS = [Window((2, 2), (2, 2)), Window((3, 3), (2, 2), (1, 1)), Window((2, 2), (1, 1)), Window((2, 1), (2, 1))]


def drawn(c: Array, v: Array, mean: float, size: tuple[int, int], channels: int) -> list[Array]:
    """Two samples' preactivations, (channels, height, width)."""
    rng = np.random.default_rng(1)
    mu = rng.multivariate_normal(np.full(len(c), mean), c, channels, method="eigh")
    own = np.sqrt(v - np.diag(c))
    return [(mu + own * rng.standard_normal(mu.shape)).reshape(-1, *size) for _ in range(2)]


def windows(z: Array, window: Window) -> tuple[Array, list[tuple[slice, slice]]]:
    """(channels, windows, sites)."""
    wide = np.pad(z, [(0, 0), *((p, p) for p in window.padding)], constant_values=-np.inf)
    places = cuts(window, window.output(z.shape[1:]))
    return np.stack([wide[:, rows, columns].reshape(len(z), -1) for rows, columns in places], axis=2), places


def routed(values: Array, window: Window, size: tuple[int, int]) -> Array:
    """A sign for each window, to the position of its largest site."""
    seen, places = windows(values, window)
    first, out = seen.argmax(2), window.output(size)
    wide = np.zeros((len(values), *(n + 2 * p for n, p in zip(size, window.padding, strict=True))))
    largest = seen.max(2)
    for i, (rows, columns) in enumerate(places):
        wide[:, rows, columns] += ((first == i) * (largest > 0)).reshape(-1, *out) * SIGNS[: np.prod(out)].reshape(out)
    (p, q), (h, w) = window.padding, size
    return wide[:, p : p + h, q : q + w]


SIGNS = np.array([1.0, -2.0, 0.5, 1.5, -1.0, 2.5, 1.0, -0.5, 3.0] * 3)


@pytest.mark.parametrize("mean", [0.0, 0.4])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(
    ("channels", "tolerance"), [(40_000, 0.04), pytest.param(200_000, 0.02, marks=pytest.mark.slow)]
)
def test_largest_of_a_field_equals_drawn_channels(window: Window, mean: float, channels: int, tolerance: float) -> None:
    size = (4, 4)
    rng = np.random.default_rng(0)
    root = rng.standard_normal((16, 5))
    c = root @ root.T / 5 + 0.3
    v = np.diag(c) + rng.uniform(0.2, 1.0, 16)
    state = State(Grid(size), v.reshape(size) + mean**2, c.reshape(size * 2) + mean**2, mean)
    pool = ActivatedMaxPool(ACTIVATIONS["relu"], window)
    output = pool.forward(state)
    first, second = drawn(c, v, mean, size, channels)
    a, b = (np.maximum(windows(z, window)[0].max(2), 0.0) for z in (first, second))
    n = a.shape[1]
    assert np.abs(output.c.reshape(n, n) - a.T @ b / channels).max() < tolerance * float(output.c.max())
    assert np.abs(output.v.ravel() - (a**2).mean(0)).max() < tolerance * float(output.v.max())
    assert output.mean == pytest.approx(a.mean(), rel=tolerance / 2)

    # Gradients with a known product for each pair of windows.
    out, signs = window.output(size), SIGNS[:n]
    gradient = Gradient((signs**2).reshape(out), np.outer(signs, signs).reshape(out * 2))
    (below,) = pool.backward(gradient, [state], output)
    x, y = (routed(z, window, size).reshape(channels, 16) for z in (first, second))
    assert np.abs(below.c.reshape(16, 16) - x.T @ y / channels).max() < tolerance * float(np.abs(below.c).max())
    if window.stride == window.kernel:  # else a site that is the largest of two windows counts twice for one sample
        assert np.abs(below.v.ravel() - (x**2).mean(0)).max() < tolerance * float(below.v.max())
    assert below.radial is not None
    _, pairs = below.radial()
    x, y = x * first.reshape(channels, 16), y * second.reshape(channels, 16)
    assert np.abs(pairs.reshape(16, 16) - x.T @ y / channels).max() < 2.5 * tolerance * float(np.abs(pairs).max())


def test_uniform_positions_are_a_grid_of_equal_ones() -> None:
    pool = ActivatedMaxPool(ACTIVATIONS["relu"], Window((2, 2), (2, 2)))
    both = [State(layout, *layout.fill(2.0, 0.9, 0.5)) for layout in (Uniform((4, 4)), Grid((4, 4)))]
    flat, grid = (pool.forward(state) for state in both)
    assert float(flat.v) == pytest.approx(grid.v.mean(), rel=2e-3)
    assert flat.c == pytest.approx(
        [grid.layout.mean(grid.layout.same(grid.c)), grid.layout.mean_other(grid.c)], rel=5e-3
    )
    (one,), (other,) = (
        pool.backward(Gradient(*state.layout.fill(1.0, 0.7, 0.2)), [start], state)
        for start, state in zip(both, (flat, grid), strict=True)
    )
    assert float(one.v) == pytest.approx(other.v.mean(), rel=2e-3)
    layout = both[1].layout
    assert one.c == pytest.approx([layout.mean(layout.same(other.c)), layout.mean_other(other.c)], rel=1e-2)
