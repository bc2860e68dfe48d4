"""Condition numbers against numpy's SVD of hand-built matrices and torch.func's Hessians."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call

import trimtab
from tests.bnp import oracle
from tests.bnp.strategies import convolution_case, linear_case, tensor
from tests.probes.small_models import (
    Tied,
    cross_entropy,
    images,
    small,
    vectors,
)
from tests.probes.untouched import untouched
from trimtab.probes import Conditioning
from trimtab.probes.conditioning.patches import columns_of, row_count, rows_of, unit_of
from trimtab.probes.conditioning.singular import condition, factors, hessian_condition
from trimtab.theory.bounds.inputs import condition_number, matrices

Array = oracle.Array
DOUBLE = torch.finfo(torch.float64).eps


def kappa(matrix: Array, rank: int | None = None) -> float:
    """By numpy, the rank being known or numpy's."""
    values = np.linalg.svd(matrix, compute_uv=False)
    return float(values[0] / values[(rank or np.linalg.matrix_rank(matrix)) - 1])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_rows_are_those_of_the_layer_itself(data: st.DataObject, seed: int) -> None:
    layer, steps = data.draw(st.one_of(linear_case(), convolution_case(False), convolution_case(True)))
    x = tensor(steps[0][0], torch.Generator().manual_seed(seed))
    with torch.no_grad():
        y = layer(x)
    expected = oracle.extended_matrix(layer, x)
    rows = row_count(layer, y)
    chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[: data.draw(st.integers(1, rows))]
    for group, matrix in enumerate(expected):
        found = rows_of(layer, x, y, group, chosen)
        assert found.shape == (len(chosen), columns_of(layer))
        np.testing.assert_allclose(found, matrix[chosen.numpy()], atol=1e-12)
    # Lemma 8: the rows times a unit's weights are what the unit computes
    weights = oracle.weights_by_group(layer, layer.weight)
    groups, outputs, _ = weights.shape
    for unit in range(groups * outputs):
        product = expected[unit // outputs] @ weights[unit // outputs, unit % outputs]
        product += 0 if layer.bias is None else float(layer.bias.detach()[unit])
        np.testing.assert_allclose(unit_of(layer, y, unit).reshape(-1), product, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 30), columns=st.integers(1, 30), seed=st.integers(0, 2**16), data=st.data())
def test_condition_numbers_of_matrices_of_any_rank(rows: int, columns: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    rank = data.draw(st.integers(1, min(rows, columns)))
    matrix = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns)) * 10.0 ** rng.uniform(-1, 1, columns)
    basis, core = factors(torch.tensor(matrix), DOUBLE)
    assert core.shape == (rank, columns)
    np.testing.assert_allclose(basis @ core, matrix, atol=1e-9 * np.abs(matrix).max())
    np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=1e-12)
    assert condition(core) == pytest.approx(kappa(matrix, rank), rel=1e-6)
    half = rng.normal(size=(rows, rows))
    curvature = half + half.T  # of both signs
    within_basis = basis.T @ torch.tensor(curvature) @ basis
    found, found_rank = hessian_condition(within_basis, core, DOUBLE)
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix.T @ curvature @ matrix)))[::-1]
    assert found_rank == rank
    if values[rank - 1] > 1e-12 * values[0]:  # numpy's own rounding
        assert found == pytest.approx(values[0] / values[rank - 1], rel=1e-2)


def test_zeros_have_no_condition_number() -> None:
    basis, core = factors(torch.zeros(3, 2, dtype=torch.double), DOUBLE)
    assert core.shape == (0, 2) and math.isnan(condition(core))
    nothing = hessian_condition(torch.zeros(2, 2).double(), torch.eye(2).double(), DOUBLE)
    assert math.isnan(nothing[0]) and nothing[1] == 0
    assert basis.shape == (3, 0)


