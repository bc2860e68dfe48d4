"""Losses and gradients along the optimizer's own step: against steps really taken, and against the loss in z."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

import trimtab
from tests.bnp.oracle import preconditioner
from tests.probes.odd_models import ODD, a_batch, odd_model
from tests.probes.odd_models import loss_fn as odd_loss
from tests.probes.untouched import untouched
from trimtab.probes import Landscape, StepLandscape

MULTIPLES = (0.5, 1.0, 3.0)
BATCH = a_batch(dtype=torch.float64)


def loss_fn(model: nn.Module, batch: dict) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss_fn(model, BATCH), list(model.parameters()))])


def bnp_matrix(model: nn.Sequential) -> Tensor:
    """PPᵀ/q² of all parameters as one dense matrix, with the statistics of the batch."""
    blocks, x = [], BATCH["x"]
    for layer in (model[0], model[2]):
        mean, variance = x.detach().numpy().mean(0), x.detach().numpy().var(0)
        p = preconditioner(mean, variance + 1e-2 * variance.max() + 1e-4)
        one = p @ p.T / max(layer.in_features / len(x), 1)
        outputs = layer.out_features  # parameters are all weights, unit by unit, then all biases
        order = [[outputs * layer.in_features + unit, *range(unit * len(mean), (unit + 1) * len(mean))]
                 for unit in range(outputs)]  # fmt: skip
        block = np.zeros((outputs * len(one),) * 2)
        for places in order:
            block[np.ix_(places, places)] = one
        blocks.append(torch.tensor(block))
        x = layer(x).tanh()
    return torch.block_diag(*blocks)


def diagonal(rate: float = 1.0) -> Callable[[nn.Module], Tensor]:
    """After one step v is g² times a number, without bias."""
    return lambda model: torch.diag(1 / (rate**0.5 * flat_gradient(model).abs() + 1e-8))


STEPS: dict[str, tuple[Callable[[list[nn.Parameter]], Optimizer], Callable[[nn.Module], Tensor], str]] = {
    "SGD": (lambda p: SGD(p, 0.3), lambda m: torch.eye(51, dtype=torch.double), "euclidean"),
    "two rates": (
        lambda p: SGD([{"params": p[:2]}, {"params": p[2:], "lr": 0.6}], 0.3),
        lambda m: torch.diag(torch.tensor([1.0] * 30 + [2.0] * 21, dtype=torch.double)),
        "euclidean",
    ),
    "BNP": (lambda p: SGD(p, 0.3), bnp_matrix, "bnp"),
    "Adam": (lambda p: Adam(p, 0.01), diagonal(), "adaptive"),
    "AdamW, amsgrad": (lambda p: AdamW(p, 0.01, weight_decay=0, amsgrad=True), diagonal(), "adaptive"),
    "RMSprop": (lambda p: RMSprop(p, 0.01, alpha=0.9), diagonal(0.1), "adaptive"),
    "Adagrad": (lambda p: Adagrad(p, 0.01, eps=1e-8), diagonal(), "adaptive"),
}


@pytest.mark.parametrize("name", STEPS)
def test_in_its_metric_it_is_the_plain_landscape_of_the_loss_in_z(name: str) -> None:
    """θ = Pz with PPᵀ = M, a dense matrix: steepest descent in z is the optimizer's step."""
    make, matrix, metric = STEPS[name]
    model = network()
    optimizer = make(list(model.parameters()))
    if metric == "bnp":
        trimtab.BNP(model, statistics="batch").attach(optimizer)
    found = StepLandscape(optimizer=optimizer, multiples=MULTIPLES)(model, loss_fn, BATCH)
    root = torch.linalg.cholesky(matrix(model))
    inner, in_z = network(), nn.Module()
    in_z.z = nn.Parameter(torch.linalg.solve(root, torch.nn.utils.parameters_to_vector(model.parameters()).detach()))

    def loss_in_z(module: nn.Module, batch: dict) -> Tensor:
        sizes = [p.numel() for p in inner.parameters()]
        parts = (root @ module.z).split(sizes)
        values = {n: part.view_as(p) for part, (n, p) in zip(parts, inner.named_parameters(), strict=True)}
        outputs = torch.func.functional_call(inner, values, (batch["x"],))
        return nn.functional.cross_entropy(outputs, batch["y"])

    told = Landscape(step_size=optimizer.param_groups[0]["lr"], multiples=MULTIPLES)(in_z, loss_in_z, BATCH)
    assert (found.metric, found.direction, found.note) == (metric, "step", None)
    assert found.loss == pytest.approx(told.loss)
    np.testing.assert_allclose(found.losses, told.losses, rtol=1e-7)
    assert found.metric_gradient_norm == pytest.approx(told.gradient_norm)
    np.testing.assert_allclose(found.metric_gradient_changes, told.gradient_changes, rtol=1e-6)
    np.testing.assert_allclose(found.metric_distances, told.distances, rtol=1e-6)
    assert found.metric_smoothness == pytest.approx(told.smoothness, rel=1e-6)
    assert found.relative_smoothness == pytest.approx(told.step_size * told.smoothness, rel=1e-6)
    largest = max(told.gradient_changes) / told.gradient_norm
    assert found.relative_change == found.to_dict()["relative_change"] == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("with_bnp", [False, True])
