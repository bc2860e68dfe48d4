"""Lanczos' method, traces and densities on drawn matrices, against numpy's eigenvalues."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimtab.probes.result import CannotMeasure
from trimtab.probes.spectrum.basis import Basis
from trimtab.probes.spectrum.lanczos import Lanczos, extremes, lanczos_max
from trimtab.probes.spectrum.stochastic import quadrature, rest_of_trace, smoothed

SPECTRA = {
    "spread": lambda n, rng: rng.normal(size=n),
    "clustered": lambda n, rng: np.where(rng.random(n) < 0.5, 1.0, 3.0) + 1e-3 * rng.normal(size=n),
    "repeated": lambda n, rng: rng.integers(-2, 3, size=n).astype(float),
    "low rank": lambda n, rng: np.where(np.arange(n) < n // 3, 1 + rng.random(n), 0.0),
    "negative": lambda n, rng: -rng.random(n) - 0.1,
    "outliers": lambda n, rng: np.concatenate([[50.0, 49.0, 20.0, -9.0], 0.01 * rng.normal(size=n)])[:n],
    "huge": lambda n, rng: 1e12 * rng.normal(size=n),
    "tiny": lambda n, rng: 1e-12 * rng.normal(size=n),
}

WITHIN = {"clustered": 1e-2}
"""A residual bounds the distance to an eigenvalue: any of a cluster, if the start has hardly anything of the first."""


def drawn(kind: str, size: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """A symmetric matrix with a spectrum of that kind, and its eigenvalues by numpy, ascending."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
    matrix = basis * SPECTRA[kind](size, rng) @ basis.T
    matrix = (matrix + matrix.T) / 2
    return torch.tensor(matrix), np.linalg.eigvalsh(matrix)


def starting(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def draws(**more):
    return given(kind=st.sampled_from(list(SPECTRA)), size=st.integers(1, 40), seed=st.integers(0, 10_000), **more)


@settings(max_examples=60, deadline=None)
@draws(top=st.integers(1, 4), bottom=st.integers(0, 3))
def test_both_ends_within_their_residuals(kind: str, size: int, seed: int, top: int, bottom: int) -> None:
    matrix, exact = drawn(kind, size, seed)
    noise = torch.Generator().manual_seed(seed)
    found = extremes(lambda v: matrix @ v, starting(size, seed), top=top, bottom=bottom, tolerance=1e-8, noise=noise)
    scale = np.abs(exact).max()
    near = WITHIN.get(kind, 1e-7) * scale
    assert found.converged
    assert found.values[-1] == pytest.approx(exact[-1], abs=near)
    if bottom:
        assert found.values[0] == pytest.approx(exact[0], abs=near)
    for value, residual in zip(found.values, found.residuals, strict=True):
        assert np.abs(exact - float(value)).min() <= float(residual) + 1e-12 * scale
    if kind in ("spread", "negative", "huge", "tiny", "outliers"):  # none repeated
        wanted, got = exact[::-1][:top], found.values.flip(0)[:top].numpy()
        np.testing.assert_allclose(got, wanted, atol=1e-6 * scale)
        np.testing.assert_allclose(found.values[:bottom].numpy(), exact[:bottom], atol=1e-6 * scale)


@settings(max_examples=40, deadline=None)
@draws(bottom=st.integers(0, 2))
def test_restarts_change_nothing(kind: str, size: int, seed: int, bottom: int) -> None:
    """A basis of 8 vectors at most finds the ends, too."""
    matrix, exact = drawn(kind, size, seed)
    told = {"top": 2, "bottom": bottom, "tolerance": 1e-6, "max_products": 3000}
    found = extremes(lambda v: matrix @ v, starting(size, seed), max_vectors=8, **told)
    assert found.converged and len(found.basis) <= 8
    near = WITHIN.get(kind, 1e-5) * np.abs(exact).max()
    assert found.values[-1] == pytest.approx(exact[-1], abs=near)
    if bottom:
        assert found.values[0] == pytest.approx(exact[0], abs=near)


def test_the_space_is_orthonormal_and_known_exactly() -> None:
    matrix, _ = drawn("outliers", 40, 0)
    lanczos = Lanczos(lambda v: matrix @ v, starting(40))
    for count in range(1, 31):
        lanczos.step()
        if count == 20:
            lanczos.shrink(torch.tensor([0, 16, 17, 18, 19]))
    vectors = torch.cat(lanczos.basis._filled())
    assert vectors.shape == (15, 40)
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(15, dtype=torch.double), atol=1e-13, rtol=0)
    values, residuals, columns = lanczos.ritz()
    ritz = vectors.T @ columns
    torch.testing.assert_close((matrix @ ritz - ritz * values).norm(dim=0), residuals, atol=1e-12, rtol=1e-9)


