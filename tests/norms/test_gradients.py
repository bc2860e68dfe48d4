"""Gradients and second derivatives: by finite differences, or with the constants of a formula held fixed."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

from tests.norms.cases import CASES, CHANNELS, inputs, make
from trimtab.norms import BatchRenorm, NoisyBatchNorm, RunningNorm, StopGradientBatchNorm

# Where the gradient leaves something out on purpose, finite differences of the output do not apply.
DIFFERENTIABLE = sorted(CASES.keys() - {"brn", "bn-stopgrad"})
SHAPES = [(5, CHANNELS), (3, CHANNELS, 2), (2, CHANNELS, 2, 1), (2, CHANNELS, 1, 2, 1)]


def check(layer: RunningNorm, x: Tensor, *, entry_by_entry: bool = False) -> None:
    """First and second derivatives by the input, γ and β; the second along random directions, or entry by entry."""
    state = {name: value.clone() for name, value in layer.named_buffers()}

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same noise each time
        buffers = {name: value.clone() for name, value in state.items()}  # each call at the same step
        return functional_call(layer, ({"weight": weight, "bias": bias}, buffers), (x,))

    arguments = tuple(t.detach().requires_grad_() for t in (x, layer.weight, layer.bias))
    assert gradcheck(function, arguments)
    assert gradgradcheck(function, arguments, fast_mode=not entry_by_entry)


@pytest.mark.parametrize("entry_by_entry", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_training(name: str, shape: tuple[int, ...], entry_by_entry: bool) -> None:
    torch.manual_seed(1)
    check(make(name), inputs(*shape), entry_by_entry=entry_by_entry)


@pytest.mark.parametrize("name", CASES)
def test_evaluation(name: str) -> None:
    torch.manual_seed(1)
    layer = make(name)
    layer(inputs(5, CHANNELS, 2))
    check(layer.eval(), inputs(3, CHANNELS, 2))


def test_noise_is_a_constant_of_the_step() -> None:
    torch.manual_seed(1)
    check(NoisyBatchNorm(CHANNELS).double(), inputs(4, CHANNELS, 2))


def test_renorm_at_its_limits() -> None:
    """With r and d at their limits they do not depend on the input, and finite differences apply."""
    torch.manual_seed(1)
    layer = BatchRenorm(CHANNELS, r_max=1.1, d_max=0.1, warmup=0, r_steps=0, d_steps=0).double()
    x = inputs(6, CHANNELS)
    layer.running_mean.copy_(x.mean(0) + torch.tensor([50.0, -50, 50, -50]))
    layer.running_var.copy_(x.var(0) * torch.tensor([9.0, 9, 1 / 9, 1 / 9]))
    check(layer, x)


def test_renorm_passes_no_gradient_through_r_and_d() -> None:
    """Inside the limits: the gradient of (x − μ_B)/σ_B · r + d with the values of r and d as constants."""
    torch.manual_seed(1)
    layer = BatchRenorm(CHANNELS, warmup=0, r_steps=0, d_steps=0).double()
    x = inputs(6, CHANNELS, 2).requires_grad_()
    layer.running_mean.copy_(x.detach().mean((0, 2)) + 0.5)
    layer.running_var.copy_(x.detach().var((0, 2)) * 1.7)
    sigma = torch.sqrt(layer.running_var + layer.eps)
    r = torch.sqrt(x.detach().var((0, 2), correction=0) + layer.eps) / sigma
    d = (x.detach().mean((0, 2)) - layer.running_mean) / sigma
    plain = torch.nn.functional.batch_norm(x, None, None, training=True, eps=layer.eps)
    expected = plain * r[:, None] + d[:, None]
    y = layer(x)
    torch.testing.assert_close(y, expected)
    v = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad(out, x, v)[0] for out in (y, expected))
    torch.testing.assert_close(ours, theirs)


def test_stop_gradient_takes_the_statistics_for_constants() -> None:
    """∂L/∂x = γ/σ_B · ∂L/∂y."""
    torch.manual_seed(1)
    layer = make("bn-stopgrad")
    assert isinstance(layer, StopGradientBatchNorm)
    x = inputs(6, CHANNELS, 2).requires_grad_()
    y = layer(x)
    v = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, v)
    sigma = torch.sqrt(x.detach().var((0, 2), correction=0) + layer.eps)
    torch.testing.assert_close(gradient, (layer.weight.detach() / sigma)[:, None] * v)


@pytest.mark.parametrize("name", ["l1", "linf"])
def test_the_norms_with_corners(name: str) -> None:
    """d n_1/dx = sign(x)/M; d n_∞/dx is the sign at the largest entry: the gradient by the quotient rule."""
    torch.manual_seed(1)
    layer = CASES[name].make(1).double()
    x = inputs(7, 1).requires_grad_()
    v = torch.randn(7, 1, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(layer(x), x, v)
    a, n = x.detach(), {"l1": x.detach().abs().mean(), "linf": x.detach().abs().max()}[name] + layer.eps
    dn = {"l1": a.sign() / 7, "linf": a.sign() * (a.abs() == a.abs().max())}[name]
    expected = (v - v.mean()) / n - (v * (a - a.mean())).sum() / n**2 * dn
    torch.testing.assert_close(gradient, expected)
