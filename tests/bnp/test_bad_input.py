"""Bad input gets a clear error, and nothing is changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import trimtab
from tests.bnp.helpers import small_model
from trimtab import _torch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho": 1.0}, "rho must be a number in"),
        ({"rho": -0.1}, "rho"),
        ({"rho": float("nan")}, "rho"),
        ({"rho": "0.9"}, "rho"),
        ({"eps1": -1e-9}, "eps1 must be a finite number, 0 or larger"),
        ({"eps2": float("inf")}, "eps2"),
        ({"eps2": None}, "eps2"),
        ({"statistics": "mean"}, "statistics must be one of 'running', 'batch', not 'mean'"),
        ({"spatial": "pixel"}, "spatial must be one of"),
        ({"tokens": "words"}, "tokens must be one of"),
        ({"no_bias": "none"}, "no_bias must be one of"),
        ({"debias": "yes"}, "debias must be True or False"),
        ({"skip": "head"}, "no layer matches 'head'; the layers are '0', '2', '5', '7'"),
        ({"skip": ["0", "nothing*"]}, r"no layer matches 'nothing\*'"),
        ({"skip": "*"}, "no layer that BNP can precondition"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    model = small_model()
    with pytest.raises(ValueError, match=message):
        trimtab.BNP(model, **options)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="momentum"):
        trimtab.BNP(small_model(), momentum=0.9)


@pytest.mark.parametrize("model", [None, "resnet", [nn.Linear(2, 2)], torch.randn(3)], ids=lambda m: type(m).__name__)
def test_not_a_module(model: Any) -> None:
    with pytest.raises(TypeError, match=r"BNP takes a torch\.nn\.Module"):
        trimtab.BNP(model)
    with pytest.raises(TypeError, match=r"without_batchnorm takes a torch\.nn\.Module"):
        trimtab.without_batchnorm(model)


def test_no_supported_layer() -> None:
    with pytest.raises(ValueError, match="no layer that BNP can precondition"):
        trimtab.BNP(nn.Sequential(nn.ReLU(), nn.GRU(2, 2)))


def test_site_statistics_of_a_transposed_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ConvTranspose2d(1, 1, 3))
    with pytest.raises(ValueError, match="Layer '1': spatial='site' is not defined for ConvTranspose2d"):
        trimtab.BNP(model, spatial="site")
    assert not model[0]._forward_hooks
    trimtab.BNP(model, spatial="site", skip="1")


@pytest.mark.parametrize("fast", [True, False])
def test_a_sparse_gradient_is_refused_before_anything_is_changed(fast: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    bnp = trimtab.BNP(model, fast=fast)
    model(torch.randn(5, 3)).sum().backward()
    bnp.step()
    model.zero_grad()
    model(torch.randn(5, 3)).sum().backward()
    model[1].weight.grad = model[1].weight.grad.to_sparse()
    before = [parameter.grad.to_dense().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"A gradient of layer '1' is sparse_coo.*skip"):
        bnp.step()
    assert all(torch.equal(p.grad.to_dense(), b) for p, b in zip(model.parameters(), before, strict=True))
    assert [layer.steps for layer in bnp.report().layers] == [1, 1]


@pytest.mark.parametrize(
    ("gradient", "problem"),
    [
        (lambda grad: grad.to_sparse(), "is sparse_coo"),
        (lambda grad: grad.long(), "is int64"),
        (lambda grad: grad[:1].expand(grad.shape), "is expanded"),
        (lambda grad: torch.ones(3), "has 3 numbers instead of 2"),
        (lambda grad: torch._efficientzerotensor(grad.shape), "zeros without memory"),
    ],
)
@pytest.mark.parametrize("fast", [True, False])
def test_a_bias_gradient_that_cannot_be_changed_is_refused(
    fast: bool, gradient: Callable[[torch.Tensor], torch.Tensor], problem: str
) -> None:
    """In the first step, and where the last step's way to the kernel could be taken."""
    layer = nn.Linear(4, 2)
    with trimtab.BNP(layer, fast=fast) as bnp:
        for _ in range(2):
            layer.zero_grad()
            layer(torch.randn(5, 4)).square().sum().backward()
            assert layer.weight.grad is not None and layer.bias.grad is not None
            before, good = layer.weight.grad.clone(), layer.bias.grad
            layer.bias.grad = layer.bias.grad.clone()
            if good.layout is gradient(good).layout:
                layer.bias.grad.data = gradient(good)
            else:
                layer.bias.grad = gradient(good)
            with pytest.raises(ValueError, match=f"{problem}.*skip"):
                bnp.step()
            assert torch.equal(layer.weight.grad, before)
            layer.bias.grad = good
            bnp.step()


def test_a_step_within_autocast_rounds_nothing() -> None:
    results = []
    for within in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(40, 3)
        with trimtab.BNP(layer, fast=False) as bnp:
            layer(1 + torch.randn(5, 40)).square().sum().backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=within):
                bnp.step()
        results.append(layer.bias.grad)
    torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_what_jit_has_compiled() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(TypeError, match=r"cannot watch what torch.jit has compiled: make it for the model before that"):
        trimtab.BNP(scripted)


@pytest.mark.parametrize("x", [torch.eye(3).to_sparse(), torch.eye(3, dtype=torch.complex64)], ids=["sparse", "i"])
def test_moments_of_what_has_none(x: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"takes a dense tensor of real numbers"):
        trimtab.Moments.of(x, columns=-1)


def test_moments_of_eight_bits() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    moments = trimtab.Moments.of(x.to(torch.float8_e4m3fn), columns=-1)
    assert moments.mean.tolist() == [2.0, 3.0] and moments.variance.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("function", [lambda layer, x: None, lambda: None, lambda a, b, c, d, e: None])
def test_a_registered_function_with_other_arguments(function: Any) -> None:
    with pytest.raises(TypeError, match=r"register_layer decorates a function \(layer, x, y, options\) -> Rows"):
        trimtab.register_layer(nn.Bilinear)(function)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch.func itself uses it
@pytest.mark.parametrize("fast", [True, False])
def test_second_derivatives_by_torch_func(fast: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(3)
    expected = torch.func.hessian(lambda x: model(x).sum())(x)
    bnp = trimtab.BNP(model, fast=fast)
    assert torch.equal(torch.func.hessian(lambda x: model(x).sum())(x), expected)
    bnp.detach()


def test_a_torch_that_does_not_tell_backwards_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch, "TELLS_BACKWARDS_APART", False)
    with pytest.warns(trimtab.TrimtabWarning, match="does not tell one backward from another"):
        trimtab.BNP(small_model())
