"""bnp Prop. 7 and Sec. 3.4: against real steps of BatchNorm and of BNP."""

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