def test_products_stop_when_told_to() -> None:
    matrix, _ = drawn("spread", 40, 1)
    found = extremes(lambda v: matrix @ v, starting(40), tolerance=1e-12, max_products=5)
    assert not found.converged and found.products == 5
    few = extremes(lambda v: matrix @ v, starting(40), tolerance=0.5)
    many = extremes(lambda v: matrix @ v, starting(40), tolerance=1e-6)
    assert few.converged and many.converged and few.products < many.products
    assert few.residuals[-1] <= 0.5 * few.values[-1] and many.residuals[-1] <= 1e-6 * many.values[-1]


@settings(max_examples=40, deadline=None)
@given(
    outliers=st.lists(st.floats(0.05, 1), min_size=1, max_size=6), top=st.integers(1, 3), seed=st.integers(0, 10_000)
)
def test_values_that_are_settled_are_good(outliers: list[float], top: int, seed: int) -> None:
    """Values with gaps of a tenth beside them, as those of networks often have, in fewer products."""
    ladder = 10 * np.cumprod([1.0, *(1 - 0.1 - 0.5 * each for each in outliers)])
    rng = np.random.default_rng(seed)
    diagonal = torch.tensor(np.concatenate([ladder, 0.01 * rng.normal(size=400), [-1.0]]))
    start, told = starting(len(diagonal), seed), {"top": top, "tolerance": 1e-2, "min_products": 4}
    # One start in 200 is so nearly orthogonal to the first vector that four products find the second, by either rule.
    assume(abs(start[0]) * len(start) ** 0.5 > 0.02 * start.norm())
    early = extremes(lambda v: diagonal * v, start, stop_when_stable=True, **told)
    late = extremes(lambda v: diagonal * v, start, **told)
    assert early.converged and early.products <= late.products
    assert early.values[-1] == pytest.approx(10, rel=1e-2)


def test_settling_saves_products() -> None:
    diagonal = torch.tensor(np.concatenate([[10, 7.5, 6, 5, 4, 3, 2.5], 0.01 * np.arange(400) / 400]))
    told = {"tolerance": 1e-2, "max_vectors": 8}
    early = extremes(lambda v: diagonal * v, starting(407), stop_when_stable=True, **told)
    late = extremes(lambda v: diagonal * v, starting(407), **told)
    assert early.products < late.products and early.residuals[-1] > 1e-2 * 10 >= late.residuals[-1]
    assert early.values[-1] == pytest.approx(10, rel=2e-3)
    assert extremes(lambda v: diagonal * v, starting(407), min_products=12, **told).products == 12


def test_single_precision_keeps_its_basis_orthogonal() -> None:
    matrix, exact = drawn("outliers", 40, 2)
    single = matrix.float()
    found = extremes(lambda v: single @ v, starting(40).float(), top=3, bottom=1, tolerance=1e-5)
    np.testing.assert_allclose(found.values.flip(0)[:3].numpy(), exact[::-1][:3], rtol=1e-5)
    vectors = torch.cat(found.basis._filled())
    assert (vectors @ vectors.T - torch.eye(len(vectors))).abs().max() < 1e-5


def test_long_vectors_of_single_precision() -> None:
    """On 4 million entries a plain float32 sum of squares is wrong in the fourth digit on a processor."""
    generator = torch.Generator().manual_seed(0)
    basis = Basis(torch.zeros(1 << 22))
    for _ in range(3):
        vector = torch.randn(1 << 22, generator=generator)
        _, length = basis.orthogonalize(vector)
        assert length == pytest.approx(float(vector.double().norm()), rel=1e-6)
        basis.append(vector / length)
    (vectors,) = basis._filled()
    assert (vectors.double() @ vectors.double().T - torch.eye(3)).abs().max() < 1e-6
    diagonal = torch.linspace(0, 1, 1 << 22)
    diagonal[-1] = 3.0
    largest = lanczos_max(lambda v: diagonal * v, torch.ones(1 << 22), tolerance=1e-4, max_products=40)
    assert largest == pytest.approx(3, 1e-6)


