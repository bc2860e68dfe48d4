"""GPT-2: its layers are transformers' Conv1D, its head is tied to the embedding."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.integrations.gpt2 import gpt2, words

transformers = pytest.importorskip("transformers", reason="transformers is not installed; it is in the dev extra")
from transformers.pytorch_utils import Conv1D  # noqa: E402


def of_linear_layers(model: Any) -> Any:
    """The same function, with nn.Linear in the place of Conv1D."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                linear = nn.Linear(child.nx, child.nf, dtype=torch.float64)
                linear.weight.data, linear.bias.data = child.weight.data.t().contiguous(), child.bias.data.clone()
                setattr(module, name, linear)
    return model


@pytest.mark.filterwarnings("ignore:BNP leaves these layers alone")
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("options", [{}, {"tokens": "samples"}, {"debias": True, "statistics": "batch"}])
def test_the_same_as_with_linear_layers(options: dict[str, Any], fast: bool) -> None:
    ours = gpt2()
    theirs = of_linear_layers(ours)
    bnps = []
    for model in ours, theirs:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        bnps.append(trimtab.BNP(model, fast=fast, **options).attach(optimizer))
        for step in range(4):
            optimizer.zero_grad()
            model(input_ids=words(step), labels=words(step)).loss.backward()
            optimizer.step()
    layers = [name for name, module in ours.named_modules() if isinstance(module, Conv1D)]
    assert len(layers) == 8
    for name in layers:
        torch.testing.assert_close(bnps[0].statistics(name), bnps[1].statistics(name), rtol=1e-12, atol=1e-14)
    for (name, mine), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        layer, _, own = name.rpartition(".")
        other = other.t() if layer in layers and own == "weight" else other
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-14)


def test_one_layer() -> None:
    """From the same input and gradient; what Conv1D and Linear themselves compute may round otherwise."""
    torch.manual_seed(0)
    ours: Any = Conv1D(5, 4).double()
    theirs = nn.Linear(4, 5).double()
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.t())
        theirs.bias.copy_(ours.bias)
    x = 3 + torch.randn(2, 6, 4, dtype=torch.float64)
    bnps = [trimtab.BNP(layer, fast=False) for layer in (ours, theirs)]
    for layer in ours, theirs:
        layer(x).square().sum().backward()
    with torch.no_grad():
        ours.weight.grad.copy_(theirs.weight.grad.t())
        ours.bias.grad.copy_(theirs.bias.grad)
    plain = theirs.weight.grad.clone()
    for bnp in bnps:
        bnp.step()
    assert all(torch.equal(*pair) for pair in zip(*(bnp.statistics("") for bnp in bnps), strict=True))
    assert not torch.equal(theirs.weight.grad, plain)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad.t(), rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, rtol=1e-14, atol=1e-14)


def test_a_type_that_a_user_has_registered_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from trimtab.bnp import Moments, Rows, input_first, layers

    monkeypatch.setattr(layers, "_TYPES", dict(layers._TYPES))
    seen = []

    @trimtab.register_layer(Conv1D, view=input_first)
    def conv1d(layer: Any, x: Tensor, y: Tensor, options: object) -> Rows:
        seen.append(layer)
        return Rows(Moments.of(x, columns=-1), samples=len(x), positions=len(x))

    layer = Conv1D(5, 4)
    with trimtab.BNP(layer) as bnp:
        layer(torch.randn(3, 4)).sum().backward()
        bnp.step()
    assert seen == [layer]


def test_the_report_explains_the_tied_head() -> None:
    with pytest.warns(trimtab.TrimtabWarning, match=r"'lm_head' \(it shares parameters with 'transformer.wte'\)"):
        report = trimtab.BNP(gpt2()).report()
    (head,) = [layer for layer in report.layers if layer.name == "lm_head"]
    assert head.shares_with == ("transformer.wte",)
    text = str(report)
    assert re.search(r"c_attn +Conv1D +0 +0 +preconditioned", text)
    assert "'lm_head' is left alone because the gradient of a shared parameter is a sum" in text
    assert text.splitlines()[-1].startswith("BNP preconditions 8 of 16 modules")

    untied = trimtab.BNP(gpt2(tie_word_embeddings=False)).report()
    assert "is left alone because" not in str(untied) and str(untied).splitlines()[-1].startswith("BNP preconditions 9")
