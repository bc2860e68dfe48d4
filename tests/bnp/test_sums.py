"""Between moments and step: rows as sums on the device, in every backend."""

import copy

import pytest
import torch
from torch import nn

from trimtab.bnp import Moments, Options, Rows
from trimtab.bnp.algorithm import transform
from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.step import LayerStep, scaling
from trimtab.bnp.backends import Backends, cpu
from trimtab.bnp.layers import output_first
from trimtab.bnp.row_sums import COUNTS, RowSums, sums_of

BACKENDS = [
    pytest.param(False, id="reference"),
    pytest.param(True, id="C", marks=pytest.mark.skipif(not cpu.available(), reason="the C kernels were not built")),
]
OPTIONS = [{}, {"debias": True}, {"statistics": "batch"}, {"no_bias": "variance"}, {"rho": 0.3}]
DTYPES = [torch.float32, torch.float64]


def layer_step(rows: Rows | RowSums, debias: bool, *, bias: bool = True) -> LayerStep:
    """The step of a grouped convolution."""
    generator = torch.Generator().manual_seed(1)
    conv = nn.Conv2d(4, 6, 2, groups=2)
    dtype = rows.dtype if isinstance(rows, RowSums) else rows.moments.dtype
    return LayerStep(
        name="conv",
        weight=torch.randn(6, 2, 2, 2, generator=generator, dtype=dtype),
        bias=torch.randn(6, generator=generator, dtype=dtype) if bias else None,
        rows=rows,
        running=RunningAverage(torch.zeros(4, dtype=dtype), debias=debias),
        view=lambda weight: output_first(conv, weight),
        shape=(2, 3, 2, 4),
        by_output=True,
    )


def result(step: LayerStep) -> list[torch.Tensor]:
    return [step.weight, *([] if step.bias is None else [step.bias]), *step.running.tensors().values()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("fast", BACKENDS)
@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("zeros", [0, 5])
@pytest.mark.parametrize("bias", [True, False])
def test_a_step_with_sums_is_the_step_with_moments(
    fast: bool, options: dict[str, object], dtype: torch.dtype, count: int, zeros: int, bias: bool
) -> None:
    settings = Options(fast=fast, **options)  # type: ignore[arg-type]
    results = []
    for summed in (False, True):
        backends = Backends(settings)
        generator = torch.Generator().manual_seed(0)
        step = layer_step(Rows(Moments.of(torch.zeros(1, 4, dtype=dtype), columns=1), 1, 1), settings.debias, bias=bias)
        for _ in range(3):
            x = 2 + torch.randn(count, 4, generator=generator, dtype=dtype)
            rows = Rows(Moments.of(x, columns=1), samples=count, positions=3 * count, zeros=zeros)
            step.rows = RowSums(sums_of(rows), (4,), dtype) if summed else rows
            assert not any(map(bool, backends.step([step], fold=True)))
        results.append(result(step))
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(results[0], results[1], **close)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("fast", BACKENDS)
def test_without_rows_nothing_changes(fast: bool, fold: bool, dtype: torch.dtype) -> None:
    """As on all processes when none has used a layer: only the device knows."""
    step = layer_step(RowSums(torch.zeros(COUNTS + 8, dtype=torch.float64), (4,), dtype), debias=True)
    before = copy.deepcopy(result(step))
    assert not any(map(bool, Backends(Options(fast=fast, debias=True)).step([step], fold)))
    assert all(torch.equal(a, b) for a, b in zip(before, result(step), strict=True))


@pytest.mark.parametrize("fast", BACKENDS)
def test_sums_that_are_not_finite_are_kept_out(fast: bool) -> None:
    sums = torch.ones(COUNTS + 8, dtype=torch.float64)
    sums[0], sums[COUNTS + 1] = 5, float("inf")
    step = layer_step(RowSums(sums, (4,), torch.float32), debias=False)
    (flag,) = Backends(Options(fast=fast)).step([step], fold=True)
    assert bool(flag)
    assert step.running.skipped == 1 and step.running.steps == 0
    assert torch.equal(step.running.mean, torch.zeros(4))


@pytest.mark.parametrize("why", ["fold=False", "rows that are not finite"])
@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("fast", BACKENDS)
def test_a_step_that_is_not_folded_uses_the_averages_as_they_are(fast: bool, debias: bool, why: str) -> None:
    options = Options(fast=fast, debias=debias)
    backends = Backends(options)
    x = 2 + torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = layer_step(Rows(Moments.of(x, columns=1), 7, 21), debias)
    backends.step([step], fold=True)
    x[0, 0] = 3 if why == "fold=False" else torch.inf
    step.rows = Rows(Moments.of(x, columns=1), 7, 21)
    before = copy.deepcopy(step.running)
    mean, scale, q2 = scaling(step, step.rows, *before.estimate(), options)
    assert step.bias is not None
    weight, bias = step.weight.view(step.shape), step.bias.view(2, 3, 1, 1)
    expected = transform.precondition(weight.clone(), bias.clone(), mean, scale, q2)
    backends.step([step], fold=why != "fold=False")
    torch.testing.assert_close(weight, expected[0])
    torch.testing.assert_close(bias, expected[1])
    for name in ("mean", "variance", "weight", "steps"):
        assert torch.equal(getattr(step.running, name), getattr(before, name))


@pytest.mark.parametrize("fast", BACKENDS)
@pytest.mark.parametrize("strides", ["gaps", "channels last", "another order"])
def test_gradients_with_any_strides_are_changed_where_they_are(fast: bool, strides: str) -> None:
    rows = Rows(Moments.of(torch.arange(20.0).view(5, 4), columns=1), 5, 5)
    step, plain = layer_step(rows, False), layer_step(rows, False)
    weight = step.weight
    if strides == "gaps":
        step.weight = torch.zeros(6, 2, 2, 5)[..., 1::2]
    else:
        order = {"channels last": (0, 2, 3, 1), "another order": (3, 1, 0, 2)}[strides]
        inverse = [order.index(dim) for dim in range(4)]
        step.weight = torch.zeros([weight.shape[dim] for dim in order]).permute(inverse)
    step.weight.copy_(weight)
    for each, its_fast in ((step, fast), (plain, False)):
        Backends(Options(fast=its_fast)).step([each], fold=True)
    assert not step.weight.is_contiguous()
    torch.testing.assert_close(result(step), result(plain))


@pytest.mark.parametrize("name", RunningAverage.NAMES)
def test_a_tensor_of_the_averages_that_is_replaced_is_the_one_that_is_used(name: str) -> None:
    """What a backend remembers of a layer holds addresses; nobody has to tell it."""
    results = []
    for fast in (True, False):
        backends = Backends(Options(fast=fast, debias=True))
        step = layer_step(Rows(Moments.of(torch.arange(20.0).view(5, 4), columns=1), 5, 5), debias=True)
        backends.step([step], fold=True)
        old = getattr(step.running, name)
        setattr(step.running, name, old.clone())
        kept = old.clone()
        backends.step([step], fold=True)
        assert torch.equal(old, kept)
        results.append(result(step))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.skipif(not cpu.available(), reason="the C kernels were not built")
def test_the_record_is_that_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose struct has other fields is not used."""
    assert cpu._load()
    monkeypatch.setattr(cpu.record, "LAYOUT", [*cpu.record.LAYOUT[:-1], cpu.record.LAYOUT[-1] + 8])
    assert cpu._load() == {}
