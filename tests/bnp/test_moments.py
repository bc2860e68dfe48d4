"""Moments and running averages against numpy and closed forms."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.moments import Moments, Rows
from trimtab.bnp.algorithm.step import all_finite
from trimtab.bnp.row_sums import RowSums, sums_of


def test_moments_over_rows() -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    moments = Moments.of(x, columns=1)
    assert moments.count == 15
    np.testing.assert_allclose(moments.mean, x.numpy().mean((0, 2)))
    np.testing.assert_allclose(moments.variance, x.numpy().var((0, 2)))


def test_a_single_row_and_no_row() -> None:
    x = torch.randn(4)
    one = Moments.of(x, columns=-1)
    assert one.count == 1
    assert torch.equal(one.mean, x)
    assert torch.equal(one.variance, torch.zeros(4))
    none = Moments.of(torch.zeros(0, 4), columns=-1)
    assert none.count == 0
    for both in (one.merge(none), none.merge(one)):
        assert both.count == 1
        assert torch.equal(both.mean, x)
        assert torch.equal(both.variance, torch.zeros(4))
    spoiled = Moments.of(torch.tensor([1.0, torch.inf]), columns=-1)
    assert spoiled.variance.isfinite().tolist() == [True, False]


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5), seed=st.integers(0, 2**31))
def test_merging_is_pooling_the_rows(sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [3 + torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in sizes]
    merged = Moments.of(parts[0], columns=1)
    for part in parts[1:]:
        merged = merged.merge(Moments.of(part, columns=1))
    rows = torch.cat(parts)
    assert merged.count == len(rows)
    if len(rows):
        np.testing.assert_allclose(merged.mean, rows.numpy().mean(0), atol=1e-12)
        np.testing.assert_allclose(merged.variance, rows.numpy().var(0), atol=1e-12)


def test_zero_rows() -> None:
    x = torch.randn(6, 2, dtype=torch.float64) + 1
    moments = Rows(Moments.of(x, columns=1), 16, 16, zeros=10).columns()
    rows = np.concatenate([x.numpy(), np.zeros((10, 2))])
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    np.testing.assert_allclose(moments.variance, rows.var(0))
    assert Rows(Moments.of(x, columns=1), 6, 6, zeros=-3).columns().count == 6


@pytest.mark.parametrize("zeros", [0, 5, -2])
def test_sums_have_the_rows_of_all_calls_whose_sums_they_are(zeros: int) -> None:
    x = torch.randn(12, 3, 2, dtype=torch.float64) + 7
    parts = [Rows(Moments.of(part, columns=(1, 2)), len(part), 2 * len(part), zeros) for part in x.split([1, 4, 7])]
    total = sum((sums_of(part) for part in parts), torch.zeros(4 + 2 * 6, dtype=torch.float64))
    rows = RowSums(total, (3, 2), torch.float64).rows()
    pooled = parts[0].merge(parts[1]).merge(parts[2])
    assert (rows.samples, rows.positions, rows.zeros) == (12, 24, max(0, 3 * zeros))
    for ours, theirs in ((rows.moments, pooled.moments), (rows.columns(), pooled.columns())):
        assert int(ours.count) == theirs.count
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-13, atol=0)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-9, atol=0)


@pytest.mark.parametrize("value", [0.1, 1e4 + 0.3, -7e-3])
def test_a_constant_has_no_variance(value: float) -> None:
    """Not even by rounding, of which eps1=eps2=0 would make something large."""
    moments = Moments.of(torch.full((7, 3), value), columns=1)
    assert torch.equal(moments.mean, torch.full((3,), value))
    assert torch.equal(moments.variance, torch.zeros(3))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["rows", "many rows", "tokens", "images", "channels last"])
def test_a_large_mean_does_not_drown_the_variance(kind: str, compiled: bool) -> None:
    shape = {"rows": (512, 8), "many rows": (100_000, 8), "tokens": (64, 5, 8)}.get(kind, (16, 8, 32, 32))
    column = 1 if len(shape) == 4 else len(shape) - 1
    x = 1e4 + 1e-2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x.select(column, 0).sub_(1e4)  # one column is near zero
    if kind == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    moments_of = torch.compile(Moments.of, dynamic=False) if compiled else Moments.of
    moments = moments_of(x, columns=column)
    expected = x.double().movedim(column, -1).flatten(0, -2).numpy()
    np.testing.assert_allclose(moments.mean, expected.mean(0), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(moments.variance, expected.var(0), rtol=1e-4)


def test_a_large_mean_does_not_drown_the_variance_of_both() -> None:
    x = 1e4 + 1e-2 * torch.randn(512, 8)
    moments = Moments.of(x[:200], columns=1).merge(Moments.of(x[200:], columns=1))
    np.testing.assert_allclose(moments.variance, x.double().numpy().var(0), rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_widened_first(dtype: torch.dtype) -> None:
    x = (torch.randn(1000, 3) * 200).to(dtype)
    moments = Moments.of(x, columns=1)
    assert moments.mean.dtype == moments.variance.dtype == torch.float32
    np.testing.assert_allclose(moments.variance, x.double().numpy().var(0), rtol=1e-4)


def test_nothing_of_the_input_is_kept() -> None:
    for shape in [(7, 3), (3,)]:
        x = torch.randn(shape)
        storage = weakref.ref(x)
        moments = Moments.of(x, columns=-1)
        assert moments.mean.data_ptr() != x.data_ptr()
        del x
        gc.collect()
        assert storage() is None


def test_rows_add_samples_and_positions() -> None:
    moments = Moments.of(torch.randn(2, 3), columns=1)
    both = Rows(moments, samples=2, positions=8).merge(Rows(moments, samples=1, positions=4))
    assert (both.samples, both.positions, both.moments.count) == (3, 12, 4)


def move(running: RunningAverage, mean: Tensor, variance: Tensor, *, rho: float, accept: bool) -> None:
    running.move_to(running.after(mean, variance, rho, torch.tensor(True)), torch.tensor(accept), torch.tensor(True))


def folded(debias: bool, rho: float, batches: list[tuple[float, float]]) -> RunningAverage:
    running = RunningAverage(torch.zeros(1, dtype=torch.float64), debias=debias)
    for mean, variance in batches:
        tensors = (torch.tensor([value], dtype=torch.float64) for value in (mean, variance))
        move(running, *tensors, rho=rho, accept=True)
    return running


def test_running_average_by_hand() -> None:
    mean, variance = folded(False, 0.9, [(1.0, 4.0), (2.0, 3.0)]).estimate()
    assert mean.item() == pytest.approx(0.9 * 0.1 * 1.0 + 0.1 * 2.0)
    assert variance.item() == pytest.approx(0.9 * (0.9 * 1.0 + 0.1 * 4.0) + 0.1 * 3.0)


@pytest.mark.parametrize("rho", [0.0, 0.9, 0.99])
def test_debiased_average_of_a_constant_is_the_constant(rho: float) -> None:
    for steps in (1, 2, 50):
        mean, variance = folded(True, rho, [(3.0, 7.0)] * steps).estimate()
        assert mean.item() == pytest.approx(3.0, rel=1e-12)
        assert variance.item() == pytest.approx(7.0, rel=1e-12)


def test_debiased_average_divides_by_one_minus_rho_to_the_t() -> None:
    running = folded(True, 0.9, [(1.0, 4.0), (2.0, 3.0)])
    assert running.weight.item() == pytest.approx(1 - 0.9**2)
    assert running.estimate()[0].item() == pytest.approx((0.9 * 0.1 * 1.0 + 0.1 * 2.0) / (1 - 0.9**2))


@pytest.mark.parametrize("debias", [False, True])
def test_a_refused_batch_changes_nothing(debias: bool) -> None:
    running = folded(debias, 0.9, [(1.0, 4.0)])
    before = {name: value.clone() for name, value in running.tensors().items()}
    nan = torch.tensor([float("nan")], dtype=torch.float64)
    move(running, nan, nan, rho=0.9, accept=False)
    for name in ("mean", "variance", "weight", "steps"):
        assert torch.equal(getattr(running, name), before[name]), name
    assert running.skipped.item() == 1


def test_before_anything_is_folded_mean_0_and_variance_1() -> None:
    for debias in (False, True):
        mean, variance = RunningAverage(torch.zeros(2), debias=debias).estimate()
        assert torch.equal(mean, torch.zeros(2))
        assert torch.equal(variance, torch.ones(2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_all_finite(bad: float) -> None:
    good = torch.randn(3, 3)
    assert all_finite(good)
    assert all_finite(torch.full((2,), 3e38))
    broken = good.clone()
    broken[1, 1] = bad
    assert not all_finite(broken)
