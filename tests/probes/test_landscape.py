"""Losses and gradients along a line, against models that were really moved, and in closed form."""

import copy
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

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
from trimtab.probes import Landscape, LandscapeResult
from trimtab.probes.directions import filter_normalized, total_norm
from trimtab.probes.landscape import DLN_MULTIPLES, VGG_MULTIPLES


def really(model: nn.Module, batch: dict, line: list[Tensor], by: float) -> tuple[float, list[Tensor]]:
    """Loss and gradient of a copy of the model whose parameters were changed in place."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for p, d in zip(model.parameters(), line, strict=True):
            p += by * d
    torch.manual_seed(9)  # for dropout
    loss = loss_fn(model, batch)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


@pytest.mark.parametrize("direction", ["gradient", "random"])
def test_equals_a_model_that_is_really_moved(direction: str) -> None:
    torch.manual_seed(0)
    model, batch = batchnorm().double(), a_batch(dtype=torch.float64)
    torch.manual_seed(9)
    result = Landscape(step_size=0.3, direction=direction, multiples=(4, -1, 0.5), seed=3)(model, loss_fn, batch)
    loss, gradient = really(model, batch, list(model.parameters()), 0)
    line = gradient
    if direction == "random":
        line = list(filter_normalized(model, {name: p.detach() for name, p in model.named_parameters()}, 3).values())
    assert result.loss == pytest.approx(loss)
    assert result.gradient_norm == pytest.approx(float(flat(gradient).norm()))
    assert (result.multiples, result.step_size, result.direction) == ((4.0, -1.0, 0.5), 0.3, direction)
    for i, s in enumerate((4, -1, 0.5)):
        there, moved = really(model, batch, line, -s * 0.3)
        assert result.losses[i] == pytest.approx(there)
        assert result.gradient_norms[i] == pytest.approx(float(flat(moved).norm()))
        assert result.gradient_changes[i] == pytest.approx(float((flat(moved) - flat(gradient)).norm()))
        assert result.distances[i] == pytest.approx(abs(s) * 0.3 * float(flat(line).norm()))


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 6), rows=st.integers(1, 4), seed=st.integers(0, 99), step=st.floats(1e-3, 1.0))
def test_a_quadratic_in_closed_form(size: int, rows: int, seed: int, step: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    root, start = (torch.randn(size, n, dtype=torch.double, generator=generator) for n in (size + 1, rows))
    hessian = root @ root.T
    model = nn.Module()
    model.w = nn.Parameter(start.clone())

    def energy(model: nn.Module, batch: Tensor) -> Tensor:
        return 0.5 * (model.w * (batch @ model.w)).sum()

    result = Landscape(step_size=step)(model, energy, hessian)
    g = hessian @ start
    for s, loss, change in zip(result.multiples, result.losses, result.gradient_changes, strict=True):
        w = start - s * step * g
        assert loss == pytest.approx(float(0.5 * (w * (hessian @ w)).sum()))
        assert change == pytest.approx(s * step * float((hessian @ g).norm()))
    assert result.smoothness == pytest.approx(float((hessian @ g).norm() / g.norm()))
    norms = [float((g - s * step * hessian @ g).norm()) for s in (0, *VGG_MULTIPLES)]
    assert result.lipschitz == pytest.approx(max(norms))
    assert result.steepest <= result.lipschitz * (1 + 1e-9)  # a convex function of one variable is steepest at an end


def test_the_properties_by_hand() -> None:
    told = {"loss": 2.0, "gradient_norm": 3.0, "multiples": (2.0, -1.0, 1.0), "distances": (4.0, 1.0, 2.0)}
    lists = {"losses": (1.0, 7.0, 1.5), "gradient_norms": (1.0, 2.5, 2.0), "gradient_changes": (8.0, 1.0, 5.0)}
    result = LandscapeResult(**told, **lists)
    assert result.loss_range == (1.0, 7.0)
    assert result.predictiveness_range == (1.0, 8.0)
    assert result.smoothness == 2.5
    assert result.lipschitz == 3.0
    assert result.steepest == 5.0  # from −1 (7.0) to 0 (2.0), over a distance of 1
    assert result.smoothness_by_multiple == (2.0, 1.0, 2.5)
    assert (result.smoothness_multiple, result.smoothness_at_edge) == (1.0, True)  # of those below θ, the nearest
    content = json.loads(json.dumps(result.to_dict()))
    assert content["smoothness_by_multiple"] == [2.0, 1.0, 2.5]
    assert (content["smoothness_multiple"], content["smoothness_at_edge"]) == (1.0, True)
    assert content["smoothness"] == 2.5 and content["loss_range"] == [1.0, 7.0] and content["problem"] is None
    nothing = LandscapeResult(problem="none")
    assert all(map(math.isnan, (*nothing.loss_range, nothing.smoothness, nothing.lipschitz, nothing.steepest)))
    assert nothing.smoothness_by_multiple == () and math.isnan(nothing.smoothness_multiple)
    assert not nothing.smoothness_at_edge


@pytest.mark.parametrize(
    ("multiples", "betas", "largest", "at", "edge"),
    [
        ((0.5, 1.0, 2.0), (9.0, 8.0, 7.0), 9.0, 0.5, True),
        ((0.5, 1.0, 2.0), (7.0, 9.0, 8.0), 9.0, 1.0, False),
        ((2.0, 0.5, 1.0), (9.0, 7.0, 8.0), 9.0, 2.0, True),
        ((0.5, 1.0, 2.0), (7.0, math.inf, math.inf), math.inf, 1.0, False),  # where it begins to diverge
        ((0.5, 1.0, 2.0), (math.nan, 9.0, 8.0), 9.0, 1.0, True),  # nothing was measured nearer
        ((-2.0, -1.0, 1.0, 2.0), (1.0, 9.0, 2.0, 3.0), 9.0, -1.0, True),
        ((-3.0, -2.0, -1.0, 1.0), (1.0, 9.0, 2.0, 3.0), 9.0, -2.0, False),
        ((1.0,), (9.0,), 9.0, 1.0, True),
    ],
)
def test_where_beta_is_largest(multiples: tuple, betas: tuple, largest: float, at: float, edge: bool) -> None:
    distances = tuple(0.0 if math.isnan(beta) else 0.5 for beta in betas)
    changes = tuple(0.0 if math.isnan(beta) else 0.5 * beta for beta in betas)
    result = LandscapeResult(multiples=multiples, distances=distances, gradient_changes=changes)
    assert result.smoothness_by_multiple == pytest.approx(betas, nan_ok=True)
    assert (result.smoothness, result.smoothness_multiple, result.smoothness_at_edge) == (largest, at, edge)


def test_a_change_that_levels_off_is_steepest_at_the_nearest_point() -> None:
    """L = √(1 + w²) from w = 10: the gradient hardly changes until 0 is near, and then levels off at −1."""
    model = nn.Module()
    model.w = nn.Parameter(torch.tensor(10.0, dtype=torch.double))

    def loss(model: nn.Module, batch: float) -> Tensor:
        return (1 + model.w**2).sqrt()

    slope = 10 / math.sqrt(101)
    near = Landscape(step_size=1.0, multiples=(2.0, 4.0))(model, loss, 0.0)
    wide = Landscape(step_size=1.0, multiples=(2.0, 4.0, 14.0, 20.0, 40.0))(model, loss, 0.0)
    for s, beta in zip(wide.multiples, wide.smoothness_by_multiple, strict=True):
        there = 10 - s * slope
        assert beta == pytest.approx((slope - there / math.sqrt(1 + there**2)) / (s * slope))
    assert near.smoothness_at_edge and near.smoothness_multiple == 4.0  # a wider range has a larger one
    assert wide.smoothness > near.smoothness and wide.smoothness_multiple == 14.0 and not wide.smoothness_at_edge


def test_ranges_of_the_paper() -> None:
    assert VGG_MULTIPLES == (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
    assert len(DLN_MULTIPLES) == 8 and (DLN_MULTIPLES[0], DLN_MULTIPLES[-1]) == (0.01, pytest.approx(30))


@pytest.mark.parametrize(("power", "step", "lost"), [(4.0, 1e20, math.inf), (0.5, 1.0, math.nan)])
@pytest.mark.parametrize("anomalies", [False, True])
def test_a_point_that_diverges_is_a_finding(power: float, step: float, lost: float, anomalies: bool) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).pow(power).mean()

    with torch.autograd.set_detect_anomaly(anomalies):
        result = Landscape(step_size=step, multiples=(0.1 / step, 4.0))(model, loss, torch.ones(1, 1))
    assert result.problem is None
    assert result.losses[1] == pytest.approx(lost, nan_ok=True) and math.isfinite(result.losses[0])
    assert result.loss_range == (result.losses[0], math.inf)
    assert result.predictiveness_range == (result.gradient_changes[0], math.inf)
    assert result.smoothness == result.lipschitz == result.steepest == math.inf


def test_no_way_to_go() -> None:
    model = nn.Linear(2, 1)

    def nothing(model: nn.Module, batch: Tensor) -> Tensor:
        return 0 * model(batch).sum()

    result = Landscape(step_size=0.1)(model, nothing, torch.ones(1, 2))
    assert result.distances == (0.0,) * 8 and result.gradient_changes == (0.0,) * 8
    assert math.isnan(result.smoothness) and result.lipschitz == 0

    result = Landscape(step_size=0.1, direction="random")(nn.BatchNorm1d(2), lambda m, b: m(b).sum(), torch.ones(3, 2))
    assert "no trained weight" in result.problem


def test_the_step_size_is_the_optimizers_at_that_time() -> None:
    model, batch = batchnorm(), a_batch()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[4].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    probe = Landscape(optimizer=optimizer)
    assert probe(model, loss_fn, batch).step_size == 0.5
    optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    assert probe(model, loss_fn, batch).step_size == 0.25
    assert Landscape(optimizer=optimizer, step_size=0.75)(model, loss_fn, batch).step_size == 0.75
    optimizer.param_groups[0]["lr"] = 0.0
    assert "learning rate is 0" in probe(model, loss_fn, batch).problem


def test_filters_are_as_long_as_those_of_the_weights() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "dense": nn.Linear(3, 4),
            "convolution": nn.Conv2d(4, 6, 3, groups=2),
            "transposed": nn.ConvTranspose1d(4, 6, 3, groups=2),
            "norm": nn.BatchNorm1d(3),
            "words": nn.Embedding(5, 2),
            "weighted": nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
        }
    ).to(memory_format=torch.channels_last)
    with torch.no_grad():
        model["dense"].weight[1] = 0
    here = {name: p.detach() for name, p in model.named_parameters()}
    direction = filter_normalized(model, here, seed=1)
    for name in ("dense.weight", "convolution.weight", "words.weight", "weighted.parametrizations.weight.original1"):
        torch.testing.assert_close(direction[name].flatten(1).norm(dim=1), here[name].flatten(1).norm(dim=1))
    for group in (slice(0, 2), slice(2, 4)):  # an output channel of a transposed convolution is dimension 1 of a group
        ours, theirs = direction["transposed.weight"][group], here["transposed.weight"][group]
        torch.testing.assert_close(ours.norm(dim=(0, 2)), theirs.norm(dim=(0, 2)))
    for name in ("dense.bias", "norm.weight", "norm.bias", "transposed.bias"):
        assert not direction[name].any()
    again, other = filter_normalized(model, here, seed=1), filter_normalized(model, here, seed=2)
    assert all(torch.equal(direction[name], again[name]) for name in here)
    assert not torch.equal(direction["dense.weight"], other["dense.weight"])
    rows = direction["words.weight"] / direction["words.weight"].norm(dim=1, keepdim=True)
    assert not torch.allclose(rows, here["words.weight"] / here["words.weight"].norm(dim=1, keepdim=True), atol=0.1)


def test_a_length_is_summed_in_float64() -> None:
    many = torch.full((3_000_000,), 0.1)
    exact = 0.1 * math.sqrt(3e6 + 1)
    assert float(total_norm([many, many[:1].bfloat16()])) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("direction", ["gradient", "random"])
@pytest.mark.parametrize("name", ODD)
def test_odd_models(name: str, direction: str) -> None:
    model, batch = odd_model(name)
    with untouched(model):
        result = Landscape(step_size=0.1, direction=direction, multiples=(1.0, 2.0))(model, loss_fn, batch)
    assert result.problem is None
    assert all(map(math.isfinite, (*result.losses, *result.gradient_changes, result.smoothness)))
    assert result.distances[1] == pytest.approx(2 * result.distances[0], rel=0.2 if name == "bfloat16" else 1e-3)
    assert result.smoothness > 0


def test_sparse_gradients() -> None:
    torch.manual_seed(0)
    model, dense = Words(), Words()
    dense.load_state_dict(model.state_dict())
    dense.words.sparse = False
    probe = Landscape(step_size=0.1)
    assert probe(model, loss_fn, Words.batch) == probe(dense, loss_fn, Words.batch)


def test_peak_memory() -> None:
    assert peak_memory(Landscape(step_size=0.1), deep()) == pytest.approx(3.1, abs=0.1)
    assert peak_memory(Landscape(step_size=0.1, direction="random"), deep()) == pytest.approx(4.1, abs=0.1)


def test_one_forward_and_backward_a_point() -> None:
    calls = []

    def counted(model: nn.Module, batch: dict) -> Tensor:
        loss = loss_fn(model, batch)
        calls.append("forward")
        loss.register_hook(lambda g: calls.append("backward"))
        return loss

    Landscape(step_size=0.1)(batchnorm(), counted, a_batch())
    assert calls == ["forward", "backward"] * 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "Give a step_size"),
        ({"step_size": 0.0}, "step_size must be"),
        ({"step_size": math.inf}, "step_size must be"),
        ({"step_size": 1.0, "multiples": ()}, "multiples must be"),
        ({"step_size": 1.0, "multiples": (1.0, 0.0)}, "multiples must be"),
        ({"step_size": 1.0, "direction": "up"}, "direction must be"),
        ({"step_size": 1.0, "statistics": "other"}, "statistics must be"),
    ],
)
def test_bad_options(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Landscape(**options)