@pytest.mark.parametrize(("rows", "columns"), [(400, 30), (60, 60), (40, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_told_from_rank(rows: int, columns: int, dtype: torch.dtype) -> None:
    """A part of the rank is missing; rounding to single precision or less fills it with noise."""
    rank = min(rows, columns) // 2
    for seed in range(20):
        rng = np.random.default_rng(seed)
        left, right = (np.linalg.qr(rng.normal(size=(size, rank)))[0] for size in (rows, columns))
        matrix = (left * np.linspace(1, 4, rank)) @ right.T * 10.0 ** rng.uniform(-2, 2, columns)
        rounded = torch.tensor(matrix).to(dtype).double()
        assert np.linalg.matrix_rank(rounded.numpy()) > rank  # so much for numpy
        _, core = factors(rounded, torch.finfo(dtype).eps)
        assert core.shape[0] == rank
        tolerance = {torch.float32: 1e-3, torch.bfloat16: 0.1}[dtype]
        assert condition(core) == pytest.approx(kappa(matrix, rank), rel=tolerance)


@pytest.mark.parametrize("norm", [nn.LayerNorm(24), nn.BatchNorm1d(24, affine=False), nn.Softmax(1)])
def test_layers_that_take_a_rank_away(norm: nn.Module) -> None:
    """What sums to 0 or 1 in every row does so up to rounding only, in whatever precision."""
    torch.manual_seed(0)
    x = 3 * torch.randn(200, 24, dtype=torch.double) + 1
    ranks = []
    for dtype in (torch.float64, torch.float32):
        model = nn.Sequential(norm, nn.Linear(24, 2)).to(dtype)
        found = Conditioning()(model, lambda m, b: m(b).square().mean(), x.to(dtype)).layers["1"]
        ranks.append((found.rank, round(math.log10(found.inputs), 3)))
    assert ranks[0] == ranks[1]
    assert ranks[0][0] == (25 if isinstance(norm, nn.BatchNorm1d) else 24)


def by_hand(
    model: nn.Module, name: str, batch: Any, loss_fn: Any, unit: int, **options: Any
) -> tuple[Array, Array, Array, Array]:
    """Ĥ, U, D and the Hessian block of a unit, all dense: rows by asking the layer, statistics and P from the paper."""
    layer: Any = model.get_submodule(name)
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((*args, *kwargs.values())[0].detach()), with_kwargs=True
    )
    loss_fn(model, batch)
    handle.remove()
    per_group = getattr(layer, "out_channels", 0) // getattr(layer, "groups", 1) or 10**6
    group, within = unit // per_group, unit % per_group
    rows = np.concatenate([oracle.extended_matrix(layer, x)[group] for x in seen])
    mean, variance, _ = oracle.Reference(layer, **options).batch(seen)
    mean, variance = (np.split(v, getattr(layer, "groups", 1))[group] for v in (mean, variance))
    bias = layer.bias is not None and layer.bias.requires_grad
    spread = variance if bias else variance + mean**2
    scale = spread + options.get("eps1", 1e-2) * spread.max() + options.get("eps2", 1e-4)
    weight = layer.weight.detach()

    def loss(w: Tensor) -> Tensor:
        new = weight.clone()
        flat = w[1:] if bias else w
        if oracle.is_transposed(layer):
            size = weight.shape[0] // layer.groups
            new[group * size : (group + 1) * size, within] = flat.view(size, *weight.shape[2:])
        else:
            new[unit] = flat.view(weight.shape[1:])
        values = {f"{name}.weight": new}
        if bias:
            old = layer.bias.detach()
            values[f"{name}.bias"] = torch.cat([old[:unit], w[:1], old[unit + 1 :]])
        return loss_fn(lambda x: functional_call(model, values, (x,)), batch)

    old = oracle.weights_by_group(layer, weight)[group][within]
    old = np.concatenate([[float(layer.bias.detach()[unit])], old]) if bias else old
    block = hessian(loss, torch.tensor(old)).numpy()
    if bias:
        rows = np.column_stack([np.ones(len(rows)), rows])
        centring, scaling = np.eye(len(old)), np.diag(np.concatenate([[1.0], 1 / np.sqrt(scale)]))
        centring[0, 1:] = -mean
        return rows, centring, scaling, block
    return rows, np.eye(len(old)), np.diag(1 / np.sqrt(scale)), block


def check(model: nn.Module, name: str, batch: Any, loss_fn: Any, unit: int = 0, **options: Any) -> Any:
    """The probe's numbers for one unit equal those by hand."""
    rows, centring, scaling, block = by_hand(model, name, batch, loss_fn, unit, **options)
    probe = Conditioning(units=unit + 1 if unit else 1, only=(name,), **options)
    with untouched(model):
        found = probe(model, loss_fn, batch).layers[name]
    rank = int(np.linalg.matrix_rank(rows / np.maximum(np.linalg.norm(rows, axis=0), 1e-300)))
    assert (found.rows, found.used_rows, found.columns, found.rank) == (len(rows), len(rows), rows.shape[1], rank)
    assert found.inputs == pytest.approx(kappa(rows, rank), rel=1e-6)
    assert found.centred == pytest.approx(kappa(rows @ centring, rank), rel=1e-6)
    assert found.normalized == pytest.approx(kappa(rows @ centring @ scaling, rank), rel=1e-6)
    assert found.scaling == pytest.approx(kappa(scaling, len(scaling)))
    change = centring @ scaling
    values = [np.sort(np.abs(np.linalg.eigvalsh(m)))[::-1] for m in (block, change.T @ block @ change)]
    if not unit:  # one unit: no medians
        assert found.units == 1
        assert found.hessian_rank == np.linalg.matrix_rank(block, tol=1e-12 * values[0][0], hermitian=True)
        before, after = (float(v[0] / v[found.hessian_rank - 1]) for v in values)
        assert found.hessian == pytest.approx(before, rel=1e-4)
        assert found.preconditioned == pytest.approx(after, rel=1e-4)
    return found


def curved(model: Any, batch: Tensor) -> Tensor:
    y = model(batch)
    return (y.sin() + 0.1 * y.square()).flatten(1).sum(1).exp().mean() if y.ndim > 1 else y.sin().sum()


def features(count: int, width: int, seed: int = 0) -> Tensor:
    """Inputs of unlike mean and scale."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-2, 1, width, dtype=torch.double)
    return (torch.randn(count, width, generator=generator, dtype=torch.double) + 1) * scale


@pytest.mark.parametrize("count", [40, 5, 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{}, {"eps1": 0.0, "eps2": 1e-9}])
def test_dense_layers(count: int, bias: bool, options: dict[str, float]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 6, bias=bias), nn.Tanh(), nn.Linear(6, 3, bias=bias)).double()
    for name in ("0", "2"):
        found = check(net, name, features(count, 7), curved, **options)
        assert found.centred <= found.normalized * found.scaling * (1 + 1e-9)  # bnp Sec. 3.3
        if count == 40:
            assert found.centred <= found.inputs  # Theorem 4


def test_against_the_theorems_own_functions() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 2)).double(), features(30, 6)
    found = Conditioning(eps1=0, eps2=0)(net, curved, x).layers["0"]
    parts = matrices(x.numpy())
    assert found.inputs == pytest.approx(condition_number(parts.augmented))
    assert found.centred == pytest.approx(condition_number(parts.augmented @ parts.centring))
    assert found.normalized == pytest.approx(condition_number(parts.normalized))
    assert found.scaling == pytest.approx(condition_number(np.diag(parts.scaling)))
    assert found.hessian / found.preconditioned <= condition_number(parts.preconditioner) ** 2


def test_median_over_units() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)).double(), features(30, 6)
    blocks = [by_hand(net, "0", x, curved, unit) for unit in (0, 3, 6)]
    before = [kappa(block) for *_, block in blocks]
    after = [kappa((u @ d).T @ block @ u @ d) for _, u, d, block in blocks]
    found = Conditioning(units=3)(net, curved, x).layers["0"]
    assert found.units == 3
    assert found.hessian == pytest.approx(sorted(before)[1], rel=1e-5)
    assert found.preconditioned == pytest.approx(sorted(after)[1], rel=1e-5)
    assert Conditioning(units=99)(net, curved, x).layers["0"].units == 9


CONVOLUTIONS = {
    "same": nn.Conv2d(2, 3, 3, padding=1),
    "stride": nn.Conv2d(2, 3, (3, 2), stride=2),
    "dilation": nn.Conv2d(2, 3, 2, dilation=2, padding=(1, 0)),
    "circular": nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    "no bias": nn.Conv2d(2, 3, 3, padding=1, bias=False),
    "groups": nn.Conv2d(4, 6, 2, groups=2),
    "depthwise": nn.Conv2d(4, 4, 3, groups=4, bias=False),
    "one": nn.Conv1d(3, 2, 3, padding="same"),
    "three": nn.Conv3d(1, 2, 2),
    "transposed": nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
    "transposed groups": nn.ConvTranspose1d(4, 6, 3, groups=2),
}


@pytest.mark.parametrize("spatial", ["channel", "site"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, spatial: str) -> None:
    torch.manual_seed(0)
    layer: Any = CONVOLUTIONS[name].double()
    space = len(layer.kernel_size)
    x = 1 + torch.randn(6, layer.in_channels, *[5, 4, 3][:space], dtype=torch.double)
    x *= torch.logspace(-1, 1, layer.in_channels, dtype=torch.double).view(-1, *[1] * space)
    net = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)).double()
    net(x)
    if spatial == "site" and oracle.is_transposed(layer):
        found = Conditioning(spatial="site")(net, curved, x)
        assert "spatial='site' is not defined for" in found.left_out["0"]
    else:
        check(net, "0", x, curved, spatial=spatial)


def test_a_unit_of_another_group() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 4, 2, groups=2).double()
    net = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(36, 2)).double()
    x = torch.randn(6, 4, 4, 4, dtype=torch.double) * torch.tensor([1.0, 2, 3, 40]).view(-1, 1, 1)
    found = Conditioning(units=2)(net, curved, x).layers["0"]  # the units 0 and 2, one of each group
    cases = [by_hand(net, "0", x, curved, unit) for unit in (0, 2)]
    assert found.inputs == pytest.approx(np.mean([kappa(rows) for rows, *_ in cases]))
    assert found.scaling == pytest.approx(np.mean([kappa(d) for _, _, d, _ in cases]))
    assert found.hessian == pytest.approx(np.mean([kappa(block) for *_, block in cases]), rel=1e-5)


def test_batchnorm_after_it_couples_the_samples() -> None:
    """In train mode S is no longer diagonal, and a bias has no effect: the block has a row of zeros."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2)).double()
    x = features(20, 4)
    found = check(net, "0", x, curved)
    assert (found.rank, found.hessian_rank) == (5, 4)
    single = Conditioning(units=1)(net.float(), curved, x.float()).layers["0"]
    assert single.hessian_rank == 4
    assert single.hessian == pytest.approx(found.hessian, rel=0.05)
    frozen = Conditioning(units=1, statistics="frozen")(net, curved, x.float()).layers["0"]
    assert frozen.hessian_rank == 5


def test_single_precision_resolves_hessians_beyond_its_own_digits() -> None:
    torch.manual_seed(0)
    x = features(60, 20) * torch.logspace(-1, 1, 20, dtype=torch.double)
    net = nn.Sequential(nn.Linear(20, 3)).double()
    nn.init.normal_(net[0].weight, std=0.01)
    batch = {"x": x, "y": torch.arange(60) % 3}
    exact = Conditioning(units=1)(net, cross_entropy, batch).layers["0"]
    assert exact.hessian > 1e9 > 100 / torch.finfo(torch.float32).eps
    batch["x"] = x.float()
    single = Conditioning(units=1)(net.float(), cross_entropy, batch).layers["0"]
    assert single.hessian_rank == 21
    assert single.hessian == pytest.approx(exact.hessian, rel=0.01)
    assert single.preconditioned == pytest.approx(exact.preconditioned, rel=0.01)


def test_fewer_samples_than_columns_in_single_precision() -> None:
    """S is as large as there are samples; its small entries, of samples that count for little, keep their digits."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(40, 1)).double(), torch.randn(12, 40, dtype=torch.double)
    weights = torch.logspace(0, -5, 12, dtype=torch.double)

    def loss(model: Any, batch: Tensor) -> Tensor:
        return weights.to(batch.dtype) @ model(batch).squeeze(1).square()

    exact = Conditioning()(net, loss, x).layers["0"]
    single = Conditioning()(net.float(), loss, x.float()).layers["0"]
    assert exact.hessian > 1e5 and exact.hessian_rank == single.hessian_rank == 12
    assert single.hessian == pytest.approx(exact.hessian, rel=1e-5)


@pytest.mark.parametrize("count", [5, 30])
def test_a_block_takes_few_second_derivatives(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **told: taken.append(1) or grad(*args, **told))
    Conditioning(units=2)(nn.Sequential(nn.Linear(7, 3)).double(), curved, features(count, 7))
    assert len(taken) == 1 + 2 * min(count, 8)


def test_features_that_do_not_vary() -> None:
    """With ε₁ and ε₂ at 0 their σ is 0; they keep their scale, and centred they are columns of zeros."""
    net, x = nn.Sequential(nn.Linear(6, 2)).double(), features(30, 6)
    x[:, 4] = 3.0
    found = Conditioning(eps1=0, eps2=0)(net, curved, x).layers["0"]
    parts = matrices(np.delete(x.numpy(), 4, 1))
    assert (found.columns, found.rank) == (7, 6)
    assert found.centred == pytest.approx(condition_number(parts.augmented @ parts.centring))
    assert found.normalized == pytest.approx(condition_number(parts.normalized))
    assert found.scaling == pytest.approx(condition_number(np.diag(parts.scaling)))


def test_dead_units_have_no_block() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        net[0].bias[[0, 2]] = -100.0
        net[0].bias[[1, 3]] = 100.0
    loss = lambda m, b: m(b).square().mean()  # noqa: E731
    x = torch.rand(9, 3, dtype=torch.double)
    assert Conditioning(units=4)(net, loss, x).layers["0"].units == 2
    dead = Conditioning(units=1)(net, loss, x).layers["0"]
    assert dead.units == 0 and math.isnan(dead.hessian) and "are 0" in str(dead.note) and dead.inputs > 1
    flat = Conditioning(units=1)(net, lambda m, b: m(b).mean(), x).layers["2"]  # linear: no curvature at all
    assert flat.units == 0 and "are 0" in str(flat.note)
    apart = Conditioning(units=1)(net, lambda m, b: m(b).detach().mean(), x).layers["2"]
    assert apart.units == 0 and "are 0" in str(apart.note)


def test_limits() -> None:
    torch.manual_seed(0)
    net, batch = small().eval(), images(16)
    found = Conditioning(max_entries=19 * 30, max_products=6)(net, cross_entropy, batch).layers
    assert found["0"].rows == 16 * 16 and found["0"].used_rows == 30
    assert "max_entries" in str(found["0"].note) and math.isnan(found["0"].hessian)
    assert found["0"].inputs != Conditioning()(net, cross_entropy, batch).layers["0"].inputs
    assert found["5"].used_rows == 570 // 65 and found["5"].rank <= 8
    assert "max_products" in str(found["8"].note) and found["8"].used_rows == 16
    again = Conditioning(max_entries=19 * 30, seed=1)(net, cross_entropy, batch).layers["0"]
    assert again.inputs != found["0"].inputs
    none = Conditioning(units=0)(net, cross_entropy, batch).layers["8"]
    assert "no unit" in str(none.note) and none.inputs > 1


def test_drawn_rows_estimate_the_whole() -> None:
    """On many rows a part has almost the same condition number, and U and D are still those of all rows."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(5, 2)).double(), features(20_000, 5)
    whole = Conditioning(units=0)(net, curved, x).layers["0"]
    part = Conditioning(units=0, max_entries=6 * 4000)(net, curved, x).layers["0"]
    assert part.used_rows == 4000 and part.scaling == whole.scaling
    assert part.inputs == pytest.approx(whole.inputs, rel=0.05)
    assert part.normalized == pytest.approx(whole.normalized, rel=0.05)


def test_statistics_of_bnp() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)).double(), features(30, 5)
    bnp = trimtab.BNP(net, eps1=1e-3, eps2=1e-5, rho=0.5)
    probe = Conditioning(bnp=bnp, units=1)
    assert {one.statistics for one in probe(net, curved, x).layers.values()} == {"batch"}  # it has seen nothing yet
    for seed in range(3):
        net.zero_grad()
        curved(net, features(30, 5, seed)).backward()
        bnp.step()
    with untouched(net, bnp=bnp):
        found = probe(net, curved, x).layers
    state = bnp.state_dict()["layers"]
    for name, bias in (("0", True), ("2", False)):
        rows, _, _, block = by_hand(net, name, x, curved, 0)
        mean, variance = (state[name]["running"][key].numpy() for key in ("mean", "variance"))
        spread = variance if bias else variance + mean**2
        scale = spread + 1e-3 * spread.max() + 1e-5
        change = oracle.preconditioner(mean, scale) if bias else np.diag(1 / np.sqrt(scale))
        assert found[name].statistics == "running"
        assert found[name].normalized == pytest.approx(kappa(rows @ change))
        assert found[name].preconditioned == pytest.approx(kappa(change.T @ block @ change), rel=1e-4)
    by_batch = trimtab.BNP(net, statistics="batch")
    net.zero_grad()
    curved(net, x).backward()
    by_batch.step()
    assert Conditioning(bnp=by_batch)(net, curved, x).layers["0"].statistics == "batch"


