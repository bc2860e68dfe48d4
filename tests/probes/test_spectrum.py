"""The Fisher matrix's largest eigenvalue against the dense Jacobian."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import trimtab
from trimtab.norms import BatchRenorm, GhostBatchNorm, LpNorm, MeanOnlyBatchNorm, StopGradientBatchNorm
from trimtab.norms import VarianceOnlyBatchNorm as VarianceOnly
from trimtab.probes import Jacobian, fisher_lambda_max, lanczos_max


def dense_fisher(model: nn.Module, x: Tensor, outputs=slice(None)) -> Tensor:
    """JᵀJ/m itself, of all parameters."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    jacobians = jacrev(lambda p: functional_call(model, (p, buffers), (x,)))(parameters)
    chosen = [(jacobians[name][:, outputs], p.numel()) for name, p in parameters.items()]
    matrix = torch.cat([j.reshape(-1, count) for j, count in chosen], 1)
    return matrix.T @ matrix / len(x)


def largest(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[-1])


def small(norm: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(3, 5), *([norm] if norm else []), nn.Tanh(), nn.Linear(5, 2)]
    return nn.Sequential(*layers).double()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(7, 3, dtype=torch.double, generator=torch.Generator().manual_seed(0)) + 0.5


@pytest.mark.parametrize("method", ["gram", "lanczos"])
def test_equals_the_dense_matrix(method: str, x: Tensor) -> None:
    model = small()
    full = dense_fisher(model, x)
    told = {"method": method, "tolerance": 1e-10}
    assert fisher_lambda_max(model, x, **told) == pytest.approx(largest(full))
    assert fisher_lambda_max(model, x, outputs=1, **told) == pytest.approx(largest(dense_fisher(model, x, slice(1, 2))))
    summed = nn.Sequential(model, Sum())
    assert fisher_lambda_max(model, x, outputs="sum", **told) == pytest.approx(largest(dense_fisher(summed, x)))


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True)


def test_train_mode_passes_through_the_statistics_and_frozen_does_not(x: Tensor) -> None:
    model = small(nn.BatchNorm1d(5))
    train = fisher_lambda_max(model, x, statistics="batch")
    frozen = fisher_lambda_max(model, x)
    plain = small(nn.BatchNorm1d(5, track_running_stats=False))  # functional_call cannot move running statistics
    assert train == pytest.approx(largest(dense_fisher(plain, x)))
    stopped = small(StopGradientBatchNorm(5))
    stopped.load_state_dict(model.state_dict())
    assert frozen == pytest.approx(fisher_lambda_max(stopped, x, statistics="batch"))
    assert frozen > 1.2 * train
    with torch.no_grad():
        model[1].running_mean.copy_(model[0](x).mean(0))
        model[1].running_var.copy_(model[0](x).var(0, correction=0))
    assert fisher_lambda_max(model, x, statistics="running") == pytest.approx(frozen)
    assert frozen == pytest.approx(largest(dense_fisher(model.eval(), x)))


@pytest.mark.parametrize("norm", [MeanOnlyBatchNorm(5), VarianceOnly(5), LpNorm(5, p=1), BatchRenorm(5)], ids=repr)
def test_frozen_statistics_of_our_layers_are_constant(norm: nn.Module, x: Tensor) -> None:
    """The derivative by differences of the layer with the statistics of the first batch written down as constants."""
    model = small(norm)
    first, second = model[0], model[3]
    y = norm.train()(first(x)).detach()
    z = first(x).detach()
    slope = ((z - z.mean(0)) * y).sum(0) / (z - z.mean(0)).square().sum(0)
    gamma, beta = norm.weight, norm.bias
    shift = (y / gamma - slope / gamma * z).mean(0).detach()

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.gamma, self.beta = first, second, gamma, beta

        def forward(self, x: Tensor) -> Tensor:
            normalized = (slope / gamma).detach() * self.first(x) + shift
            return self.second(torch.tanh(self.gamma * normalized + self.beta))

    assert fisher_lambda_max(model, x) == pytest.approx(largest(dense_fisher(Constant(), x)))


def test_convolutions_with_batchnorm() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 3))
    net, x = net.double(), torch.randn(6, 2, 4, 4, dtype=torch.double)
    plain = nn.Sequential(net[0], nn.BatchNorm2d(4, track_running_stats=False).double(), *net[2:])
    assert fisher_lambda_max(net, x, statistics="batch") == pytest.approx(largest(dense_fisher(plain, x)))


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 40), seed=st.integers(0, 1000))
def test_lanczos_on_any_matrix(size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, dtype=torch.double, generator=generator)
    matrix = root @ root.T
    found = lanczos_max(
        lambda u: matrix @ u, torch.randn(size, dtype=torch.double, generator=generator), tolerance=1e-9
    )
    assert found == pytest.approx(largest(matrix), rel=1e-6)


def test_lanczos_on_nothing() -> None:
    assert lanczos_max(lambda u: 0 * u, torch.ones(5)) == 0.0


def test_parameters_that_are_not_trained_or_not_used_do_not_count(x: Tensor) -> None:
    model = small()
    whole = fisher_lambda_max(model, x)

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.unused = small(), nn.Linear(2, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    assert fisher_lambda_max(First(), x) == pytest.approx(whole)
    frozen = small()
    frozen[0].requires_grad_(False)
    hidden = torch.cat([torch.tanh(frozen[0](x)), torch.ones(7, 1)], 1).detach()
    assert fisher_lambda_max(frozen, x) == pytest.approx(largest(hidden.T @ hidden / 7))


def test_nothing_of_the_model_changes(x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.ReLU(), nn.Linear(5, 2)).double()
    model[1].eval()
    model(x).sum().backward()
    bnp = trimtab.BNP(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bnp.attach(optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    told = bnp.state_dict()
    state = torch.get_rng_state()
    for statistics in ("frozen", "batch", "running"):
        fisher_lambda_max(model, x, statistics=statistics)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert [module.training for module in model.modules()] == modes
    assert str(bnp.state_dict()) == str(told)
    assert not x.requires_grad


def test_products_with_the_jacobian(x: Tensor) -> None:
    jacobian = Jacobian(small(), x)
    u = torch.randn(jacobian.rows, dtype=torch.double)
    v = [torch.randn_like(t) for t in jacobian.transposed(u)]
    left = sum(float((a * b).sum()) for a, b in zip(jacobian.transposed(u), v, strict=True))
    assert left == pytest.approx(float(jacobian.times(v) @ u))
    assert jacobian.gram() @ u == pytest.approx(jacobian.gram_times(u))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"statistics": "other"}, "statistics"),
        ({"outputs": 2}, "outputs"),
        ({"outputs": "some"}, "outputs"),
        ({"method": "power"}, "method"),
    ],
)
def test_bad_input(told: dict, words: str, x: Tensor) -> None:
    with pytest.raises(ValueError, match=words):
        fisher_lambda_max(small(), x, **told)
    with pytest.raises(ValueError, match="inputs"):
        fisher_lambda_max(small(), x[:0])
    with pytest.raises(ValueError, match="no parameter"):
        fisher_lambda_max(nn.Tanh(), x)
    with pytest.raises(ValueError, match="frozen statistics are not defined for GhostBatchNorm"):
        fisher_lambda_max(small(GhostBatchNorm(5)), x)
