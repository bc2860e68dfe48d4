"""landscape Theorem C.1: the maximum over inputs of bounded norm, against a search, and what bounds it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.theory.bounds_cases import SEEDS, Array, generator, units
from trimtab.theory import bounds

Unit = tuple[Array, float, Array, Array]


def curvature(inputs: Array, vector: Array, matrix: Array) -> float:
    """vᵀXXᵀKXXᵀv."""
    image = inputs @ (inputs.T @ vector)
    return float(image @ matrix @ image)


def directions(size: int) -> Array:
    """Unit vectors in the plane or in space, densely, one per row."""
    turn = np.linspace(0, np.pi, 2000 if size == 2 else 400)
    if size == 2:
        return np.column_stack([np.cos(turn), np.sin(turn)])
    height, around = (a.ravel() for a in np.meshgrid(np.cos(turn), 2 * turn))  # as densely at the poles
    ring = np.sqrt(1 - height**2)
    return np.column_stack([ring * np.cos(around), ring * np.sin(around), height])


@given(st.integers(2, 3), st.floats(0.5, 2), SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_maximum_is_what_a_search_over_all_directions_finds(size: int, radius: float, seed: int) -> None:
    """X = λx for unit vectors x: β = λ⁴⟨x, v⟩²·xᵀKx. That no other X does better is the next test."""
    rng = generator(seed)
    half, vector = rng.normal(size=(size, size)), rng.normal(size=size)
    matrix = half + half.T
    x = directions(size)
    found = radius**4 * float(((x @ vector) ** 2 * np.einsum("ni,ij,nj->n", x, matrix, x)).max())
    exact = bounds.largest_curvature(matrix, vector, radius)
    scale = radius**4 * float(np.linalg.norm(matrix, 2) * (vector @ vector))
    assert found <= exact + 1e-9 * scale
    assert exact == pytest.approx(max(0.0, found), abs=1e-3 * scale)


@given(units(), st.floats(0.1, 3), SEEDS)
@settings(deadline=None)
def test_no_input_exceeds_the_maximum(unit: Unit, radius: float, seed: int) -> None:
    *_, vector, matrix = unit
    exact, rng = bounds.largest_curvature(matrix, vector, radius), generator(seed)
    size = radius**4 * float(np.abs(matrix).sum() * (vector @ vector))
    for _ in range(10):
        inputs = rng.normal(size=(len(vector), int(rng.integers(1, len(vector) + 2))))
        inputs *= radius * rng.uniform(0, 1) / np.linalg.norm(inputs, 2)
        assert curvature(inputs, vector, matrix) <= exact + 1e-9 * size


@pytest.mark.parametrize(
    ("matrix", "vector", "expected"),
    [
        (np.eye(3), [2.0, 0.0, 0.0], 4.0),  # at u = v
        (-np.eye(3), [2.0, 0.0, 0.0], 0.0),  # at u = 0
        (np.diag([0.0, 1.0]), [2.0, 0.0], 1.0),  # no pull along the top eigenvector: the point (1, 1) of the circle
        (np.diag([0.0, 1.0, 1.0]), [2.0, 0.0, 0.0], 1.0),
        (np.zeros((2, 2)), [1.0, 0.0], 0.0),
        (np.eye(2), [0.0, 0.0], 0.0),
    ],
)
def test_cases_with_a_known_maximum(matrix: Array, vector: list[float], expected: float) -> None:
    assert bounds.largest_curvature(matrix, vector, 1.0) == pytest.approx(expected, abs=1e-12)
    assert bounds.largest_curvature(matrix, vector, 2.0) == pytest.approx(16 * expected, abs=1e-12)


@given(units(), st.floats(0.1, 3))
@settings(deadline=None)
def test_the_corrected_bound_holds(unit: Unit, radius: float) -> None:
    assert bounds.weight_smoothness(*unit, radius).holds()


@given(units(), st.floats(0.1, 3), SEEDS)
@settings(deadline=None)
def test_for_orthogonal_inputs_the_gain_of_4_2_remains(unit: Unit, radius: float, seed: int) -> None:
    activations, gamma, gradient, hessian = unit
    slope = bounds.bn_gradient(activations, gamma, gradient)
    normalized = bounds.bn_hessian(activations, gamma, gradient, hessian)
    rotation = radius * np.linalg.qr(generator(seed).normal(size=(len(slope), len(slope))))[0]
    expected = bounds.smoothness(activations, gamma, gradient, hessian)
    found = curvature(rotation, slope, normalized)
    np.testing.assert_allclose(found, radius**4 * float(expected.right), atol=1e-9 * radius**4 * expected.scale)


def test_the_corrected_bound_is_reached() -> None:
    """So that no better one exists: without curvature, only the price is left."""
    activations = np.array([-1.0, 0.0, 1.0])
    gradient = np.array([1.0, -2.0, 1.0])  # orthogonal to 1 and to ŷ
    sides = bounds.weight_smoothness(activations, 0.7, gradient, np.zeros((3, 3)), 1.3)
    assert sides.left == pytest.approx(sides.right)
