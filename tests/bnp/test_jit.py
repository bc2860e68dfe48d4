"""torch.jit: what is traced knows nothing of BNP, what is to be scripted must be detached."""

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import trimtab
from tests.bnp.helpers import batch, loss_of, pending_rows, small_model

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.mark.parametrize("fast", [True, False])
def test_a_trace_is_that_of_the_bare_model(fast: bool) -> None:
    model = small_model()
    bare = torch.jit.trace(model, batch(0))
    bnp = trimtab.BNP(model, fast=fast)
    loss_of(model, batch(1)).backward()  # what a call needs is known by now
    rows = pending_rows(bnp)
    traced = torch.jit.trace(model, batch(0))
    kinds = [[node.kind() for node in trace.inlined_graph.nodes()] for trace in (bare, traced)]
    assert kinds[0] == kinds[1]
    assert torch.equal(traced(batch(3, size=2)), model(batch(3, size=2)))
    assert pending_rows(bnp) == rows
    loss_of(model, batch(2)).backward()
    assert pending_rows(bnp)["7"] == 12
    bnp.step()


class Shifted(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x + 1, self.weight, self.bias)


def test_layers_with_a_forward_of_their_own() -> None:
    model = nn.Sequential(Shifted(3, 4), nn.Tanh(), nn.Linear(4, 2))
    bnp = trimtab.BNP(model)
    model(torch.randn(5, 3)).sum().backward()
    rows = pending_rows(bnp)
    traced = torch.jit.trace(model, torch.randn(5, 3))
    assert [node.kind() for node in traced.inlined_graph.nodes()].count("aten::linear") == 2
    assert pending_rows(bnp) == rows
    model(torch.randn(5, 3)).sum().backward()
    assert pending_rows(bnp) == {"0": 10, "2": 10}
    with pytest.raises(RuntimeError, match=r"torch\.jit\.script cannot compile"):
        torch.jit.script(model[0])


def test_a_traced_model_can_be_saved() -> None:
    model = small_model()
    trimtab.BNP(model).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, batch(0)), buffer)
    buffer.seek(0)
    assert torch.equal(torch.jit.load(buffer)(batch(1)), model(batch(1)))


@pytest.mark.parametrize("watched", ["itself", "a layer", "a copy"])
def test_a_script_gets_one_sentence(watched: str) -> None:
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    bnp = trimtab.BNP(model[0] if watched == "a layer" else model)
    with pytest.raises(RuntimeError, match=r"^torch\.jit\.script cannot compile.*detach\(\) BNP before[^\n]*$"):
        torch.jit.script(copy.deepcopy(model) if watched == "a copy" else model)
    bnp.detach()
    scripted = torch.jit.script(copy.deepcopy(model) if watched == "a copy" else model)
    assert torch.equal(scripted(torch.ones(2, 3)), model(torch.ones(2, 3)))


def test_others_may_ask_for_a_hooks_name() -> None:
    model = nn.Linear(3, 2)
    bnp = trimtab.BNP(model)
    assert [getattr(hook, "__name__", "none") for hook in model._forward_hooks.values()] == ["none"] * 2
    del bnp


def test_nothing_is_said_while_tracing() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.jit.trace(model, batch(0))
    assert not [warning for warning in said if "is deprecated" not in str(warning.message)]
    bnp.detach()
