"""bnp Props. 2, 9 and 10, Theorem 3, Lemma 8: against autograd's Hessian and torch's convolution, in float64."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.functional import hessian

from tests.theory.bounds_cases import SEEDS, Array, batches, generator, tensor
from trimtab.theory import bounds


def rest_of_network(seed: int, outputs: int = 3) -> Callable[[Tensor], Tensor]:
    """The loss of each sample as a function of one unit's activation: a second layer, softmax, one class each."""
    rng = generator(seed)
    weight, offset, kind = (
        tensor(rng.normal(size=outputs)),
        tensor(rng.normal(size=outputs)),
        int(rng.integers(outputs)),
    )
    return lambda a: -torch.log_softmax(torch.tanh(a)[..., None] * weight + offset, -1)[..., kind]


def second_derivatives(loss: Callable[[Tensor], Tensor], activations: Tensor) -> Array:
    return torch.stack([hessian(loss, a) for a in activations]).numpy()


@given(batches(), SEEDS)
@settings(max_examples=30, deadline=None)
def test_hessian_of_a_dense_unit(inputs: Array, seed: int) -> None:
    loss, w = rest_of_network(seed), tensor(0.3 * generator(seed).normal(size=inputs.shape[1] + 1))
    rows = torch.cat([torch.ones(len(inputs), 1, dtype=torch.float64), tensor(inputs)], 1)
    measured = hessian(lambda v: loss(rows @ v).mean(), w).numpy()
    curvature = second_derivatives(loss, rows @ w)
    assert bounds.dense_hessian(measured, inputs, curvature).holds()

    mean, sigma = rows[:, 1:].mean(0), rows[:, 1:].std(0, correction=0)
    normalized = torch.cat([rows[:, :1], (rows[:, 1:] - mean) / sigma], 1)
    z = torch.cat([w[:1] + mean @ w[1:], w[1:] * sigma])  # P⁻¹ŵ
    torch.testing.assert_close(normalized @ z, rows @ w)
    in_z = hessian(lambda v: loss(normalized @ v).mean(), z).numpy()
    sides = bounds.preconditioned_hessian(measured, inputs, curvature)
    assert sides.holds()
    np.testing.assert_allclose(sides.right, in_z, rtol=1e-7, atol=1e-9 * max(1.0, sides.scale))


def test_batchnorm_further_on_breaks_the_diagonal() -> None:
    """A sample's loss then depends on all activations."""
    inputs, w = generator(0).normal(size=(6, 2)), tensor(np.array([0.1, 1.0, -0.5]))
    rows = tensor(np.column_stack([np.ones(6), inputs]))
    target = tensor(generator(1).normal(size=6))

    def loss(activations: Tensor) -> Tensor:
        standard = (activations - activations.mean()) / activations.std(correction=0)
        return (standard - target).square().mean()

    measured = hessian(lambda v: loss(rows @ v), w).numpy()
    full = hessian(loss, rows @ w).numpy()
    assert not bounds.dense_hessian(measured, inputs, 6 * np.diag(full)).holds()
    np.testing.assert_allclose(rows.numpy().T @ full @ rows.numpy(), measured, atol=1e-12)  # with all of S it holds


@st.composite
def images(draw: st.DrawFn) -> tuple[Array, int]:
    kernel = draw(st.sampled_from([1, 3, 5]))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(2, 6)), draw(st.integers(2, 6)))
    return draw(st.floats(-2, 2)) + generator(draw(SEEDS)).normal(size=shape), kernel


@given(images(), SEEDS)
@settings(deadline=None)
def test_a_convolution_is_a_product(image: tuple[Array, int], seed: int) -> None:
    inputs, kernel = image
    weight, bias = generator(seed).normal(size=(inputs.shape[1], kernel, kernel)), 0.7
    outputs = F.conv2d(tensor(inputs), tensor(weight)[None], tensor([bias]), padding="same")[:, 0].numpy()
    assert bounds.convolution_as_product(outputs, inputs, weight, bias).holds()


