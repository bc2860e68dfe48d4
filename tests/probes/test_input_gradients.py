"""Gradients at neighbouring inputs, against autograd sample by sample, and where the answer is known."""

import math

import pytest
import torch
from torch import nn

from tests.probes.untouched import untouched
from trimtab.probes import gradient_correlation, neighbours


def test_against_autograd_sample_by_sample() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    x = neighbours(
        torch.randn(5).double(), torch.randn(5).double(), 8
    )  # an odd number has a point at the mean, on a kink
    torch.testing.assert_close((x[1:] - x[:-1]).norm(dim=1), ((x[-1] - x[0]).norm() / 7).expand(7))
    with untouched(model):
        found = gradient_correlation(model, x, output=2)
    z = model[0](x)
    mean, scale = z.mean(0).detach(), (z.var(0, correction=0).detach() + 1e-5).sqrt()
    gradients = []
    for one in x:
        leaf = one.clone().requires_grad_()
        model[4](((model[0](leaf) - mean) / scale).relu())[2].backward()
        gradients.append(leaf.grad)
    for i, cosine in enumerate(found.pairs):
        assert cosine == pytest.approx(float(torch.cosine_similarity(gradients[i], gradients[i + 1], 0)))
    assert found.mean == pytest.approx(sum(found.pairs) / 7)


def test_linear_networks_have_one_gradient_and_a_product_of_signs_has_opposite_ones() -> None:
    assert gradient_correlation(nn.Linear(4, 2), torch.randn(5, 4)).mean == pytest.approx(1)

    class Absolute(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w * x.abs().sum(1, keepdim=True)

    there = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [2.0, 2.0], [0.0, 0.0]])
    found = gradient_correlation(Absolute(), there)
    assert found.pairs[:2] == pytest.approx((-1, 1)) and math.isnan(found.pairs[2]) and found.mean == pytest.approx(0)


def test_bad_input() -> None:
    model = nn.Linear(4, 2)
    for words, call in (
        ("inputs must be", lambda: gradient_correlation(model, torch.randn(1, 4))),
        ("inputs must be", lambda: gradient_correlation(model, torch.ones(3, 4, dtype=torch.int64))),
        (
            "output must be a number from 0 to 1, not 2",
            lambda: gradient_correlation(model, torch.randn(3, 4), output=2),
        ),
        ("statistics must be", lambda: gradient_correlation(model, torch.randn(3, 4), statistics="x")),
        ("one shape", lambda: neighbours(torch.zeros(3), torch.zeros(4), 5)),
        ("count must be", lambda: neighbours(torch.zeros(3), torch.zeros(3), 1)),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_inputs_that_are_not_finite_have_no_correlation() -> None:
    with pytest.raises(ValueError, match=r"inputs must be finite numbers"):
        gradient_correlation(torch.nn.Linear(3, 2), torch.full((4, 3), float("nan")))
