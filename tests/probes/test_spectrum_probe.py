"""The spectrum probe against dense matrices by torch.func and numpy's eigenvalues, and what it leaves behind."""

import gc
import math
import random
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

import trimtab
from tests.probes.untouched import untouched
from trimtab.probes import Spectrum, fisher_lambda_max
from trimtab.probes.spectrum import stable_factor
from trimtab.probes.spectrum.operators import Curvature

Batch = dict[str, Tensor]
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch.func's own


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def forward(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["x"])


def criterion(outputs: Tensor, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(outputs, batch["y"])


def net(norm: nn.Module | None = None) -> nn.Sequential:
    """42 parameters with a norm, 32 without."""
    torch.manual_seed(1)
    layers = [nn.Linear(3, 5), *([norm] if norm else []), nn.Tanh(), nn.Linear(5, 2)]
    return nn.Sequential(*layers).double()


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
    given = {"train": (), "frozen": (z.mean(0), z.var(0, correction=0)), "eval": (norm.running_mean, norm.running_var)}
    return nn.Sequential(model[0], Written(norm, *given[statistics]), *model[2:])


def flat(model: nn.Module, function: Callable[[nn.Module], Tensor]) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function of the model as one of all trained parameters in a row."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    place = torch.cat([p.flatten() for p in parameters.values()])

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self) -> Tensor:
            return function(self.inner)

    def of(vector: Tensor) -> Tensor:
        parts = vector.split([p.numel() for p in parameters.values()])
        named = zip(parameters.items(), parts, strict=True)
        return functional_call(Stage(), {f"inner.{name}": part.view_as(p) for (name, p), part in named}, ())

    return of, place


def dense_hessian(model: nn.Module, batch: Batch, function=loss_fn) -> np.ndarray:
    of, place = flat(model, lambda m: function(m, batch))
    return hessian(of)(place).detach().numpy()


def dense_ggn(model: nn.Module, batch: Batch, inner=criterion) -> np.ndarray:
    of, place = flat(model, lambda m: forward(m, batch))
    jacobian = jacrev(of)(place).flatten(0, 1)
    outputs = of(place)
    outer = hessian(lambda o: inner(o.view_as(outputs), batch))(outputs.flatten())
    return (jacobian.T @ outer @ jacobian).detach().numpy()


def moved(model: nn.Sequential, batch: Batch) -> nn.Sequential:
    """Running statistics that are not those of the batch."""
    for _ in range(3):
        model(batch["x"] * 1.5)
    return model


@pytest.mark.parametrize("statistics", ["train", "frozen", "eval"])
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
    values = [Spectrum(statistics=s)(model, loss_fn, batch).largest[0] for s in ("train", "frozen", "eval")]
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
        few = Spectrum(lower_end=True, most_products=3, **told)(model, loss_fn, batch)
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
    plain = twin(model, "train", batch)
    dense = dense_hessian(plain, batch) if matrix == "hessian" else dense_ggn(plain, batch)
    blocks = {"0": slice(0, 20), "1": slice(20, 30), "3": slice(30, 42)}
    told = {"matrix": matrix, "forward": forward, "criterion": criterion, "per_layer": True, "tolerance": 1e-8}
    found = Spectrum(**told)(model, loss_fn, batch)
    exact = {name: np.linalg.eigvalsh(dense[part, part])[-1] for name, part in blocks.items()}
    assert found.layers == pytest.approx(exact)
    assert found.products > Spectrum(**(told | {"per_layer": False}))(model, loss_fn, batch).products + 3
    assert list(Spectrum(most_layers=2, **told)(model, loss_fn, batch).layers) == ["0", "3"]


def test_trace_and_density(batch: Batch) -> None:
    """Within four standard errors of what random signs give: zᵀMz has the variance 2 Σ M², off the diagonal."""
    model = net(nn.BatchNorm1d(5))
    dense = dense_hessian(twin(model, "train", batch), batch)
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


