"""Internal covariate shift against closed forms and against models that were really updated layer by layer."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import trimtab
from tests.probes.odd_models import (
    ODD,
    Words,
    a_batch,
    batchnorm,
    deep,
    loss_fn,
    odd_model,
    peak_memory,
)
from tests.probes.untouched import untouched
from trimtab.probes import CovariateShift, CovariateShiftResult
from trimtab.probes.layer_selection import select_layers


def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return 0.5 * (model(x) - y).square().sum() / len(x)


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 5)] * 3), rows=st.integers(1, 6), seed=st.integers(0, 99), rate=st.floats(0.01, 1)
)
def test_a_linear_network_of_two_layers_by_hand(sizes: tuple, rows: int, seed: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    inputs, hidden, outputs = sizes
    w1, w2 = rng.normal(size=(hidden, inputs)), rng.normal(size=(outputs, hidden))
    x, y = rng.normal(size=(rows, inputs)), rng.normal(size=(rows, outputs))
    # L = mean ½‖W₂W₁x − y‖²: ∂W₁ = W₂ᵀ E[e xᵀ], ∂W₂ = E[e (W₁x)ᵀ] with e = W₂W₁x − y
    error = x @ w1.T @ w2.T - y
    g1, g2 = w2.T @ error.T @ x / rows, error.T @ (x @ w1.T) / rows
    new = w1 - rate * g1
    after = (x @ new.T @ w2.T - y).T @ (x @ new.T) / rows

    model = nn.Sequential(nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, outputs, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(w1))
        model[1].weight.copy_(torch.from_numpy(w2))
    result = CovariateShift(step_size=rate)(model, squared, (torch.from_numpy(x), torch.from_numpy(y)))
    first, second = result.layers
    assert (first.layer, first.distance, first.cosine) == ("0", 0.0, pytest.approx(1.0))
    assert first.gradient_norm == pytest.approx(np.linalg.norm(g1))
    assert second.gradient_norm == pytest.approx(np.linalg.norm(g2))
    assert second.distance == pytest.approx(np.linalg.norm(g2 - after))
    lengths = np.linalg.norm(g2) * np.linalg.norm(after)
    assert second.cosine == pytest.approx(np.sum(g2 * after) / lengths, abs=1e-9)
    assert result.loss == pytest.approx(0.5 * np.sum(error**2) / rows)


@pytest.mark.parametrize("kind", ["momentum", "adam", "bnp"])
def test_three_layers_really_updated(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    model, batch = model.double(), a_batch(dtype=torch.float64)
    momentum = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9, weight_decay=0.1)
    optimizer = torch.optim.Adam(model.parameters(), 0.05) if kind == "adam" else momentum
    if kind == "bnp":
        trimtab.BNP(model).attach(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    result = CovariateShift(optimizer=optimizer)(model, loss_fn, batch)

    old = copy.deepcopy(model)
    optimizer.zero_grad()
    loss_fn(model, batch).backward()
    gradients = [torch.cat([p.grad.flatten().clone() for p in model[i].parameters()]) for i in (0, 1, 3, 5)]
    optimizer.step()
    assert [layer.layer for layer in result.layers] == ["0", "1", "3", "5"]
    for place, i in enumerate((0, 1, 3, 5)):
        mixed = copy.deepcopy(old)
        for j in (0, 1, 3, 5)[:place]:
            for p, new in zip(mixed[j].parameters(), model[j].parameters(), strict=True):
                p.data.copy_(new.data)
        loss_fn(mixed, batch).backward()
        after = torch.cat([p.grad.flatten() for p in mixed[i].parameters()])
        shift = result.layers[place]
        assert shift.gradient_norm == pytest.approx(float(gradients[place].norm()))
        assert shift.distance == pytest.approx(float((after - gradients[place]).norm()), abs=1e-15)
        assert shift.cosine == pytest.approx(float(torch.cosine_similarity(after, gradients[place], dim=0)))
    assert min(layer.distance for layer in result.layers[1:]) > 1e-4  # else nothing was measured


def test_some_layers_only() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)], nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))
    whole = CovariateShift(step_size=0.1)(model, loss_fn, a_batch())
    by_name = {layer.layer: layer for layer in whole.layers}
    assert list(by_name) == ["0", "1", "2", "3", "4", "5", "6.0", "6.1"]
    some = CovariateShift(step_size=0.1, layers=("6", "[12]"))(model, loss_fn, a_batch())
    assert [layer.layer for layer in some.layers] == ["1", "2", "6.0", "6.1"]
    few = CovariateShift(step_size=0.1, max_layers=3)(model, loss_fn, a_batch())
    assert [layer.layer for layer in few.layers] == ["0", "4", "6.1"]
    assert all(layer == by_name[layer.layer] for layer in (*some.layers, *few.layers))
    with pytest.raises(ValueError, match="no layer matches 'seven'; the layers are '0', '1'"):
        CovariateShift(step_size=0.1, layers="seven")(model, loss_fn, a_batch())


@given(count=st.integers(0, 30), most=st.integers(1, 12))
def test_layers_are_chosen_evenly(count: int, most: int) -> None:
    names = [str(i) for i in range(count)]
    found = [int(name) for name in select_layers(names, (), most)]
    assert len(found) == min(count, most) and found == sorted(set(found))
    if found:
        assert found[-1] == count - 1 and (len(found) == 1 or found[0] == 0)
        gaps = np.diff(found)
        assert not len(gaps) or max(gaps) - min(gaps) <= 1


@pytest.mark.filterwarnings("ignore:BNP leaves these layers alone", "ignore:No input was seen")
@pytest.mark.parametrize("name", ODD)
def test_odd_models(name: str) -> None:
    model, batch = odd_model(name)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1, momentum=0.9)
    bnp = trimtab.BNP(model).attach(optimizer)
    with untouched(model, optimizer, bnp):
        result = CovariateShift(optimizer=optimizer)(model, loss_fn, batch)
    assert result.problem is None
    first, *others = result.layers
    assert (first.distance, first.cosine) == (0.0, 1.0)
    assert others and all(math.isfinite(layer.distance) and -1 <= layer.cosine <= 1 for layer in others)
    assert any(layer.distance > 0 for layer in others)
    assert "never" not in [layer.layer for layer in result.layers]


def test_sparse_gradients() -> None:
    torch.manual_seed(0)
    model, dense = Words(), Words()
    dense.load_state_dict(model.state_dict())
    dense.words.sparse = False
    probe = CovariateShift(step_size=0.1)
    ours, theirs = (probe(each, loss_fn, Words.batch).layers[1] for each in (model, dense))
    assert ours.distance == pytest.approx(theirs.distance, rel=1e-4) and ours.distance > 0


def test_an_update_that_diverges_is_a_finding() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with torch.autograd.set_detect_anomaly(True):
        result = CovariateShift(step_size=1e38)(model, lambda m, b: m(b["x"]).pow(4).sum(), a_batch())
    assert result.problem is None
    assert result.layers[1].distance == math.inf and math.isnan(result.layers[1].cosine)


def test_a_gradient_of_zero_has_no_angle() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    nn.init.zeros_(model[0].weight)
    nn.init.constant_(model[0].bias, -1)
    result = CovariateShift(step_size=0.1)(model, loss_fn, a_batch())
    assert result.layers[0].gradient_norm == 0 and math.isnan(result.layers[0].cosine)
    assert result.layers[1].distance == 0 and result.layers[1].cosine == 1  # its bias has a gradient


def test_the_result_as_json() -> None:
    result = CovariateShift(step_size=0.1)(batchnorm(), loss_fn, a_batch())
    assert [layer["layer"] for layer in json.loads(json.dumps(result.to_dict()))["layers"]] == ["0", "1", "4"]


def test_an_optimizer_that_needs_a_closure() -> None:
    model = batchnorm()
    result = CovariateShift(optimizer=torch.optim.LBFGS(model.parameters()))(model, loss_fn, a_batch())
    assert isinstance(result, CovariateShiftResult) and not result.layers and "closure" in result.problem


def test_peak_memory() -> None:
    assert peak_memory(CovariateShift(step_size=0.1), deep()) == pytest.approx(3, abs=0.1)
    model = deep()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    # Adam's state is two tensors for each parameter, and its step needs another one for a layer.
    assert peak_memory(CovariateShift(optimizer=optimizer), model, optimizer) == pytest.approx(5.15, abs=0.15)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "Give an optimizer"),
        ({"step_size": -1.0}, "step_size must be"),
        ({"step_size": 1.0, "max_layers": 0}, "max_layers must be"),
    ],
)
def test_bad_options(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CovariateShift(**options)
    with pytest.raises(ValueError, match="Give an optimizer"):
        CovariateShift(optimizer=torch.optim.SGD(batchnorm().parameters(), 0.1), step_size=0.1)
    with pytest.raises(ValueError, match="bnp needs an optimizer"):
        CovariateShift(step_size=0.1, bnp=trimtab.BNP(batchnorm()))


def test_layers_are_in_the_order_of_their_calls() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(5, 2), nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    torch.manual_seed(0)
    result = CovariateShift(step_size=0.1)(Reversed(), lambda m, b: m(b).square().mean(), torch.randn(8, 3))
    assert [shift.layer for shift in result.layers] == ["body", "head"]
    assert result.layers[0].distance == 0 and result.layers[1].distance > 0
