"""The spectrum probe against dense matrices by torch.func and numpy's eigenvalues."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from tests.probes.dense import Batch, criterion, dense_ggn, dense_hessian, flat, forward, loss_fn, net
from trimtab.probes import Spectrum, fisher_lambda_max
from trimtab.probes.spectrum import stable_factor

# torch.func's own
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(7, 3, dtype=torch.double, generator=generator) + 0.5, "y": torch.arange(7) % 2}


class Written(nn.Module):
    """BatchNorm as its formula, with another's γ and β, and with numbers for mean and variance where they are given.

    The forward derivative of torch's own batch_norm is wrong in train mode with a γ (torch 2.13), so that
    torch.func.hessian is wrong with it.
    """

    def __init__(self, norm: nn.BatchNorm1d, *given: Tensor) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.given = [t.detach().clone() for t in given]

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.given or (x.mean(0), ((x - x.mean(0)) ** 2).mean(0))
        return (x - mean) / (variance + self.eps) ** 0.5 * self.weight + self.bias


def twin(model: nn.Sequential, statistics: str, batch: Batch) -> nn.Module:
    """A model with the same function and derivatives for torch.func, which cannot move running statistics."""
    norm, z = model[1], model[0](batch["x"])
    given = {
        "batch": (),
        "frozen": (z.mean(0), z.var(0, correction=0)),
        "running": (norm.running_mean, norm.running_var),
    }
    return nn.Sequential(model[0], Written(norm, *given[statistics]), *model[2:])


def moved(model: nn.Sequential, batch: Batch) -> nn.Sequential:
    """Running statistics that are not those of the batch."""
    for _ in range(3):
        model(batch["x"] * 1.5)
    return model


@pytest.mark.parametrize("statistics", ["batch", "frozen", "running"])
@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_equals_the_dense_matrix(matrix: str, statistics: str, batch: Batch) -> None:
    model = moved(net(nn.BatchNorm1d(5)), batch)
    plain = twin(model, statistics, batch)
    dense = dense_hessian(plain, batch) if matrix == "hessian" else dense_ggn(plain, batch)
    exact = np.linalg.eigvalsh(dense)
    told = {"matrix": matrix, "statistics": statistics, "forward": forward, "criterion": criterion}
    found = Spectrum(top=3, tolerance=1e-9, **told)(model, loss_fn, batch)
    assert found.problem is None and found.converged and found.size == 42
    assert found.largest == pytest.approx(exact[::-1][:3])
    assert found.stable_learning_rate == pytest.approx(2 / exact[-1])
    assert math.isnan(found.trace) and math.isnan(found.smallest) and math.isnan(found.learning_rate)
    whole = Spectrum(top=3, lower_end=True, **told)(model, loss_fn, batch)
    assert whole.largest == pytest.approx(exact[::-1][:3])
    assert whole.trace == pytest.approx(dense.trace()) and whole.trace_error == 0
    nonzero = exact[np.abs(exact) > 1e-10]
    assert whole.smallest == pytest.approx(nonzero[np.abs(nonzero).argmin()], rel=1e-6)
    if matrix == "hessian":
        assert whole.most_negative == pytest.approx(exact[0])
        assert whole.products == 42
    else:
        assert math.isnan(whole.most_negative) and whole.products == 14  # outputs


def test_the_three_statistics_differ(batch: Batch) -> None:
    model = moved(net(nn.BatchNorm1d(5)), batch)
    values = [Spectrum(statistics=s)(model, loss_fn, batch).largest[0] for s in ("batch", "frozen", "running")]
    assert len({round(value, 3) for value in values}) == 3


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_the_lower_end_of_a_matrix_that_is_not_formed(matrix: str, batch: Batch) -> None:
    model = net()
    dense = dense_hessian(model, batch) if matrix == "hessian" else dense_ggn(model, batch)
    exact = np.linalg.eigvalsh(dense)
    told = {"matrix": matrix, "forward": forward, "criterion": criterion, "dense_up_to": 0}
    found = Spectrum(lower_end=True, tolerance=1e-6, **told)(model, loss_fn, batch)
    assert found.converged and found.largest == pytest.approx(exact[-1:])
    if matrix == "hessian":
        assert found.most_negative == pytest.approx(exact[0])
        assert math.isnan(found.smallest) and "inside" in found.smallest_problem
    else:
        assert found.smallest == pytest.approx(exact[exact > 1e-10][0]) and found.smallest_problem is None
        assert math.isnan(found.most_negative)
        few = Spectrum(lower_end=True, max_products=3, **told)(model, loss_fn, batch)
        assert math.isnan(few.smallest) and "did not reach" in few.smallest_problem and not few.converged


def test_the_lowest_seen_is_never_below_the_lowest(batch: Batch) -> None:
    model = net()
    exact = np.linalg.eigvalsh(dense_hessian(model, batch))
    assert exact[0] < 0
    found = Spectrum()(model, loss_fn, batch)
    assert not found.most_negative < exact[0] - 1e-12


def test_fisher_is_the_expectation_over_predicted_labels(batch: Batch) -> None:
    """Σ_y p(y) g gᵀ, sample by sample, from autograd's own gradients of log p(y)."""
    model = net()
    of, place = flat(model, lambda m: forward(m, batch).log_softmax(-1))
    slopes, p = jacrev(of)(place), of(place).exp()
    fisher = torch.einsum("nc,nci,ncj->ij", p, slopes, slopes).detach().numpy() / 7
    exact = np.linalg.eigvalsh(fisher)
    told = {"matrix": "fisher", "forward": forward, "top": 2, "tolerance": 1e-8}
    found = Spectrum(**told)(model, loss_fn, batch)
    assert found.largest == pytest.approx(exact[::-1][:2])
    assert found.largest == pytest.approx(np.linalg.eigvalsh(dense_ggn(model, batch))[::-1][:2])  # cross-entropy's ggn
    gaussian = Spectrum(likelihood="gaussian", **told)(model, loss_fn, batch)
    assert gaussian.largest[0] == pytest.approx(fisher_lambda_max(model, batch["x"], tolerance=1e-8))
    tokens = Spectrum(**(told | {"forward": lambda m, b: forward(m, b).unsqueeze(1)}))(model, loss_fn, batch)
    assert tokens.largest == pytest.approx(found.largest)