ALL = {"top": 2, "trace_vectors": 2, "density_vectors": 1, "density_steps": 5, "per_layer": True}
MATRICES = [{"matrix": "hessian"}, {"matrix": "ggn"}, {"matrix": "fisher"}]


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: m["matrix"])
@pytest.mark.parametrize("statistics", ["train", "frozen", "eval"])
def test_nothing_changes(matrix: dict, statistics: str, batch: Batch) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(), nn.Linear(5, 2)).double()
    optimizer = torch.optim.Adam(model.parameters())
    bnp = trimtab.BNP(model).attach(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    told = {"forward": forward, "criterion": criterion, "statistics": statistics, "optimizer": optimizer, **ALL}
    with untouched(model, optimizer, bnp):
        found = Spectrum(**told, **matrix)(model, loss_fn, batch)
        again = Spectrum(**told, **matrix)(model, loss_fn, batch)
    assert found.problem is None
    assert found == again  # the same masks and the same random vectors
    assert Spectrum(**told, **matrix, seed=1)(model, loss_fn, batch).trace != found.trace


def test_a_run_with_the_probe_is_bit_identical_to_one_without(batch: Batch) -> None:
    def run(probing: bool) -> list[Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2)).double()
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        bnp = trimtab.BNP(model).attach(optimizer)
        probe = Spectrum(optimizer=optimizer, **ALL)
        for _ in range(4):
            loss = loss_fn(model, batch)
            if probing:
                assert probe(model, loss_fn, batch).problem is None
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        bnp.detach()
        return [*model.parameters(), *model.buffers(), torch.tensor(random.random()), torch.rand(1)]

    random.seed(0)
    plain = run(False)
    random.seed(0)
    assert all(torch.equal(a, b) for a, b in zip(plain, run(True), strict=True))


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: m["matrix"])
def test_problems_are_said_and_not_raised(matrix: dict, batch: Batch) -> None:
    model = net(nn.BatchNorm1d(5))
    probe = Spectrum(forward=forward, criterion=criterion, **matrix)
    nan = {"x": batch["x"] * math.nan, "y": batch["y"]}

    def full(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with untouched(model):
        found = probe(model, loss_fn, nan)
        assert "not finite" in found.problem and found.largest == ()
        assert Spectrum(forward=full, criterion=criterion, **matrix)(model, full, batch).problem == "Out of memory."
    assert isinstance(found.to_dict()["layers"], dict)


def test_a_gradient_that_is_not_finite_is_said(batch: Batch) -> None:
    found = Spectrum()(net(), lambda m, b: (m(b["x"]) * 0).sqrt().sum(), batch)
    assert found.problem == "The gradient is not finite."


def test_an_operation_without_second_derivative_is_said(batch: Batch) -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g: Tensor) -> Tensor:
            return 2 * g * ctx.saved_tensors[0]

    assert "no second derivative" in Spectrum()(net(), lambda m, b: Once.apply(m(b["x"])).square().sum(), batch).problem
    told = {"matrix": "fisher", "forward": lambda m, b: Once.apply(m(b["x"]))}
    assert "no second derivative" in Spectrum(**told)(net(), loss_fn, batch).problem

    def fails(*_: object) -> Tensor:
        raise RuntimeError("another one")

    with pytest.raises(RuntimeError, match="another one"):
        Spectrum()(net(), fails, batch)


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: m["matrix"])
@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_given_back(matrix: dict, fails: bool, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref] = []
    inner = Curvature.times

    def times(self: Curvature, vector: Tensor) -> Tensor:
        result = inner(self, vector)
        seen.extend([weakref.ref(self), weakref.ref(result), *map(weakref.ref, self.leaves.values())])
        return result * math.nan if fails and len(seen) > 20 else result

    monkeypatch.setattr(Curvature, "times", times)

    def watched(model: nn.Module, batch: Batch) -> Tensor:
        result = forward(model, batch)
        seen.append(weakref.ref(result))
        return result

    probe = Spectrum(forward=watched, criterion=criterion, **ALL, **matrix)
    gc.collect()
    gc.disable()
    try:
        found = probe(net(nn.BatchNorm1d(5)), lambda m, b: criterion(watched(m, b), b), batch)
        assert (found.problem is not None) == fails
        assert len(seen) > 10 and all(ref() is None for ref in seen)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"matrix": "hesse"}, "matrix"),
        ({"statistics": "running"}, "statistics"),
        ({"likelihood": "poisson"}, "likelihood"),
        ({"matrix": "ggn"}, "forward"),
        ({"matrix": "fisher"}, "forward"),
        ({"matrix": "ggn", "forward": forward}, "criterion"),
        ({"top": 0}, "top"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
        ({"density_width": 1.0}, "density_width"),
        ({"density_steps": 0}, "density_steps"),
        ({"trace_vectors": -1}, "trace_vectors"),
        ({"most_products": 0}, "most_products"),
        ({"top": 10, "most_vectors": 10}, "most_vectors"),
    ],
)
def test_bad_options(told: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Spectrum(**told)


def test_bad_functions(batch: Batch) -> None:
    with pytest.raises(TypeError, match="forward must return"):
        Spectrum(matrix="fisher", forward=lambda m, b: (m(b["x"]),))(net(), loss_fn, batch)
    with pytest.raises(TypeError, match="criterion must return"):
        Spectrum(matrix="ggn", forward=forward, criterion=lambda o, b: o)(net(), loss_fn, batch)
    with pytest.raises(TypeError, match="loss_fn must return"):
        Spectrum()(net(), forward, batch)