@given(images())
@settings(deadline=None)
def test_unfolding_is_torchs_up_to_the_order(image: tuple[Array, int]) -> None:
    inputs, kernel = image
    ours = bounds.unfold(inputs, kernel)
    theirs = F.unfold(tensor(inputs), kernel, padding=kernel // 2).numpy()  # (N, c·k·k, r·s), rows first
    samples, channels, height, width = inputs.shape
    ordered = theirs.reshape(samples, channels, kernel, kernel, height, width).transpose(0, 5, 4, 1, 3, 2)
    np.testing.assert_array_equal(ours, ordered.reshape(ours.shape))


@given(images(), SEEDS)
@settings(max_examples=25, deadline=None)
def test_hessian_of_a_convolution(image: tuple[Array, int], seed: int) -> None:
    inputs, kernel = image
    samples, channels, height, width = inputs.shape
    rng = generator(seed)
    w = tensor(0.3 * rng.normal(size=1 + channels * kernel**2))
    mixing = tensor(rng.normal(size=(3, height * width)) / (height * width) ** 0.5)

    def per_sample(v_a: Tensor) -> Tensor:
        return torch.logsumexp(mixing @ torch.tanh(v_a), 0)  # couples all positions of a sample

    def activations(v: Tensor) -> Tensor:
        weight = v[1:].view(1, channels, kernel, kernel).transpose(2, 3)
        a = F.conv2d(tensor(inputs), weight, v[:1], padding="same")[:, 0]
        return a.transpose(1, 2).reshape(samples, -1)

    measured = hessian(lambda v: torch.stack([per_sample(a) for a in activations(v)]).mean(), w).numpy()
    blocks = torch.stack([hessian(per_sample, a) for a in activations(w)]).numpy()
    assert bounds.convolution_hessian(measured, inputs, kernel, blocks).holds()
    diagonal = np.stack([np.diag(np.diag(block)) for block in blocks])
    if height * width > 4 and kernel > 1:  # S is diagonal by blocks, and no more
        assert not bounds.convolution_hessian(measured, inputs, kernel, diagonal).holds()


@given(images())
@settings(deadline=None)
def test_one_mean_per_channel_is_near_that_of_every_site(image: tuple[Array, int]) -> None:
    inputs, kernel = image
    sides = bounds.site_means(inputs, kernel)
    sites = F.unfold(tensor(inputs), kernel, padding=kernel // 2).mean((0, 2)).reshape(inputs.shape[1], kernel, kernel)
    error = np.abs(sites.numpy() - inputs.mean((0, 2, 3))[:, None, None])
    np.testing.assert_allclose(sides.left, error.transpose(0, 2, 1).ravel(), atol=1e-12)
    assert not sides.broken
    assert sides.holds()


def test_the_error_of_the_mean_is_reached() -> None:
    """A constant map: every lost entry counts in full at the corner sites."""
    sides = bounds.site_means(np.ones((1, 1, 5, 7)), 3)
    assert float(np.max(sides.left)) == pytest.approx(float(np.max(sides.right)))


def test_other_padding_may_double_the_error() -> None:
    inputs = -np.ones((1, 1, 9, 9))
    inputs[..., 1:-1, 1:-1] = 0
    inputs[..., 0, :] = inputs[..., :, 0] = 1  # what replication brings in again, opposite to what is lost
    padded = F.pad(tensor(inputs), (1, 1, 1, 1), mode="replicate")
    error = np.abs(F.unfold(padded, 3).mean((0, 2)).numpy() - inputs.mean())
    assert error.max() > float(np.max(bounds.site_means(inputs, 3).right))


@pytest.mark.parametrize("by", ["channel", "pixel"])
def test_inputs_normalized_by_channel_or_by_pixel_are_torchs(by: Literal["channel", "pixel"]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 3 + torch.arange(1, 3).view(-1, 1, 1) * torch.randn(8, 2, 4, 5, generator=generator, dtype=torch.float64)
    x[:, 0, 0, 0] = 2.0  # a pixel that is the same in all samples
    if by == "channel":
        expected = torch.nn.functional.batch_norm(x, None, None, training=True, eps=1e-30)
    else:
        flat = torch.nn.functional.batch_norm(x.flatten(1)[:, 1:], None, None, training=True, eps=1e-30)
        expected = torch.cat([torch.zeros(8, 1, dtype=torch.float64), flat], 1).view_as(x)
    np.testing.assert_allclose(bounds.normalized_input(x.numpy(), by), expected.numpy(), atol=1e-12)


def test_what_inputs_are_normalized_by() -> None:
    with pytest.raises(ValueError, match="by must be 'channel' or 'pixel', not 'row'"):
        bounds.normalized_input(np.ones((2, 1, 2, 2)), "row")  # type: ignore[arg-type]
