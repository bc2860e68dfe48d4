"""landscape Theorems 4.1, 4.2 and 4.4, Obs. 4.3 and Lemma 4.5, by autograd through a BatchNorm layer in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

from tests.theory.bounds_cases import SEEDS, Array, generator, tensor, units
from trimtab.theory import bounds

Unit = tuple[Array, float, Array, Array]


def batchnorm(y: Tensor, gamma: float, beta: float, eps: float = 0.0) -> Tensor:
    return gamma * (y - y.mean()) / (y.var(correction=0) + eps).sqrt() + beta


@st.composite
def losses(draw: st.DrawFn) -> tuple[Array, float, float, Callable[[Tensor], Tensor]]:
    """Activations, γ, β, and a loss that couples the samples and is curved everywhere."""
    rng, size = generator(draw(SEEDS)), draw(st.integers(3, 8))
    mixing, target = tensor(rng.normal(size=(4, size)) / 2), tensor(rng.normal(size=size))

    def loss(z: Tensor) -> Tensor:
        return torch.logsumexp(mixing @ z, 0) + (torch.tanh(z) - target).square().sum()

    activations = draw(st.floats(0.3, 3)) * rng.normal(size=size) + draw(st.floats(-2, 2))
    return activations, draw(st.floats(0.3, 3)), draw(st.floats(-1, 1)), loss


@given(losses())
@settings(deadline=None)
def test_gradient_and_hessian_are_autograds(
    case: tuple[Array, float, float, Callable[[Tensor], Tensor]],
) -> None:
    """And with them the left sides; the right sides take ∇L and H at z."""
    activations, gamma, beta, loss = case
    y = tensor(activations)
    z = batchnorm(y, gamma, beta)

    def through(values: Tensor) -> Tensor:
        return loss(batchnorm(values, gamma, beta))

    slope, curved = jacobian(loss, z).numpy(), hessian(loss, z).numpy()
    theirs, their_hessian = jacobian(through, y).numpy(), hessian(through, y).numpy()
    size = max(1.0, np.abs(their_hessian).max(), np.abs(theirs).max())
    np.testing.assert_allclose(bounds.bn_gradient(activations, gamma, slope), theirs, atol=1e-9 * size)
    np.testing.assert_allclose(bounds.bn_hessian(activations, gamma, slope, curved), their_hessian, atol=1e-9 * size)

    first = bounds.lipschitzness(activations, gamma, slope)
    np.testing.assert_allclose(first.left, theirs @ theirs, atol=1e-9 * first.scale)
    assert first.holds()
    second = bounds.smoothness(activations, gamma, slope, curved)
    np.testing.assert_allclose(second.left, theirs @ their_hessian @ theirs, atol=1e-9 * second.scale)
    assert second.holds()


def test_something_added_to_the_variance_breaks_the_equation() -> None:
    """As do the unbiased variance and the gradient at y in the place of z."""
    y, gamma = tensor(generator(0).normal(size=6)), 1.5

    def loss(z: Tensor) -> Tensor:
        return (z - torch.arange(6.0, dtype=torch.float64)).pow(4).sum()

    def left(normalize: Callable[[Tensor], Tensor]) -> float:
        return float(jacobian(lambda v: loss(normalize(v)), y).square().sum())

    sides = bounds.lipschitzness(y.numpy(), gamma, jacobian(loss, batchnorm(y, gamma, 0.0)).numpy())
    assert left(lambda v: batchnorm(v, gamma, 0.0)) == pytest.approx(sides.right)
    assert left(lambda v: batchnorm(v, gamma, 0.0, eps=0.1)) != pytest.approx(sides.right, rel=1e-2)
    assert left(lambda v: gamma * (v - v.mean()) / v.std()) != pytest.approx(sides.right, rel=1e-2)
    at_y = bounds.lipschitzness(y.numpy(), gamma, jacobian(loss, y).numpy())
    assert left(lambda v: batchnorm(v, gamma, 0.0)) > float(at_y.right) * 1.01  # not even ≤


@given(units())
@settings(deadline=None)
def test_the_second_part_of_4_2_needs_its_condition(unit: Unit) -> None:
    sides = bounds.smoothness_by_gradient(*unit)
    if not sides.broken:
        assert sides.holds()
    activations, gamma, gradient, _ = unit
    assert not bounds.smoothness_by_gradient(activations, gamma, gradient, np.eye(len(gradient))).broken


def test_the_second_part_of_4_2_fails_where_the_hessian_does_not_preserve_norms() -> None:
    activations, gradient = np.array([1.0, -1.0, 0.0, 0.0]), np.array([0.0, 0.0, 2.0, 0.0])
    hessian_ = np.diag([1.0, 1.0, 0.0, 1.0])  # flat along the gradient, not along what is left of it
    sides = bounds.smoothness_by_gradient(activations, 1.0, gradient, hessian_)
    assert sides.broken == ("a Hessian that preserves relative norms",)
    assert not sides.holds()


@given(units())
@settings(deadline=None)
def test_batchnorm_can_leave_the_activations_as_they_are(unit: Unit) -> None:
    y = unit[0]
    assert bounds.same_activations(y).holds()
    z = batchnorm(tensor(y), float(y.std()), float(y.mean()))
    np.testing.assert_allclose(z.numpy(), y, atol=1e-12 * np.abs(y).max())


@given(st.integers(2, 5), st.integers(4, 9), SEEDS)
@settings(deadline=None)
def test_the_gradient_with_batchnorm_is_that_of_the_plain_layer_carried_over(width: int, size: int, seed: int) -> None:
    rng = generator(seed)
    rows, weight, target = rng.normal(size=(size, width)) + 1, rng.normal(size=width), tensor(rng.normal(size=size))
    x, w = tensor(rows), tensor(weight)
    y = x @ w
    gamma, beta = y.std(correction=0), y.mean()

    def loss(z: Tensor) -> Tensor:
        return (torch.sin(z) - target).square().sum()

    def normalized(theta: Tensor) -> Tensor:
        out = x @ theta[:-2]
        return loss(theta[-2] * (out - out.mean()) / out.std(correction=0) + theta[-1])

    measured = jacobian(normalized, torch.cat([w, gamma[None], beta[None]])).numpy()
    sides = bounds.kept_minima(rows, weight, jacobian(loss, y).numpy())
    np.testing.assert_allclose(sides.left, measured, atol=1e-9 * sides.scale)
    assert sides.holds()


@given(units(), st.floats(0.1, 4), SEEDS)
@settings(deadline=None)
def test_the_largest_gradient_over_bounded_inputs(unit: Unit, radius: float, seed: int) -> None:
    activations, gamma, gradient, _ = unit
    sides = bounds.weight_lipschitzness(activations, gamma, gradient, radius)
    assert sides.holds()
    slope = bounds.bn_gradient(activations, gamma, gradient)
    rng = generator(seed)
    for _ in range(5):
        inputs = rng.normal(size=(len(slope), int(rng.integers(1, 6))))
        inputs *= radius / np.linalg.norm(inputs, 2)
        assert ((inputs.T @ slope) ** 2).sum() <= float(sides.left) * (1 + 1e-9)
    reached = radius * slope[:, None] / np.linalg.norm(slope)
    np.testing.assert_allclose(((reached.T @ slope) ** 2).sum(), sides.left, rtol=1e-9)


@given(st.integers(1, 4), st.integers(1, 4), SEEDS)
@settings(deadline=None)
def test_the_nearest_optimum_with_batchnorm(rows: int, columns: int, seed: int) -> None:
    rng = generator(seed)
    start, optimum = rng.normal(size=(rows, columns)), rng.normal(size=(rows, columns))
    sides = bounds.initialization(start, optimum)
    assert sides.holds()
    multiples = [((start - k * optimum) ** 2).sum() for k in np.linspace(0.01, 5, 500)]
    assert min(multiples) >= float(sides.left) - 1e-9
    if not sides.broken:
        assert float(sides.left) <= ((start - optimum) ** 2).sum() + 1e-12


def test_a_negative_multiple_is_no_optimum() -> None:
    """It turns the activations round: at W₀ = −W* the lemma would put an optimum at distance 0."""
    optimum = np.array([1.0, 2.0])
    sides = bounds.initialization(-optimum, optimum)
    assert sides.broken == ("⟨W₀, W*⟩ above 0",)
    assert sides.left == pytest.approx(0)
    x = tensor(generator(0).normal(size=(6, 2)))
    plain, turned = (batchnorm(x @ tensor(sign * optimum), 1.0, 0.0) for sign in (1, -1))
    torch.testing.assert_close(turned, -plain)
