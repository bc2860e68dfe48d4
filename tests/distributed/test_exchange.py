"""The exchange between processes: what it refuses, what it leaves alone, and what it is made of."""

import numpy as np
import pytest
import torch
from torch import nn

import trimtab
from tests.distributed import cases
from tests.distributed.pool import Pool, process_group
from trimtab.bnp.algorithm.moments import Moments, Rows
from trimtab.bnp.backends import Backends
from trimtab.bnp.backends.sums import AllSums
from trimtab.bnp.row_sums import RowSums, sums_of


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("other sizes", "layer '2' (4) where process 1 has layer '2' (5)"),
        ("other names", "layer '2' (4) where process 1 has layer '3' (4)"),
        ("more layers", "nothing where process 1 has layer '3' (2)"),
        ("other options", "option 'rho' (0.99) where process 1 has option 'rho' (0.9)"),
    ],
)
def test_processes_that_observe_different_layers(kind: str, named: str, two: Pool) -> None:
    said = two.run(cases.different_models, kind)
    assert said[0] == said[1]
    assert f"process 0 has {named}" in said[0]


def test_all_keep_a_step_out_or_none(two: Pool) -> None:
    found = two.run(cases.not_finite)
    assert found[0] == found[1]
    assert found[0][0] == [2, 1]


def test_without_rows_anywhere_a_gradient_stays(two: Pool) -> None:
    assert two.run(cases.nothing_seen) == [(True, [])] * 2


def test_a_wide_layer_that_one_process_does_not_use(two: Pool) -> None:
    found = two.run(cases.wide_layer_unseen)
    assert found[0] == found[1]
    assert any(found[0])


def test_another_group_compares_the_layers_again(two: Pool) -> None:
    found = two.run(cases.another_group)
    assert found[0] == found[1]


def test_a_model_without_memory_exchanges_nothing(two: Pool) -> None:
    assert two.run(cases.without_memory) == [([0, 0], [2, 3])] * 2


@pytest.mark.parametrize("names", ["ab", "aa"])
def test_bnps_that_step_in_another_order_later_on(names: str, two: Pool) -> None:
    for said in two.run(cases.two_bnps, names):
        assert len(said) == 2
        assert all(each.startswith("1: BNP cannot add up") and "in the same order" in each for each in said)


def test_a_layer_is_added_before_one_process_has_no_data_at_all(two: Pool) -> None:
    ours, theirs = two.run(cases.changed_before_join)
    assert "2 mean" in ours
    assert all(np.array_equal(ours[name], theirs[name]) for name in {*ours, *theirs})


@pytest.mark.slow
def test_the_group_of_a_wrapped_model_within_another(three: Pool) -> None:
    assert three.run(cases.part_of_the_processes) == [[], [True] * 3, [True] * 3]


@pytest.mark.slow
def test_a_compiled_step_has_the_exchange_in_it(two: Pool) -> None:
    for compiled, eager in two.run(cases.compiled_step):
        torch.testing.assert_close(torch.tensor(compiled), torch.tensor(eager), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_process_that_dies_is_an_error_for_the_others() -> None:
    pool = Pool(2)
    with pytest.raises(RuntimeError, match="process"):
        pool.run(cases.die)
    pool.stop()


def test_one_process_is_as_none(tmp_path: object) -> None:
    gradients = []
    for grouped in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        bnp = trimtab.BNP(model)
        x = torch.randn(5, 3)
        if grouped:
            with process_group(0, 1, f"{tmp_path}/store"), cases.all_reduces() as count:
                cases.small_step(bnp, model, x)
            assert count == [0, 0]
        else:
            cases.small_step(bnp, model, x)
        assert model.weight.grad is not None
        gradients.append(model.weight.grad)
    assert torch.equal(*gradients)


def test_sync_has_a_meaning() -> None:
    with pytest.raises(ValueError, match="sync must be True or False"):
        trimtab.BNP(nn.Linear(3, 2), sync="yes")  # type: ignore[arg-type]


def test_sums_of_all_layers_are_those_of_each() -> None:
    """Of moments in buffers of the kernels, of moments that are tensors, of sums, and of layers that were not seen."""
    torch.manual_seed(0)
    backends, cpu = Backends(trimtab.bnp.Options()), torch.device("cpu")
    x = [torch.randn(7, 3) + 5, torch.randn(4, 6, 2, 2), torch.randn(5, 2).double(), torch.randn(9, 4)]
    x[0][0, 0] = torch.nan
    rows: list[Rows | RowSums | None] = [
        Rows(backends.moments(x[0], -1), 7, 7),
        None,
        Rows(backends.moments(x[1], 1), 4, 16, 3),
        Rows(Moments.of(x[2], columns=-1), 5, 5, -2),
        RowSums(sums_of(Rows(Moments.of(x[3], columns=-1), 9, 9)), (4,), torch.float32),
    ]
    columns = [3, 8, 6, 2, 4]
    zeros = torch.zeros(20, dtype=torch.float64)
    expected = [zeros if each is None else each.sums if isinstance(each, RowSums) else sums_of(each) for each in rows]
    sums = AllSums()
    for _ in range(2):
        found = sums.of(rows, columns, cpu)
        torch.testing.assert_close(found, torch.cat(expected), rtol=1e-12, atol=1e-12, equal_nan=True)
    assert torch.equal(sums.of([None, None], [2, 1], cpu), torch.zeros(14, dtype=torch.float64))


def test_a_layer_that_was_not_seen_may_be_wider_than_all_that_were() -> None:
    backends, cpu = Backends(trimtab.bnp.Options()), torch.device("cpu")
    rows = Rows(backends.moments(torch.randn(7, 3), -1), 7, 7)
    found = AllSums().of([rows, None], [3, 1000], cpu)
    torch.testing.assert_close(found[:10], sums_of(rows))
    assert torch.equal(found[10:], torch.zeros(2004, dtype=torch.float64))