@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.1), lambda p: Adam(p, 0.01)])
def test_one_step_leads_where_the_optimizer_then_goes(make: Callable, with_bnp: bool) -> None:
    model = network()
    optimizer = make(model.parameters())
    bnp = trimtab.BNP(model).attach(optimizer) if with_bnp else None
    for _ in range(3):
        before = copy.deepcopy(model)
        start = flat_gradient(model)
        with untouched(model, optimizer, bnp):
            found = StepLandscape(optimizer=optimizer, multiples=(1.0,))(model, loss_fn, BATCH)
        optimizer.zero_grad()
        loss_fn(model, BATCH).backward()
        optimizer.step()
        ends = (torch.nn.utils.parameters_to_vector(m.parameters()).detach() for m in (model, before))
        way = next(ends) - next(ends)
        assert found.losses[0] == pytest.approx(loss_fn(model, BATCH).item())
        assert found.distances[0] == pytest.approx(float(way.norm()))
        assert found.gradient_changes[0] == pytest.approx(float((flat_gradient(model) - start).norm()))
    if with_bnp and isinstance(optimizer, Adam):
        assert found.metric == "" and "no metric" in found.note
        assert math.isnan(found.metric_smoothness) and math.isnan(found.relative_change)
    else:
        assert found.note is None and found.metric_smoothness > 0


def test_a_quadratic_that_bnp_makes_round() -> None:
    """Least squares with inputs of very different size, against its Hessian: β along the gradient tells nothing."""
    torch.manual_seed(0)
    x = (torch.randn(4000, 3) * torch.tensor([100.0, 1.0, 0.01]) + 1).double()
    model = nn.Linear(3, 1).double()

    def squared(model: nn.Module, batch: Tensor) -> Tensor:
        return 0.5 * (model(batch) - batch.sum(1, keepdim=True)).square().mean()

    optimizer = SGD(model.parameters(), 0.1)
    trimtab.BNP(model, statistics="batch", eps1=0, eps2=0).attach(optimizer)
    found = StepLandscape(optimizer=optimizer)(model, squared, x)
    rows = torch.cat([torch.ones(4000, 1, dtype=torch.double), x], 1)
    hessian = rows.T @ rows / 4000
    p = torch.tensor(preconditioner(x.numpy().mean(0), x.numpy().var(0)))  # q = 1: there are more rows than columns
    weight, bias = torch.autograd.grad(squared(model, x), list(model.parameters()))
    in_z = p.T @ torch.cat([bias, weight[0]])
    step, round_hessian = p @ in_z, p.T @ hessian @ p
    assert found.smoothness == pytest.approx(float((hessian @ step).norm() / step.norm()))
    assert found.metric_smoothness == pytest.approx(float((round_hessian @ in_z).norm() / in_z.norm()))
    assert found.metric_smoothness == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(found.metric_smoothness_by_multiple, found.metric_smoothness)
    assert Landscape(step_size=0.1)(model, squared, x).smoothness > 1e3


@pytest.mark.filterwarnings("ignore:BNP leaves these layers alone", "ignore:No input was seen")
@pytest.mark.parametrize("name", ODD)
def test_odd_models(name: str) -> None:
    model, batch = odd_model(name)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    bnp = trimtab.BNP(model)
    with untouched(model, optimizer):
        found = StepLandscape(optimizer=optimizer, bnp=bnp, multiples=(1.0, 2.0))(model, odd_loss, batch)
    assert found.problem is None and found.note is None
    assert all(map(math.isfinite, (*found.losses, found.smoothness, found.metric_smoothness)))
    assert found.metric_distances[0] > 0


def test_no_metric_and_no_step_are_said() -> None:
    model = network()
    found = StepLandscape(optimizer=NAdam(model.parameters(), 0.01))(model, loss_fn, BATCH)
    assert found.note == "The metric of NAdam is not known." and found.smoothness > 0
    optimizer = SGD([{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias], "lr": 1.0}], 0.1)
    trimtab.BNP(model).attach(optimizer)
    assert "different learning rates" in StepLandscape(optimizer=optimizer)(model, loss_fn, BATCH).note
    optimizer = SGD(model.parameters(), 0.0)
    assert "learning rate is 0" in StepLandscape(optimizer=optimizer)(model, loss_fn, BATCH).problem


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": None}, "optimizer must be"),
        ({"optimizer": 3}, "optimizer must be"),
        ({"multiples": (0.0,)}, "multiples must be"),
        ({"bnp": 1}, "bnp must be"),
        ({"statistics": "x"}, "statistics must be"),
    ],
)
def test_bad_options(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StepLandscape(**{"optimizer": SGD(network().parameters(), 0.1), **options})
