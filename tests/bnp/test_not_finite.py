"""Steps with infinities or NaN in them."""

from typing import Any

import pytest
import torch
from torch import nn

import trimtab
from tests.bnp.helpers import (
    assert_identical,
    assert_same,
    batch,
    gradients,
    loss_of,
    plain_step,
    small_model,
    statistics,
)


def poisoned(value: float) -> torch.Tensor:
    x = batch(1)
    x[0, 0, 0, 0] = value
    return x


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("options", [{}, {"debias": True}, {"statistics": "batch"}, {"spatial": "site"}], ids=str)
def test_rows_that_are_not_finite_are_not_folded(value: float, options: dict[str, Any]) -> None:
    model = small_model()
    expected = plain_step(model, batch(2), **options)
    bnp = trimtab.BNP(model, **options)
    loss_of(model, poisoned(value)).backward()
    with pytest.warns(trimtab.TrimtabWarning, match="not finite"):
        bnp.step()
    assert statistics(bnp)["0.steps"] == 0
    assert statistics(bnp)["0.skipped"] == 1
    model.zero_grad()
    loss_of(model, batch(2)).backward()
    bnp.step()
    assert_same(gradients(model), expected[0])
    ours, theirs = statistics(bnp), expected[1]
    assert_same([ours["0.mean"], ours["0.variance"]], [theirs["0.mean"], theirs["0.variance"]])
    assert [layer.not_finite for layer in bnp.report().layers] == [1, 1, 1, 1]


def test_one_row_that_is_not_finite() -> None:
    layer = nn.Linear(2, 2)
    bnp = trimtab.BNP(layer)
    layer(torch.tensor([[1.0, float("inf")]])).nan_to_num().sum().backward()
    with pytest.warns(trimtab.TrimtabWarning, match="not finite"):
        bnp.step()
    assert statistics(bnp)[".steps"] == 0


@pytest.mark.parametrize("which", ["weight", "bias"])
def test_gradients_that_are_not_finite(which: str) -> None:
    """The layer's rows are finite, its gradient is not: nothing is folded for it; other layers go on."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    bnp = trimtab.BNP(model)
    model(torch.randn(4, 3)).sum().backward()
    getattr(model[1], which).grad.view(-1)[0] = float("inf")
    with pytest.warns(trimtab.TrimtabWarning):
        bnp.step()
    assert [layer.steps for layer in bnp.report().layers] == [1, 0]
    assert [layer.not_finite for layer in bnp.report().layers] == [0, 1]


def test_it_is_said_once() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    for step in range(3):
        model.zero_grad()
        loss_of(model, poisoned(float("nan"))).backward()
        if step == 0:
            with pytest.warns(trimtab.TrimtabWarning):
                bnp.step()
        else:
            bnp.step()
    assert statistics(bnp)["0.skipped"] == 3


def test_batch_statistics_of_one_row_are_said_once_and_replaced() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    results = []
    for kind in ("running", "batch"):
        layer.zero_grad()
        bnp = trimtab.BNP(layer, statistics=kind)
        for step in range(2):
            layer.zero_grad()
            layer(x[step]).square().sum().backward()
            if step == 0 and kind == "batch":
                with pytest.warns(trimtab.TrimtabWarning, match="single row"):
                    bnp.step()
            else:
                bnp.step()
        results.append(gradients(layer))
        bnp.detach()
    assert_identical(*results)
