"""Every kind of layer, over sequences of steps, against the dense matrix PPᵀ."""

import os
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import trimtab
from tests.bnp.oracle import Reference, extended_matrix, is_transposed, weights_by_group
from tests.bnp.strategies import convolution_case, linear_case, options, tensor

Case = tuple[nn.Module, list[list[tuple[int, ...]]]]
CASES = st.one_of(linear_case(), convolution_case(transposed=False), convolution_case(transposed=True))
DRAWS = int(os.environ.get("TRIMTAB_DRAWS", "150"))  # of each of two tests
thorough = settings(max_examples=DRAWS, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check_steps(layer: Any, shapes: list[list[tuple[int, ...]]], chosen: dict[str, Any], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference = Reference(layer, **{name: value for name, value in chosen.items() if name != "fast"})
    bnp = trimtab.BNP(layer, **chosen)
    for step in shapes:
        inputs = [tensor(shape, generator) for shape in step]
        layer.zero_grad()
        for x in inputs:
            y = layer(x)
            (y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum().backward()
        grads = layer.weight.grad.clone(), None if layer.bias is None else layer.bias.grad.clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", trimtab.TrimtabWarning)
            bnp.step()
        with torch.no_grad():
            weight, bias = reference.step(inputs, *grads)
        np.testing.assert_allclose(layer.weight.grad.numpy(), weight, rtol=1e-9, atol=1e-11)
        if bias is not None:
            np.testing.assert_allclose(layer.bias.grad.numpy(), bias, rtol=1e-9, atol=1e-9)
    bnp.detach()


@thorough
@given(case=CASES, chosen=options(), seed=st.integers(0, 2**31))
def test_gradients_equal_the_dense_preconditioner(case: Case, chosen: dict[str, Any], seed: int) -> None:
    layer, shapes = case
    if is_transposed(layer):
        chosen["spatial"] = "channel"
    check_steps(layer, shapes, chosen, seed)


@thorough
@given(case=convolution_case(transposed=False), seed=st.integers(0, 2**31))
def test_site_statistics_of_every_geometry(case: Case, seed: int) -> None:
    check_steps(*case, {"spatial": "site", "rho": 0.0}, seed)


@settings(max_examples=40, deadline=None)
@given(case=CASES, seed=st.integers(0, 2**31))
def test_the_oracle_matrix_makes_the_layers_output(case: Case, seed: int) -> None:
    """Lemma 8: â = 𝓗 ŵ. It says that the oracle's columns are the right ones."""
    layer: Any = case[0]
    x = tensor(case[1][0][0], torch.Generator().manual_seed(seed))
    matrix, weights = extended_matrix(layer, x), weights_by_group(layer, layer.weight)
    y = layer(x).detach()
    channel = -1 if isinstance(layer, nn.Linear) else -1 - len(layer.kernel_size)
    outputs = y.movedim(channel, -1).reshape(-1, y.shape[channel]).numpy()
    expected = np.concatenate([h @ w.T for h, w in zip(matrix, weights, strict=True)], axis=1)
    if layer.bias is not None:
        expected = expected + layer.bias.detach().numpy()
    np.testing.assert_allclose(outputs, expected, atol=1e-12)


@pytest.mark.parametrize("padding", [1, "same"])
def test_channels_last_gradients_are_changed_in_place(padding: int | str) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, 3, padding=padding).double().to(memory_format=torch.channels_last)
    check_steps(layer, [[(2, 4, 5, 5)]], {}, seed=1)


def test_transposed_zeros_against_the_true_columns() -> None:
    """Kernel 4, stride 2, no padding: τμ is far nearer to the columns' true mean than μ is."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(1, 1, 4, stride=2).double()
    x = 1 + 0.1 * torch.randn(8, 1, 8, 8, dtype=torch.float64)
    true = extended_matrix(layer, x)[0]
    mean, variance, rows = Reference(layer).batch([x])
    assert rows == len(true)
    np.testing.assert_allclose(mean, true.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance, true.var(0), rtol=1e-6)


def test_cropping_transposed_convolution_keeps_the_inputs_statistics() -> None:
    """Where padding crops the output below the input, no zeros are inserted and τ stays 1."""
    layer = nn.ConvTranspose1d(2, 1, 3, padding=2).double()
    check_steps(layer, [[(3, 2, 8)]], {"rho": 0.0}, seed=0)
    x = 3 + torch.randn(64, 2, 8, dtype=torch.float64)
    true = extended_matrix(layer, x)[0].mean(0).reshape(2, 3).mean(1)
    mean = x.mean((0, 2)).numpy()
    np.testing.assert_allclose(true, mean, rtol=0.03)
    assert (np.abs(true - mean * 8 / 6) > 0.5).all()  # what τ = 8/6 would give


def test_transposed_convolutions_of_several_sizes_are_pooled() -> None:
    """One forward inserts zeros and another crops: τ is that of all positions together."""
    layer = nn.ConvTranspose1d(2, 1, 1, stride=3, padding=1).double()  # 2 → 2, 8 → 20, 1 → 0 and so on
    check_steps(layer, [[(3, 2, 2), (1, 2, 8)]], {"rho": 0.0}, seed=0)
    layer = nn.ConvTranspose1d(2, 1, 5, stride=2, padding=3).double()  # 2 → 1, 8 → 13
    check_steps(layer, [[(3, 2, 2), (2, 2, 8)]], {"rho": 0.0}, seed=0)