def test_modules_called_twice_pool_their_rows() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.layer(x).tanh()).sum() * self.last(self.layer(input=2 + x[:3]).tanh())

    torch.manual_seed(0)
    net, x = Twice().double(), features(10, 4)
    found = Conditioning(units=1)(net, curved, x).layers["layer"]
    rows = np.concatenate([x.numpy(), 2 + x[:3].numpy()])
    assert found.rows == 13
    assert found.inputs == pytest.approx(kappa(np.column_stack([np.ones(13), rows])))
    part = Conditioning(units=0, max_entries=5 * 8)(net, curved, x).layers["layer"]
    chosen = torch.randperm(13, generator=torch.Generator().manual_seed(0))[:8].numpy()
    assert part.inputs == pytest.approx(kappa(np.column_stack([np.ones(8), rows[chosen]])))
    # Neither call feeds the other: the block is that of the weights, with what they have in common.
    block = by_hand(net, "layer", x, curved, 0)[-1]
    assert found.hessian == pytest.approx(kappa(block), rel=1e-5)


def test_layers_that_are_left_out() -> None:
    torch.manual_seed(0)
    net = Tied()
    net.weighted = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))  # type: ignore[assignment]
    found = Conditioning()(net, cross_entropy, vectors(12))
    assert set(found.layers) == {"first", "last", "twice"}
    assert found.left_out == {
        "one": "it shares parameters with 'other'",
        "other": "it shares parameters with 'one'",
        "unused": "the loss does not call it as a module",
        "frozen": "its weight is frozen",
        "weighted": "its weight is computed from other parameters",
    }
    assert found.layers["twice"].rows == 24

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(5))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    trimtab.register_layer(Own)(lambda layer, x, y, options: None)
    assert Conditioning()(nn.Sequential(Own()), cross_entropy, vectors(4)).left_out == {
        "0": "the rows of Own are not known"
    }
    zero = Conditioning()(
        nn.Sequential(nn.Linear(5, 5, bias=False)), lambda m, b: m(0 * b["x"]).square().mean(), vectors(4)
    )
    assert zero.left_out == {"0": "its inputs are 0"}
    wild = lambda m, b: nn.functional.softplus(-m(b["x"] / 0)).clamp(max=1).mean()  # noqa: E731
    odd = nn.Sequential(nn.Linear(5, 1))
    nn.init.ones_(odd[0].weight)
    batch = {"x": torch.ones(3, 5)}
    assert Conditioning()(odd, wild, batch).left_out == {"0": "its inputs are not finite"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_other_precisions_and_modes(dtype: torch.dtype, training: bool) -> None:
    torch.manual_seed(0)
    net = small().to(dtype).train(training)
    found = Conditioning()(net, cross_entropy, images(8, dtype))
    assert found.problem is None and set(found.layers) == {"0", "5", "8"}
    assert all(one.inputs >= 1 and one.hessian >= 1 for one in found.layers.values())


def test_one_sample() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5)).double()
    found = Conditioning()(net, cross_entropy, vectors(1, torch.double)).layers["0"]
    assert (found.rows, found.rank, found.inputs, found.hessian_rank) == (1, 1, 1.0, 1)
    assert found.hessian == found.preconditioned == pytest.approx(1.0)