def test_an_exhausted_space() -> None:
    """The start is in a space of two dimensions that the matrix does not leave."""
    matrix = torch.diag(torch.tensor([1.0, 2.0, 5.0, 7.0], dtype=torch.double))
    start = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.double)
    alone = extremes(lambda v: matrix @ v, start, top=4)
    assert alone.values.tolist() == pytest.approx([1, 2]) and alone.products == 2
    helped = extremes(lambda v: matrix @ v, start, top=4, noise=torch.Generator().manual_seed(0))
    assert helped.values.tolist() == pytest.approx([1, 2, 5, 7]) and helped.products == 4


def test_products_that_are_not_finite_are_said() -> None:
    with pytest.raises(CannotMeasure, match="not finite"):
        lanczos_max(lambda v: v * math.nan, torch.ones(4))
    with pytest.raises(CannotMeasure, match="not finite"):
        lanczos_max(lambda v: v * math.inf, torch.ones(4))
    with pytest.raises(ValueError, match="start"):
        lanczos_max(lambda v: v, torch.zeros(4))


@settings(max_examples=30, deadline=None)
@draws(steps=st.integers(1, 12))
def test_quadrature_has_the_moments(kind: str, size: int, seed: int, steps: int) -> None:
    """Σ w θᵏ = xᵀAᵏx for k < 2·steps, as far as rounding lets one see."""
    matrix, exact = drawn(kind, size, seed)
    start = starting(size, seed)
    nodes, weights = quadrature(lambda v: matrix @ v, start, steps)
    assert len(nodes) <= min(steps, size)
    x, scale = start / start.norm(), max(np.abs(exact).max(), 1e-300)
    power = x
    for degree in range(min(2 * steps, 8)):
        assert float(weights @ (nodes / scale) ** degree) == pytest.approx(float(x @ power), abs=1e-9)
        power = matrix @ power / scale


def test_trace_outside_of_a_space() -> None:
    matrix, exact = drawn("outliers", 40, 3)
    generator = torch.Generator().manual_seed(0)
    found = extremes(lambda v: matrix @ v, starting(40), top=3, bottom=1, tolerance=1e-3)
    rest, error = rest_of_trace(lambda v: matrix @ v, found.basis, starting(40), 50, generator)
    assert float(found.values.sum()) + rest == pytest.approx(exact.sum(), abs=4 * error)
    plain, plain_error = rest_of_trace(lambda v: matrix @ v, Basis(starting(40)), starting(40), 50, generator)
    assert plain == pytest.approx(exact.sum(), abs=4 * plain_error)
    assert error < 0.01 * plain_error  # what varies most is known exactly
    assert math.isnan(rest_of_trace(lambda v: matrix @ v, found.basis, starting(40), 1, generator)[1])


def test_density_is_that_of_the_eigenvalues() -> None:
    """Integral, mean and variance; the smoothing adds its own variance."""
    _, exact = drawn("spread", 40, 4)
    values = torch.tensor(exact)
    grid, density = smoothed(values, torch.ones(40, dtype=torch.double), width=0.02, points=2000)
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-12)
    mean = float(torch.trapezoid(density * grid, grid))
    sigma = 0.02 * (exact[-1] - exact[0])
    assert mean == pytest.approx(exact.mean(), abs=1e-3)
    assert float(torch.trapezoid(density * (grid - mean) ** 2, grid)) == pytest.approx(exact.var() + sigma**2, rel=1e-3)
    half = grid <= values.median() + sigma / 50
    assert float(torch.trapezoid(density[half], grid[half])) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-8])
def test_density_of_one_value(value: float) -> None:
    grid, density = smoothed(torch.tensor([value]), torch.ones(1), width=0.01, points=512)
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1)
    assert float(grid[density.argmax()]) == pytest.approx(value, abs=0.01 * abs(value) or 1e-3)
