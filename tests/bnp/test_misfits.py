"""Rows that cannot be those of a layer: one sentence that names it, once, and it keeps its plain gradient."""

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.bnp.helpers import gradients
from trimtab.bnp import Moments, Rows, layers


class Layer(nn.Module):
    """An affine map that BNP does not know until a test registers it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t() + self.bias


@pytest.fixture(autouse=True)
def _forget_registrations() -> Iterator[None]:
    before = dict(layers._TYPES)
    yield
    layers._TYPES.clear()
    layers._TYPES.update(before)


def rows(mean: Any, variance: Any = None, **numbers: Any) -> Rows:
    told = {"count": 5, "samples": 5, "positions": 5, **numbers}
    variance = mean if variance is None else variance
    return Rows(Moments(told["count"], mean, variance), samples=told["samples"], positions=told["positions"])


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "too many columns": (lambda: rows(torch.ones(60)), r"columns of shape \(60,\), but its weight has 6 inputs"),
    "too few": (lambda: rows(torch.ones(2)), r"columns of shape \(2,\), but its weight has 6 inputs"),
    "none": (lambda: rows(torch.ones(0)), r"columns of shape \(0,\)"),
    "a number": (lambda: rows(torch.ones(())), r"columns of shape \(\)"),
    "two dimensions": (lambda: rows(torch.ones(6, 3)), r"columns of shape \(6, 3\)"),
    "variance of another shape": (lambda: rows(torch.ones(6), torch.ones(5)), r"columns of shape \(5,\)"),
    "integers": (lambda: rows(torch.ones(6, dtype=torch.int64)), "not tensors of floating-point numbers"),
    "complex": (lambda: rows(torch.ones(6, dtype=torch.complex64)), "not tensors of floating-point numbers"),
    "sparse": (lambda: rows(torch.ones(6).to_sparse()), "not tensors of floating-point numbers"),
    "a list": (lambda: rows([1.0] * 6), "not tensors of floating-point numbers"),
    "meta": (lambda: rows(torch.ones(6, device="meta")), "another device"),
    "no samples": (lambda: rows(torch.ones(6), samples=0), "samples=0, which is not a positive number"),
    "negative positions": (lambda: rows(torch.ones(6), positions=-3), "positions=-3, which is not"),
    "count not a number": (lambda: rows(torch.ones(6), count=float("nan")), "count=nan, which is not"),
    "samples None": (lambda: rows(torch.ones(6), samples=None), "samples=None, which is not"),
    "two numbers of samples": (lambda: rows(torch.ones(6), samples=torch.ones(2)), "samples=tensor"),
    "negative samples": (lambda: rows(torch.ones(6), samples=torch.tensor(-1)), "samples=tensor"),
    "far too many": (lambda: rows(torch.ones(6), positions=10**400), "positions=10000"),
    "negative variances": (lambda: rows(torch.ones(6), -torch.ones(6)), "negative variances"),
    "zeros a word": (lambda: Rows(Moments(5, torch.ones(6), torch.ones(6)), 5, 5, "6"), "zeros='6'"),  # type: ignore[arg-type]
    "zeros nan": (lambda: Rows(Moments(5, torch.ones(6), torch.ones(6)), 5, 5, float("nan")), "zeros=nan"),  # type: ignore[arg-type]
    "nothing": (lambda: None, "returned NoneType instead of Rows"),
    "moments": (lambda: Moments(5, torch.ones(6), torch.ones(6)), "returned Moments instead of Rows"),
    "rows of nothing": (lambda: Rows(None, 5, 5), "returned Rows instead of Rows of Moments"),  # type: ignore[arg-type]
}


def left_alone(net: nn.Module, fast: bool) -> str:
    """What is said when a network trains; its layer '0' keeps the gradient that it has without BNP."""
    x = torch.randn(5, 6)
    twin = copy.deepcopy(net)
    twin(x).square().sum().backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with trimtab.BNP(net, fast=fast) as bnp:
            for _ in range(2):
                net.zero_grad()
                net(x).square().sum().backward()
                net(x).square().sum().backward()
                bnp.step()
            report = str(bnp.report())
    said = [str(one.message) for one in caught]
    assert len(said) == 1, said
    torch.testing.assert_close(gradients(net[0]), [2 * g for g in gradients(twin[0])])  # type: ignore[index]
    assert said[0].removeprefix("BNP leaves these layers alone: '0' (").removesuffix(").") in report.replace("\n", " ")
    return said[0]


@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "plain"])
@pytest.mark.parametrize("name", WRONG)
def test_rows_that_a_registered_function_gets_wrong(name: str, fast: bool) -> None:
    returned, sentence = WRONG[name]
    trimtab.register_layer(Layer)(lambda layer, x, y, options: returned())
    net = nn.Sequential(Layer(), nn.Tanh(), nn.Linear(4, 2))
    said = left_alone(net, fast)
    assert re.match(rf"BNP leaves these layers alone: '0' \(.*{sentence}", said), said


UNITS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "nothing": lambda layer, weight: None,
    "three dimensions": lambda layer, weight: weight.view(1, 4, 6),
    "a copy": lambda layer, weight: weight.clone().view(1, 4, 6, 1),
    "fewer weights": lambda layer, weight: weight[:, :3].unsqueeze(0).unsqueeze(3),
    "more weights": lambda layer, weight: weight.expand(2, 4, 6).unsqueeze(3),
    "an error": lambda layer, weight: weight.view(7, 1, 1, -1),
    "another error": lambda layer, weight: {}["no"],
}


@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "plain"])
@pytest.mark.parametrize("name", UNITS)
def test_units_that_are_no_view_of_the_weight(name: str, fast: bool) -> None:
    register = trimtab.register_layer(Layer, view=UNITS[name])
    register(lambda layer, x, y, options: Rows(Moments.of(x, columns=-1), samples=len(x), positions=len(x)))
    said = left_alone(nn.Sequential(Layer(), nn.Tanh(), nn.Linear(4, 2)), fast)
    assert "is not laid out as the view of its type says" in said


@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "plain"])
def test_inputs_and_outputs_swapped(fast: bool) -> None:
    register = trimtab.register_layer(Layer, view=lambda layer, weight: weight.t().view(1, 6, 4, 1))
    register(lambda layer, x, y, options: Rows(Moments.of(x, columns=-1), samples=len(x), positions=len(x)))
    said = left_alone(nn.Sequential(Layer(), nn.Tanh(), nn.Linear(4, 2)), fast)
    assert "is not laid out" in said or "but its weight has 4 inputs" in said


@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "plain"])
@pytest.mark.parametrize("make", [lambda: nn.Linear(0, 3), lambda: nn.Linear(3, 0)], ids=["no inputs", "no outputs"])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_layers_without_weights(make: Callable[[], nn.Linear], fast: bool) -> None:
    """They are left alone, and nothing else happens to them."""
    layer = make()

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.empty, self.full = layer, nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.full(x) + self.empty(x[:, : layer.in_features]).sum()  # type: ignore[no-any-return]

    net = Two()
    with pytest.warns(trimtab.TrimtabWarning, match="'empty' \\(its weight is empty\\)"):
        bnp = trimtab.BNP(net, fast=fast)
    net(torch.randn(4, 3)).sum().backward()
    bnp.step()
    bnp.detach()


def test_three_runs_of_a_subclass_are_equal_to_the_bit() -> None:
    """With more columns than its input has, the kernel once read whatever lay behind the statistics."""

    class CoordConv(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            rows = torch.linspace(-1, 1, x.shape[2]).view(1, 1, -1, 1).expand(len(x), 8, *x.shape[2:])
            return super().forward(torch.cat([x, rows], 1))

    def run() -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(CoordConv(11, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        with trimtab.BNP(net).attach(optimizer):
            for _ in range(15):
                garbage = [torch.full((1000,), float("nan")) for _ in range(20)]  # to lie where it was read
                del garbage
                x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    first = run()
    assert first == run() == run()
    assert all(value < 100 for value in first)


def test_the_report_on_a_layer_with_another_weight() -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    with trimtab.BNP(net) as bnp:
        net(torch.randn(5, 4)).sum().backward()
        bnp.step()
        net[0].weight = nn.Parameter(torch.randn(3, 6))
        assert "Linear" in str(bnp.report())
        net.to("meta")
        assert "Linear" in str(bnp.report())


def test_a_problem_that_is_over() -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    x = torch.randn(5, 4)
    with trimtab.BNP(net) as bnp:
        net(x).sum().backward()
        net[0].weight.data = torch.randn(3, 2)
        with pytest.warns(trimtab.TrimtabWarning, match="its gradient has shape"):
            bnp.step()
        assert "its gradient has shape" in str(bnp.report())
        net[0].weight.data = torch.randn(3, 4)
        net.zero_grad()
        net(x).sum().backward()
        plain = net[0].weight.grad.clone()
        bnp.step()
        assert not torch.equal(net[0].weight.grad, plain)
        assert "its gradient has shape" not in str(bnp.report())
