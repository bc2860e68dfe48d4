"""BNP with weights that are sharded over several processes (fully_shard), against one process with the data of all."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trimtab
from tests.distributed import sharded_cases as cases
from tests.distributed.pool import Pool
from tests.distributed.sharded_cases import Settings, alone, together
from tests.distributed.test_ddp import distance

CASES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "BNP before sharding": {"early": True},
    "weights stay gathered after the forward": {"shard": {"reshard_after_forward": False}},
    "one unit": {"parts": False},
    "accumulation, reduced at the end": {"micro": 2, "reduced": False},
    "accumulation, reduced each time": {"micro": 2},
    "accumulation, BNP before sharding": {"micro": 2, "early": True},
    "accumulation, reduced at the end, BNP before sharding": {"micro": 2, "reduced": False, "early": True},
    "ragged batches": {"batches": [7, 3, 1]},
    "one sample": {"batches": [1, 1, 1]},
    "few rows": {"few": True},
    "an infinite loss in one process": {"spoilt": (7, 1)},
    "debias": {"options": {"debias": True}},
    "statistics of the batch": {"options": {"statistics": "batch"}},
    "variances without bias": {"options": {"no_bias": "variance"}},
    "the reference backend": {"options": {"fast": False}},
}


def settings(size: int, **about: Any) -> Settings:
    batches = about.pop("batches", [4, 4, 4, 4])[:size]
    return Settings(batches=batches, **about)


def check(pool: Pool, chosen: Settings, tolerance: float) -> list[int]:
    """Equal averages on all processes to the bit, and all equal to one process; returns numbers of all_reduces."""
    found = pool.run(together, chosen)
    for other, _, _ in found[1:]:
        assert [name for name in other if not np.array_equal(found[0][0][name], other[name])] == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trimtab.TrimtabWarning)
        assert distance(found[0][0], alone(chosen)) < tolerance
    expected = [] if chosen.spoilt is None else ["not finite"]
    for _, _, said in found:
        assert len(said) == len(expected) and all(part in each for part, each in zip(expected, said, strict=True)), said
    counted: list[int] = found[0][1]
    return counted


QUICK = (
    "as it comes",
    "accumulation, reduced each time",
    "ragged batches",
    "few rows",
)


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_as_one_process(case: str, two: Pool) -> None:
    check(two, settings(2, **CASES[case]), 1e-10 if "options" in CASES[case] else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["as it comes", "few rows", "ragged batches", "accumulation, reduced at the end", "one unit"]
)
def test_three_processes(case: str, three: Pool) -> None:
    """Of which some hold no row of a layer at all."""
    check(three, settings(3, **CASES[case]), 1e-12)


@pytest.mark.slow
def test_one_process_that_holds_all_rows() -> None:
    """To the bit, a step that is not finite included."""
    one = Pool(1)
    check(one, settings(1, spoilt=(7, 0)), 1e-300)
    one.stop()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["as it comes", "ragged batches"])
def test_float32(case: str, two: Pool) -> None:
    check(two, settings(2, dtype=torch.float32, **CASES[case]), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["as it comes", "accumulation, reduced at the end"])
def test_copies_that_are_sharded(case: str, four: Pool) -> None:
    check(four, settings(4, replicas=2, **CASES[case]), 1e-12)


@pytest.mark.slow
def test_collectives(two: Pool) -> None:
    """One exchange per step, and one for the biases of layers whose rows are inputs."""
    assert check(two, settings(2), 1e-12) == [0, 2]


@pytest.mark.parametrize("reduced", [True, False])
def test_rows_under_mixed_precision(reduced: bool, two: Pool) -> None:
    assert two.run(cases.mixed_precision, reduced) == [[[18, 18], [18, 18], [4, 4]]] * 2


@pytest.mark.parametrize("reduced", [True, False])
def test_rows_of_a_part_of_the_model_that_is_sharded(reduced: bool, two: Pool) -> None:
    assert two.run(cases.part_of_model, reduced) == [[[18], [18]]] * 2


@pytest.mark.parametrize("gathered", [False, True])
def test_probes_leave_a_sharded_model_alone(gathered: bool, two: Pool) -> None:
    for problems in two.run(cases.probed, gathered):
        assert [problem is not None and "sharded over several processes" in problem for problem in problems] == [
            True
        ] * 2


def test_weights_that_a_forward_has_left_gathered(two: Pool) -> None:
    for now, later in two.run(cases.gathered):
        assert now == later and "2 of 2" in now and "left alone" not in now and "not centred" not in now


def test_a_second_bnp_is_refused_by_all_processes(two: Pool) -> None:
    assert all("was preconditioned by another BNP" in said for said in two.run(cases.second_bnp))


def test_no_rows_are_lost_where_torch_does_not_tell_what_becomes_of_gradients(two: Pool) -> None:
    assert two.run(cases.unknown_fsdp) == [[[12, 12], [12, 12]]] * 2


def test_grad_scaler(two: Pool) -> None:
    ours, theirs = two.run(cases.grad_scaler)
    assert ours == theirs
    assert ours[:3] == (True, 4.0, [2, 0])  # the scaler leaves out the step in which a gradient is infinite


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool, two: Pool) -> None:
    assert two.run(cases.recomputed, reentrant) == [[[8, 8, 8], [8, 8, 8]]] * 2


@pytest.mark.slow
def test_a_compiled_part(two: Pool) -> None:
    check(two, settings(2, compiled=True, early=True), 1e-12)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("flat", "a model in FullyShardedDataParallel"),
        ("column", "layer '0', whose weight is sharded over several processes (a DTensor): its weight stays sharded"),
        ("row", "layer '2', whose weight is sharded over several processes (a DTensor): its weight stays sharded"),
        ("columns", "layer '0', whose weight is sharded over several processes (a DTensor): it is not sharded in rows"),
        ("not shared", "BNP(sync=False) cannot precondition weights that are sharded"),
        ("other group", "BNP(group=...) has to be the group of all processes"),
        ("gathered", "layer '0' is gathered from all processes at the step"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_gradient_is_changed(kind: str, sentence: str, two: Pool) -> None:
    for said, unchanged in two.run(cases.said_of, kind):
        assert sentence in said
        assert unchanged


@pytest.mark.slow
def test_what_two_processes_have_saved_is_taken_up_by_one_and_by_three(two: Pool, three: Pool, tmp_path: Path) -> None:
    whole = Pool(1).run(cases.saved, str(tmp_path / "alone"))[0]
    found = two.run(cases.saved, str(tmp_path))
    assert "2 of 2" in whole and found == [found[0]] * 2
    one = Pool(1)
    expected = one.run(cases.resumed, str(tmp_path / "alone"), "dcp")[0]
    for pool in (one, two, three):
        for by in ("dcp", "whole"):
            for each in pool.run(cases.resumed, str(tmp_path), by):
                assert distance(each, expected) < 1e-5
    one.stop()
