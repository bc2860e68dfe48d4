"""bnp Props. 6 and 7 and Sec. 3.4: against real steps of BatchNorm and of BNP, and against counted operations."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.theory.bounds_cases import SEEDS, Array, batches, generator, tensor
from trimtab.bnp.algorithm import transform
from trimtab.theory import bounds


@given(batches(), SEEDS, st.integers(1, 4))
@settings(deadline=None)
def test_one_step_of_batchnorm_is_one_of_bnp(inputs: Array, seed: int, outputs: int) -> None:
    rng, rate = generator(seed), 0.1
    weight, bias = rng.normal(size=(outputs, inputs.shape[1])), rng.normal(size=outputs)
    h, target = tensor(inputs), tensor(rng.normal(size=(len(inputs), outputs)))
    variance, mean = torch.var_mean(h, 0, correction=0)

    # A step of BatchNorm, with no gradient through its statistics, then merged.
    w, b = tensor(weight).requires_grad_(), tensor(bias).requires_grad_()
    a = ((h - mean) / variance.sqrt()) @ w.T + b
    a.retain_grad()
    (torch.tanh(a) - target).square().mean().backward()
    assert w.grad is not None and b.grad is not None and a.grad is not None
    new_w, new_b = (w - rate * w.grad).detach(), (b - rate * b.grad).detach()
    merged = torch.vstack([new_b - new_w @ (mean / variance.sqrt()), (new_w / variance.sqrt()).T])

    # A step of BNP on the vanilla layer.
    plain_w = (w / variance.sqrt()).detach().requires_grad_()
    plain_b = (b - w @ (mean / variance.sqrt())).detach().requires_grad_()
    (torch.tanh(h @ plain_w.T + plain_b) - target).square().mean().backward()
    assert plain_w.grad is not None and plain_b.grad is not None
    step_w, step_b = transform.precondition(
        plain_w.grad[None, :, :, None],
        plain_b.grad[None, :, None, None],
        mean[None, None, :, None],
        variance[None, None, :, None],
        1.0,
    )
    stepped = torch.vstack([plain_b - rate * step_b.flatten(), (plain_w - rate * step_w[0, :, :, 0]).T]).detach()

    sides = bounds.one_step(inputs, weight, bias, a.grad.numpy(), rate)
    assert sides.holds()
    assert not sides.broken
    atol = 1e-9 * sides.scale
    np.testing.assert_allclose(sides.left, merged.numpy(), rtol=0, atol=atol)
    np.testing.assert_allclose(sides.right, stepped.numpy(), rtol=0, atol=atol)


def test_fewer_samples_than_inputs_make_bnps_step_shorter() -> None:
    rng = generator(0)
    inputs, slopes = rng.normal(size=(3, 6)), rng.normal(size=(3, 2))
    weight, bias = rng.normal(size=(2, 6)), rng.normal(size=2)
    sides = bounds.one_step(inputs, weight, bias, slopes, 0.1)
    assert sides.broken == ("N at least n, so that q² = 1",)
    assert not sides.holds()
    longer = bounds.one_step(inputs, weight, bias, slopes, 0.1 * 2)  # q² = 2
    np.testing.assert_allclose(sides.left, longer.right, atol=1e-12)


@given(batches(), SEEDS)
@settings(deadline=None)
def test_gamma_and_beta_are_one_layer_too_many(inputs: Array, seed: int) -> None:
    rng, width = generator(seed), inputs.shape[1]
    weight, bias = rng.normal(size=(3, width)), rng.normal(size=3)
    gamma, beta = rng.normal(size=width), rng.normal(size=width)
    sides = bounds.over_parametrized(inputs, weight, bias, gamma, beta)
    normalized = torch.nn.functional.batch_norm(
        tensor(inputs), None, None, tensor(gamma), tensor(beta), training=True, eps=1e-300
    )
    expected = torch.nn.functional.linear(normalized, tensor(weight), tensor(bias))
    np.testing.assert_allclose(sides.left, expected.numpy(), atol=1e-8 * max(1.0, sides.scale))
    assert sides.holds()


class Counted:
    """A number that counts the operations made with it."""

    made = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def _combine(self, value: float) -> Counted:
        Counted.made += 1
        return Counted(value)

    def __add__(self, other: Counted) -> Counted:
        return self._combine(self.value + other.value)

    def __sub__(self, other: Counted) -> Counted:
        return self._combine(self.value - other.value)

    def __mul__(self, other: Counted) -> Counted:
        return self._combine(self.value * other.value)

    def __truediv__(self, other: Counted) -> Counted:
        return self._combine(self.value / other.value)


def total(terms: list[Counted]) -> Counted:
    """A sum of N terms: N − 1 additions."""
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def counted(values: Array) -> list[Counted]:
    return [Counted(float(v)) for v in values]


def algorithm_2(inputs: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """One step as the paper prints it, number by number."""
    one, rho, eps1, eps2 = Counted(1), Counted(0.99), Counted(1e-2), Counted(1e-4)
    samples = Counted(len(inputs))
    columns = [counted(column) for column in inputs.T]
    means = [total(column) / samples for column in columns]
    deviations = [[h - m for h in column] for column, m in zip(columns, means, strict=True)]
    variances = [total([d * d for d in column]) / samples for column in deviations]
    rest = one - rho
    mu = [rho * Counted(0) + rest * m for m in means]
    sigma2 = [rho * Counted(1) + rest * v for v in variances]
    largest = eps1 * max(sigma2, key=lambda v: v.value)
    scale = [v + largest + eps2 for v in sigma2]
    q2 = max(Counted(inputs.shape[1]) / samples, one, key=lambda v: v.value)
    inverse = one / q2
    slopes, offsets = [counted(row) for row in weight], counted(bias)
    new = [
        [inverse * ((g - m * b) / s) for g, m, s in zip(row, mu, scale, strict=True)]
        for row, b in zip(slopes, offsets, strict=True)
    ]
    shifted = [
        inverse * b - total([g * m for g, m in zip(row, mu, strict=True)]) for row, b in zip(new, offsets, strict=True)
    ]
    return np.array([[g.value for g in row] for row in new]), np.array([b.value for b in shifted])


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 7), SEEDS)
@settings(deadline=None)
def test_the_operations_of_a_step(n_in: int, n_out: int, batch: int, seed: int) -> None:
    rng = generator(seed)
    inputs, weight, bias = rng.normal(size=(batch, n_in)), rng.normal(size=(n_out, n_in)), rng.normal(size=n_out)
    Counted.made = 0
    new_weight, new_bias = algorithm_2(inputs, weight, bias)
    sides = bounds.bnp_operations(n_in, n_out, batch)
    assert sides.left == Counted.made
    assert sides.holds()

    # What was counted is BNP's step.
    mean, variance = tensor(0.01 * inputs.mean(0)), tensor(0.99 + 0.01 * inputs.var(0))
    scale = transform.regularized(variance[None, None, :, None], 1e-2, 1e-4)
    ours = transform.precondition(
        tensor(weight)[None, :, :, None],
        tensor(bias)[None, :, None, None],
        mean[None, None, :, None],
        scale,
        transform.squared_norm(n_in, batch, batch),
    )
    np.testing.assert_allclose(ours[0].flatten().numpy(), new_weight.ravel(), rtol=1e-10)
    np.testing.assert_allclose(ours[1].flatten().numpy(), new_bias, rtol=1e-9, atol=1e-12)


@given(st.integers(2, 9), SEEDS)
@settings(deadline=None)
def test_the_operations_of_batchnorms_gradient(batch: int, seed: int) -> None:
    """Fact C.1 with the sums for β and γ, for one feature: 7N + 1."""
    rng = generator(seed)
    standard, slopes = counted(rng.normal(size=batch)), counted(rng.normal(size=batch))
    gamma, sigma, samples = Counted(1.5), Counted(0.5), Counted(batch)
    Counted.made = 0
    for_beta = total(slopes)
    for_gamma = total([g * y for g, y in zip(slopes, standard, strict=True)])
    factor, mean, along = gamma / sigma, for_beta / samples, for_gamma / samples
    for g, y in zip(slopes, standard, strict=True):
        factor * (g - mean - y * along)
    assert Counted.made == 7 * batch + 1
    sides = bounds.bn_operations(4, batch)
    assert sides.holds()
    assert sides.left == 4 * ((4 * batch + 7) + 4 * batch + Counted.made)
