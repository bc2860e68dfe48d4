"""Statements that the papers make in passing, each by a computation of its own."""

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.theory.mean_field import max_learning_rate


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_momentum_descent_on_a_quadratic(momentum: float) -> None:
    """Meanfield, eq. 7: it converges below 2(1 + μ)/λ_max and diverges above."""
    for share, converges in ((0.99, True), (1.01, False)):
        rate, x, v = share * max_learning_rate(3.0, momentum), 1.0, 0.0
        for _ in range(3000):
            v = momentum * v - rate * 3.0 * x
            x += v
        assert (abs(x) < 1e-3) == converges


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_eigenvalues_of_white_inputs(alpha: float) -> None:
    """Regularization, Sec. 4.1: they lie between (√α − 1)² and (√α + 1)²."""
    x = np.random.default_rng(0).standard_normal((int(500 * alpha), 500)) / np.sqrt(500)
    values = np.linalg.svd(x, compute_uv=False) ** 2
    low, high = (np.sqrt(alpha) - 1) ** 2, (np.sqrt(alpha) + 1) ** 2
    assert values.max() == pytest.approx(high, abs=0.05 * (high - low))
    assert values.min() == pytest.approx(low, abs=0.05 * (high - low))


def test_gradients_under_batchnorm_do_not_know_the_scale_of_weights() -> None:
    """Ba et al., cited in regularization, Sec. 6: the input's gradient stays, the weight's is divided by c."""
    torch.manual_seed(0)
    layer, norm = nn.Linear(6, 5, bias=False).double(), nn.BatchNorm1d(5, eps=1e-14).double()
    x, found = torch.randn(9, 6).double().requires_grad_(), []
    for _ in range(2):
        found.append(torch.autograd.grad(norm(layer(x)).pow(3).sum(), [x, layer.weight]))
        with torch.no_grad():
            layer.weight *= 7
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1] / 7)