def test_a_criterion_that_is_not_convex(batch: Batch) -> None:
    def odd(outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs[:, 0] ** 2 - outputs[:, 1] ** 2).mean()

    model = net()
    exact = np.linalg.eigvalsh(dense_ggn(model, batch, odd))
    told = {"matrix": "ggn", "forward": forward, "criterion": odd, "lower_end": True, "tolerance": 1e-8}
    for limit in (0, 256):
        found = Spectrum(dense_up_to=limit, **told)(model, loss_fn, batch)
        assert (found.largest[0], found.most_negative) == pytest.approx((exact[-1], exact[0]))
    assert "negative" in Spectrum(dense_up_to=0, **told)(model, loss_fn, batch).smallest_problem


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_blocks_of_layers(matrix: str, batch: Batch) -> None:
    model = net(nn.BatchNorm1d(5))
    plain = twin(model, "batch", batch)
    dense = dense_hessian(plain, batch) if matrix == "hessian" else dense_ggn(plain, batch)
    blocks = {"0": slice(0, 20), "1": slice(20, 30), "3": slice(30, 42)}
    told = {"matrix": matrix, "forward": forward, "criterion": criterion, "per_layer": True, "tolerance": 1e-8}
    found = Spectrum(**told)(model, loss_fn, batch)
    exact = {name: np.linalg.eigvalsh(dense[part, part])[-1] for name, part in blocks.items()}
    assert found.layers == pytest.approx(exact)
    assert found.products > Spectrum(**(told | {"per_layer": False}))(model, loss_fn, batch).products + 3
    assert list(Spectrum(max_layers=2, **told)(model, loss_fn, batch).layers) == ["0", "3"]


