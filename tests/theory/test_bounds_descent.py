"""bnp Theorem 1, by running gradient descent on a network that is invariant under scaling."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from tests.theory.bounds_cases import SEEDS, Array, generator, tensor
from trimtab.theory import bounds


def network(seed: int) -> tuple[Callable[[Tensor], Tensor], Array]:
    """The loss of f(x) = v·relu(wᵀx) on data that it fits, and a minimizer θ* = (w, v).

    x and w are positive, so that no unit changes sides and all derivatives are continuous. (s·w, v/s) is the same
    network for all s > 0.
    """
    rng = generator(seed)
    x, optimum = tensor(rng.uniform(0.2, 2, size=(8, 2))), tensor(rng.uniform(0.5, 1.5, size=3))

    def output(theta: Tensor) -> Tensor:
        return theta[2] * torch.relu(x @ theta[:2])

    target = output(optimum)
    return lambda theta: 0.5 * (output(theta) - target).square().mean(), optimum.numpy()


def nearest(theta: Array, optimum: Array) -> Array:
    """The minimizer nearest to θ on the manifold of scalings."""

    def scaled(log: float) -> Array:
        return np.append(np.exp(log) * optimum[:2], np.exp(-log) * optimum[2])

    found = minimize_scalar(
        lambda log: ((theta - scaled(log)) ** 2).sum(), bounds=(-1.5, 1.5), options={"xatol": 1e-12}
    )
    return scaled(found.x)


def run(
    loss: Callable[[Tensor], Tensor], optimum: Array, start: Array, learning_rate: float, steps: int
) -> list[float]:
    theta, distances = start.copy(), []
    for _ in range(steps):
        distances.append(float(np.linalg.norm(theta - nearest(theta, optimum))))
        theta = theta - learning_rate * jacobian(loss, tensor(theta)).numpy()
    return distances


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_hessian_is_flat_along_scalings(seed: int) -> None:
    loss, optimum = network(seed)
    tangent = np.append(optimum[:2], -optimum[2])[:, None]
    at_minimum = hessian(loss, tensor(optimum)).numpy()
    assert bounds.scaling_null_space(at_minimum, tangent).holds()
    assert np.linalg.matrix_rank(at_minimum, hermitian=True, tol=1e-9 * np.linalg.norm(at_minimum, 2)) == 2
    elsewhere = hessian(loss, tensor(optimum * 1.3)).numpy()
    assert not bounds.scaling_null_space(elsewhere, tangent).holds()


@given(SEEDS, st.floats(0.2, 1.9))
@settings(max_examples=15, deadline=None)
def test_descent_contracts_at_the_rate_of_the_nonzero_eigenvalues(seed: int, share: float) -> None:
    loss, optimum = network(seed)
    curved = hessian(loss, tensor(optimum)).numpy()
    learning_rate = share / np.linalg.eigvalsh(curved)[-1]
    start = optimum + 1e-4 * generator(seed + 1).normal(size=3)
    sides = bounds.contraction(run(loss, optimum, start, learning_rate, 12), curved, learning_rate)
    assert not sides.broken
    assert sides.holds(1e-2)
    spectrum = np.linalg.eigvalsh(curved)[1:]
    assert np.max(sides.right) == pytest.approx(np.abs(1 - learning_rate * spectrum).max())


def test_the_rate_is_reached_in_the_long_run() -> None:
    """At the best learning rate: (κ* − 1)/(κ* + 1)."""
    loss, optimum = network(3)
    curved = hessian(loss, tensor(optimum)).numpy()
    best = bounds.optimal_contraction(curved)
    assert best.holds()
    start = optimum + 1e-3 * np.array([1.0, -1.0, 0.5])
    sides = bounds.contraction(run(loss, optimum, start, bounds.optimal_learning_rate(curved), 60), curved, 1.0)
    np.testing.assert_allclose(np.asarray(sides.left)[-5:], best.right, rtol=2e-2)


def test_it_needs_the_null_space_to_be_that_of_the_scalings() -> None:
    """A direction that is flat for another reason does not contract, and no nonzero eigenvalue knows of it."""
    theta, learning_rate = np.array([1.0, 1.0]), 0.5
    curved = np.diag([1.0, 0.0])
    distances = []
    for _ in range(5):  # the quartic's minimum is the point 0 alone
        distances.append(float(np.linalg.norm(theta)))
        theta = theta - learning_rate * np.array([theta[0], 4 * (0.1 * theta[1]) ** 3])
    assert not bounds.contraction(distances, curved, learning_rate).holds(0.1)


def test_a_saddle_is_named() -> None:
    for saddle in (np.diag([2.0, -1.0]), np.diag([1.0, -1.0]), np.diag([1.9, -2.0])):
        sides = bounds.optimal_contraction(saddle)
        assert sides.broken == ("a positive semi-definite Hessian",)
        assert sides.left == 1 and np.isfinite(sides.right) and not sides.holds()


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
@settings(deadline=None)
def test_the_best_learning_rate_is_the_best(eigenvalues: list[float]) -> None:
    curved = np.diag([*eigenvalues, 0.0])
    best = bounds.optimal_learning_rate(curved)

    def rate(learning_rate: float) -> float:
        return max(abs(1 - learning_rate * value) for value in eigenvalues)

    assert bounds.optimal_contraction(curved).holds()
    assert rate(best) <= min(rate(0.99 * best), rate(1.01 * best)) + 1e-12
