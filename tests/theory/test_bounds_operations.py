"""bnp Prop. 6: the count of operations against one made number by number, and what is counted against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.theory.bounds_cases import SEEDS, Array, generator, tensor
from trimtab.bnp.algorithm import transform
from trimtab.theory import bounds
from trimtab.theory.bounds.operations import Counter, bn_step, bnp_step


class Number:
    """A number that counts the operations made with it."""

    made = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def _combine(self, value: float) -> Number:
        Number.made += 1
        return Number(value)

    def __add__(self, other: Number) -> Number:
        return self._combine(self.value + other.value)

    def __sub__(self, other: Number) -> Number:
        return self._combine(self.value - other.value)

    def __mul__(self, other: Number) -> Number:
        return self._combine(self.value * other.value)

    def __truediv__(self, other: Number) -> Number:
        return self._combine(self.value / other.value)

    def sqrt(self) -> Number:
        return self._combine(self.value**0.5)


def total(terms: list[Number]) -> Number:
    """A sum of N terms: N − 1 additions."""
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def numbers(values: Array) -> list[Number]:
    return [Number(float(v)) for v in values]


def algorithm_2(inputs: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """One step as the paper prints it, number by number."""
    one, rho, eps1, eps2 = Number(1), Number(0.99), Number(1e-2), Number(1e-4)
    samples = Number(len(inputs))
    columns = [numbers(column) for column in inputs.T]
    means = [total(column) / samples for column in columns]
    deviations = [[h - m for h in column] for column, m in zip(columns, means, strict=True)]
    variances = [total([d * d for d in column]) / samples for column in deviations]
    rest = one - rho
    mu = [rho * Number(0) + rest * m for m in means]
    sigma2 = [rho * Number(1) + rest * v for v in variances]
    largest = eps1 * max(sigma2, key=lambda v: v.value)
    scale = [v + largest + eps2 for v in sigma2]
    q2 = max(Number(inputs.shape[1]) / samples, one, key=lambda v: v.value)
    inverse = one / q2
    slopes, offsets = [numbers(row) for row in weight], numbers(bias)
    new = [
        [inverse * ((g - m * b) / s) for g, m, s in zip(row, mu, scale, strict=True)]
        for row, b in zip(slopes, offsets, strict=True)
    ]
    shifted = [
        inverse * b - total([g * m for g, m in zip(row, mu, strict=True)]) for row, b in zip(new, offsets, strict=True)
    ]
    return np.array([[g.value for g in row] for row in new]), np.array([b.value for b in shifted])


def batch_norm(inputs: Array, slopes: Array, gamma: Array, beta: Array) -> None:
    """BatchNorm forwards and backwards, number by number, with its running averages."""
    one, rho, samples = Number(1), Number(0.99), Number(len(inputs))
    rest = one - rho
    for column, upstream, g, b in zip(inputs.T, slopes.T, numbers(gamma), numbers(beta), strict=True):
        values, above = numbers(column), numbers(upstream)
        mean = total(values) / samples
        deviations = [h - mean for h in values]
        variance = total([d * d for d in deviations]) / samples
        rho * Number(0) + rest * mean
        rho * Number(1) + rest * variance
        sigma = variance.sqrt()
        standard = [(h - mean) / sigma for h in values]
        for y in standard:
            g * y + b
        for_beta, for_gamma = total(above), total([s * y for s, y in zip(above, standard, strict=True)])
        factor, common, along = g / sigma, for_beta / samples, for_gamma / samples
        for s, y in zip(above, standard, strict=True):
            factor * (s - common - y * along)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 7), SEEDS)
@settings(deadline=None)
def test_the_operations_of_a_step(n_in: int, n_out: int, batch: int, seed: int) -> None:
    rng = generator(seed)
    inputs, weight, bias = rng.normal(size=(batch, n_in)), rng.normal(size=(n_out, n_in)), rng.normal(size=n_out)
    Number.made = 0
    by_hand = algorithm_2(inputs, weight, bias)
    sides = bounds.bnp_operations(n_in, n_out, batch)
    assert sides.left == Number.made
    assert sides.holds()

    # What was counted is BNP's step.
    counter = Counter()
    counted = bnp_step(counter, inputs, weight, bias)
    assert counter.made == Number.made
    mean, variance = tensor(0.01 * inputs.mean(0)), tensor(0.99 + 0.01 * inputs.var(0))
    ours = transform.precondition(
        tensor(weight)[None, :, :, None],
        tensor(bias)[None, :, None, None],
        mean[None, None, :, None],
        transform.regularized(variance[None, None, :, None], 1e-2, 1e-4),
        transform.squared_norm(n_in, batch, batch),
    )
    assert ours[1] is not None
    for new_weight, new_bias in (by_hand, counted):
        np.testing.assert_allclose(ours[0][0, :, :, 0].numpy(), new_weight, rtol=1e-10)
        np.testing.assert_allclose(ours[1].flatten().numpy(), new_bias, rtol=1e-9, atol=1e-12)


@given(st.integers(1, 5), st.integers(2, 9), SEEDS)
@settings(deadline=None)
def test_the_operations_of_batchnorm(n_in: int, batch: int, seed: int) -> None:
    rng = generator(seed)
    inputs, slopes = rng.normal(size=(2, batch, n_in))
    gamma, beta = rng.normal(size=(2, n_in))
    Number.made = 0
    batch_norm(inputs, slopes, gamma, beta)
    counter = Counter()
    found = bn_step(counter, inputs, slopes, gamma, beta)
    sides = bounds.bn_operations(n_in, batch)
    assert sides.left == counter.made == Number.made
    assert sides.holds()

    # What was counted is BatchNorm, forwards and backwards.
    leaves = [tensor(each).requires_grad_() for each in (inputs, gamma, beta)]
    output = torch.nn.functional.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True, eps=1e-300)
    expected = [output, *torch.autograd.grad(output, leaves, tensor(slopes))]
    for ours, theirs in zip(found, expected, strict=True):
        theirs = theirs.detach().numpy()
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7 * max(1.0, float(np.abs(theirs).max())))


def test_how_the_counts_grow() -> None:
    """By differences of counts: 4 for each input and sample, 6 for each input and output, nothing squared."""

    def bnp(n_in: int, n_out: int, batch: int) -> float:
        return float(bounds.bnp_operations(n_in, n_out, batch).left)

    def bn(n_in: int, batch: int) -> float:
        return float(bounds.bn_operations(n_in, batch).left)

    assert bnp(20, 5, 30) - bnp(20, 5, 29) == 4 * 20
    assert bnp(20, 6, 30) - bnp(20, 5, 30) == 6 * 20 + 1
    assert bnp(21, 5, 30) - bnp(20, 5, 30) == bnp(41, 5, 30) - bnp(40, 5, 30) == 4 * 30 + 6 * 5 + 8
    assert bn(20, 31) - bn(20, 30) == bn(20, 61) - bn(20, 60) == 15 * 20
    assert bn(21, 30) - bn(20, 30) == bn(41, 30) - bn(40, 30) == 15 * 30 + 8
    # BNP is cheaper where 11N > 6n′, up to terms of lower order.
    assert bnp(500, 330, 200) < bn(500, 200) and bnp(500, 400, 200) > bn(500, 200)


def test_only_what_is_known_is_counted() -> None:
    counter = Counter()
    with pytest.raises(TypeError, match="power"):
        counter([1.0, 2.0]) ** 2
    with pytest.raises(TypeError, match=r"add \(accumulate\)"):
        np.add.accumulate(counter([1.0, 2.0]))
    assert counter.made == 0


def test_too_large_to_be_computed() -> None:
    with pytest.raises(ValueError, match="n_in times n_out or batch must be at most 33554432"):
        bounds.bnp_operations(1 << 20, 2, 1 << 10)
    with pytest.raises(ValueError, match="n_in times batch must be at most"):
        bounds.bn_operations(1 << 20, 1 << 10)
