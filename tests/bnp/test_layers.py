"""The registry: layers of a user's own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.bnp.helpers import assert_same, gradients
from trimtab.bnp import Options, input_first, layers


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(layers._TYPES)
    yield
    layers._TYPES.clear()
    layers._TYPES.update(before)


class Conv1D(nn.Module):
    """The linear layer of GPT-2: its weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weight + self.bias


def test_a_type_is_added_with_one_decorated_function() -> None:
    with pytest.raises(ValueError, match="no layer"):
        trimtab.BNP(Conv1D(3, 2))

    @trimtab.register_layer(Conv1D, view=input_first)
    def conv1d(layer: Conv1D, x: Tensor, y: Tensor, options: Options) -> trimtab.Rows:
        return layers.linear(nn.Linear(1, 1), x, y, options)

    torch.manual_seed(0)
    ours, linear = Conv1D(3, 2).double(), nn.Linear(3, 2).double()
    linear.load_state_dict({"weight": ours.weight.detach().t(), "bias": ours.bias.detach()})
    x = 1 + torch.randn(4, 5, 3, dtype=torch.float64)
    for layer in (ours, linear):
        with trimtab.BNP(layer) as bnp:
            layer(x).square().mean().backward()
            bnp.step()
    assert ours.weight.grad is not None
    assert_same([ours.weight.grad.t(), *gradients(ours)[1:]], gradients(linear))


def test_outputs_may_be_tuples_and_inputs_keywords() -> None:
    class WithExtra(Conv1D):
        def forward(self, hidden: Tensor) -> Any:
            return super().forward(hidden), {"extra": 1}

    @trimtab.register_layer(WithExtra, view=input_first)
    def with_extra(layer: WithExtra, x: Tensor, y: Tensor, options: Options) -> trimtab.Rows:
        return trimtab.Rows(trimtab.Moments.of(x, columns=-1), samples=len(x), positions=len(y))

    layer = WithExtra(3, 2)
    bnp = trimtab.BNP(layer)
    layer(hidden=torch.randn(4, 3))[0].sum().backward()
    bnp.step()
    assert bnp.report().layers[0].steps == 1


def test_a_subclass_may_have_a_rule_of_its_own() -> None:
    class Tokens(nn.Linear):
        pass

    @trimtab.register_layer(Tokens)
    def tokens(layer: Tokens, x: Tensor, y: Tensor, options: Options) -> trimtab.Rows:
        rows = x.shape[:-1].numel()
        return trimtab.Rows(trimtab.Moments.of(x, columns=-1), samples=rows, positions=rows)

    torch.manual_seed(0)
    special, plain = Tokens(3, 2).double(), nn.Linear(3, 2).double()
    plain.load_state_dict(special.state_dict())
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    for layer, options in ((special, {}), (plain, {"tokens": "samples"})):
        with trimtab.BNP(layer, **options) as bnp:
            layer(x).square().mean().backward()
            bnp.step()
    assert_same(gradients(special), gradients(plain))


def test_only_modules_can_be_registered() -> None:
    with pytest.raises(TypeError, match=r"subclasses of torch\.nn\.Module"):
        trimtab.register_layer(dict)
