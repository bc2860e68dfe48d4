"""Each of our layers against numpy: outputs in training and evaluation, and running statistics, over several steps."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.norms.cases import CASES, CHANNELS, inputs, make
from trimtab.norms import LpNorm

MOMENTUM = 0.3


def flat(x: Tensor) -> np.ndarray:
    return x.detach().reshape(*x.shape[:2], -1).numpy()


def affine(y: np.ndarray, layer: torch.nn.Module) -> np.ndarray:
    gamma, beta = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    return y * gamma[:, None] + beta[:, None]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(samples=st.integers(2, 9), space=st.lists(st.integers(1, 4), max_size=3), seed=st.integers(0, 999))
def test_training_and_evaluation(name: str, samples: int, space: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    case, layer = CASES[name], make(name, space=len(space), momentum=MOMENTUM)
    running = {key: np.full(CHANNELS, value) for key, value in layer.running.items()}
    for step in range(1, 7):  # as long as the schedule of BatchRenorm in these tests, and one more
        x = inputs(samples, CHANNELS, *space)
        expected, statistics = case.train(flat(x), running, step)
        np.testing.assert_allclose(flat(layer(x)), affine(expected, layer), rtol=1e-8, atol=1e-8)
        for key, value in statistics.items():
            running[key] = (1 - MOMENTUM) * running[key] + MOMENTUM * value
    assert running.keys() == statistics.keys()
    for key, value in running.items():
        np.testing.assert_allclose(layer.get_buffer(key).numpy(), value, rtol=1e-10, atol=1e-12)
    assert layer.num_batches_tracked.item() == 6

    layer.eval()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    x = inputs(samples, CHANNELS, *space)
    np.testing.assert_allclose(flat(layer(x)), affine(case.evaluate(flat(x), running), layer), rtol=1e-8, atol=1e-8)
    for key, value in layer.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


def test_the_cases_tell_the_formulas_apart() -> None:
    """A layer that did plain BatchNorm would not pass for another."""
    torch.manual_seed(0)
    x = inputs(7, CHANNELS, 2)
    outputs = {name: CASES[name].make(CHANNELS).double() for name in CASES}
    for layer in outputs.values():
        for _ in range(5):
            layer(x + 1)
    plain = torch.nn.functional.batch_norm(x, None, None, training=True)
    same = {name for name, layer in outputs.items() if torch.allclose(layer(x), plain, atol=1e-3)}
    assert same == {"noisy-bn", "bn-stopgrad"}


@pytest.mark.parametrize(("p", "norm"), [(1, 8 / 3), (2, math.sqrt(10)), (math.inf, 5)])
def test_lp_by_hand(p: float, norm: float) -> None:
    """(−1, 2, 5) has mean 2; the norms are those of the raw values."""
    y = LpNorm(1, p=p, eps=0.0).double()(torch.tensor([[-1.0], [2.0], [5.0]], dtype=torch.float64))
    torch.testing.assert_close(y.flatten(), torch.tensor([-3 / norm, 0, 3 / norm], dtype=torch.float64))