def test_trace_and_density(batch: Batch) -> None:
    """Within four standard errors of what random signs give: zᵀMz has the variance 2 Σ M², off the diagonal."""
    model = net(nn.BatchNorm1d(5))
    dense = dense_hessian(twin(model, "batch", batch), batch)
    exact = np.linalg.eigvalsh(dense)
    error, error_square = (
        np.sqrt(2 * ((m - np.diag(np.diag(m))) ** 2).sum() / 40) / 42 for m in (dense, dense @ dense)
    )
    found = Spectrum(density_vectors=40, density_steps=20)(model, loss_fn, batch)
    assert found.trace == pytest.approx(dense.trace(), abs=4 * found.trace_error)
    assert found.trace_error == pytest.approx(42 * error, rel=0.4)
    grid, density = np.array(found.density_grid), np.array(found.density)
    assert np.trapezoid(density, grid) == pytest.approx(1)
    mean, width = np.trapezoid(density * grid, grid), 0.01 * (exact[-1] - exact[0])
    assert mean == pytest.approx(found.trace / 42, abs=0.02 * width)  # the same vectors
    assert mean == pytest.approx(exact.mean(), abs=4 * error)
    square = np.trapezoid(density * grid**2, grid)
    assert square == pytest.approx((exact**2).mean() + width**2, abs=4 * error_square)
    assert 4 * error_square < 0.7 * (exact**2).mean()
    less = Spectrum(trace_vectors=40, top=3)(model, loss_fn, batch)  # without what varies most
    assert less.trace == pytest.approx(dense.trace(), abs=4 * less.trace_error)
    assert less.trace_error < 0.3 * found.trace_error
    whole = Spectrum(density_vectors=1, lower_end=True)(model, loss_fn, batch)  # from all eigenvalues
    grid, density = np.array(whole.density_grid), np.array(whole.density)
    assert np.trapezoid(density * grid, grid) == pytest.approx(exact.mean(), rel=1e-3)
    assert np.trapezoid(density * grid**2, grid) == pytest.approx((exact**2).mean() + width**2, rel=1e-3)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("momentum", "dampening"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.3)])
def test_the_stable_learning_rate_is_where_descent_turns(momentum: float, dampening: float, nesterov: bool) -> None:
    """On ½λx², torch's SGD ends at zero just below it and flies off just above it."""
    if nesterov and (dampening or not momentum):
        return
    told = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}

    def after(learning_rate: float) -> float:
        x = nn.Parameter(torch.ones(1, dtype=torch.double))
        optimizer = torch.optim.SGD([x], learning_rate, **told)
        for _ in range(1000):
            optimizer.zero_grad()
            (1.5 * x**2).sum().backward()
            optimizer.step()
        return abs(float(x.detach()))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(1, dtype=torch.double))

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.125, **told)
    found = Spectrum(optimizer=optimizer)(model, lambda m, b: (1.5 * m.x**2).sum(), None)
    assert found.learning_rate == 0.125
    assert after(0.97 * found.stable_learning_rate) < 1e-3 < 1 < after(1.03 * found.stable_learning_rate)
    assert found.stable_learning_rate == pytest.approx(
        stable_factor(momentum, dampening=dampening, nesterov=nesterov) / 3
    )


def test_learning_rates_of_other_optimizers(batch: Batch) -> None:
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.3}]
    found = Spectrum(optimizer=torch.optim.Adam(groups))(model, loss_fn, batch)
    assert found.learning_rate == 0.3 and found.stable_learning_rate == 2 / found.largest[0]
    upside_down = Spectrum()(model, lambda m, b: -sum(p.square().sum() for p in m.parameters()), batch)
    assert upside_down.largest == pytest.approx((-2.0,)) and upside_down.stable_learning_rate == math.inf