def test_what_cannot_be_differentiated_twice_is_said() -> None:
    net, loss_fn = nn.Sequential(nn.Linear(5, 5)), nn.MultiMarginLoss()
    found = Conditioning()(net, lambda m, b: loss_fn(m(b["x"]), b["y"]), vectors(9)).layers["0"]
    assert "is not implemented" in str(found.note) and found.inputs > 1 and math.isnan(found.hessian)


def test_attention_and_checkpointing() -> None:
    class Attentive(nn.Module):
        def __init__(self, checkpointed: bool) -> None:
            super().__init__()
            self.q, self.k, self.v, self.last = (nn.Linear(8, 8) for _ in range(4))
            self.checkpointed = checkpointed

        def attend(self, x: Tensor) -> Tensor:
            heads = [layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v)]
            return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)

        def forward(self, x: Tensor) -> Tensor:
            if self.checkpointed:
                return self.last(torch.utils.checkpoint.checkpoint(self.attend, x, use_reentrant=False))
            return self.last(self.attend(x))

    x = torch.randn(3, 4, 8)
    found = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        net = Attentive(checkpointed)
        with untouched(net):
            found.append(Conditioning()(net, lambda m, b: m(b).square().mean(), x).layers)
    assert set(found[0]) == {"q", "k", "v", "last"} and found[0]["q"].units == 3 and found[0]["q"].rows == 12
    for name in found[0]:
        assert found[0][name].hessian == pytest.approx(found[1][name].hessian, rel=0.01)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"units": -1}, "units must be a whole number, 0 or larger"),
        ({"max_entries": 0}, "max_entries must be a whole number, 1 or larger"),
        ({"max_products": -1}, "max_products must be a whole number, 0 or larger"),
        ({"eps1": -1.0}, "eps1"),
        ({"spatial": "pixel"}, "spatial"),
    ],
)
def test_arguments(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Conditioning(**told)


def test_names_of_layers() -> None:
    with pytest.raises(ValueError, match="only: no layer is called '1'; the layers are '0', '5', '8'"):
        Conditioning(only=("1",))(small(), cross_entropy, images())


def test_the_result_as_a_dictionary() -> None:
    result = Conditioning()(small(), cross_entropy, images()).to_dict()
    assert result["layers"]["0"]["rows"] == 128 and result["left_out"] == {} and result["problem"] is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_finds_what_the_cpu_finds() -> None:
    torch.manual_seed(0)
    net, batch = small().double().eval(), images(8, torch.double)
    for module in net:
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # its masks differ
    expected = Conditioning()(net, cross_entropy, batch).layers
    on_gpu = {key: value.cuda() for key, value in batch.items()}
    net = net.cuda()
    optimizer = torch.optim.Adam(net.parameters())
    bnp = trimtab.BNP(net).attach(optimizer)
    state = torch.cuda.get_rng_state()
    with untouched(net, optimizer, bnp):
        found = Conditioning()(net, cross_entropy, on_gpu).layers
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for name, one in expected.items():
        assert found[name].rank == one.rank and found[name].hessian_rank == one.hessian_rank
        for kind in ("inputs", "centred", "normalized", "scaling", "hessian", "preconditioned"):
            assert getattr(found[name], kind) == pytest.approx(getattr(one, kind), rel=1e-3)
    bnp.detach()


def test_norms_of_hessian_blocks_against_autograd() -> None:
    """‖H‖ and ‖PᵀHP‖ of every unit by dense matrices; q² by its formula (Prop. 5)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = 3 * torch.randn(6, 9).double() + 1, torch.arange(6) % 3

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(batch), y)

    found = Conditioning(units=4, eps1=0.01, eps2=1e-4)(model, loss, x)
    inputs = {"0": x, "2": model[:2](x).detach()}
    expected = {}
    for name, h in inputs.items():
        layer = model.get_submodule(name)
        mean, variance = h.numpy().mean(0), h.numpy().var(0)
        p = oracle.preconditioner(mean, variance + 0.01 * variance.max() + 1e-4)
        before, after = [], []
        for unit in range(layer.out_features):

            def changed(v: Tensor, name: str = name, layer: nn.Module = layer, unit: int = unit) -> Tensor:
                mask = torch.arange(layer.out_features) == unit
                values = {
                    f"{name}.weight": torch.where(mask[:, None], v[1:], layer.weight.detach()),
                    f"{name}.bias": torch.where(mask, v[0], layer.bias.detach()),
                }
                return nn.functional.cross_entropy(functional_call(model, values, (x,)), y)

            start = torch.cat([layer.bias[unit : unit + 1], layer.weight[unit]]).detach()
            block = hessian(changed, start).numpy()
            before.append(np.abs(np.linalg.eigvalsh(block)).max())
            after.append(np.abs(np.linalg.eigvalsh(p.T @ block @ p)).max())
        expected[name] = float(np.median(before)), float(np.median(after)), max(layer.in_features / 6, 1)
        one = found.layers[name]
        assert (one.hessian_norm, one.preconditioned_norm, one.q2) == pytest.approx(expected[name])
    (a, b, q), (c, d, r) = expected.values()
    ratios = {"hessian": (a, c), "preconditioned": (b, d), "divided": (b / q, d / r)}
    assert found.norm_ratios() == pytest.approx({name: max(pair) / min(pair) for name, pair in ratios.items()})
    assert math.isnan(Conditioning(units=0)(model, loss, x).norm_ratios()["divided"])
