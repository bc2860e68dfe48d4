"""BNP in several processes under DistributedDataParallel, against one process with the data of all."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.distributed.cases import Result, Settings, alone, together
from tests.distributed.pool import Pool

STEPS = 50
CASES: dict[str, dict[str, Any]] = {
    "BNP before the group": {"late": True},
    "BNP before wrapping": {},
    "BNP of the wrapped model": {"wrapped": True},
    "accumulation": {"micro": 2},
    "static graph": {"ddp": {"static_graph": True}},
    "bucket views": {"ddp": {"gradient_as_bucket_view": True}},
    "a layer that one process does not use": {"unused": (1,), "ddp": {"find_unused_parameters": True}},
    "ragged batches": {"batches": [7, 3, 1]},
    "one sample": {"batches": [1, 1, 1]},
    "ZeRO": {"zero": True},
    "GradScaler": {"scaler": True},
    "GradScaler with an infinity in one process": {"scaler": True, "spoilt": (7, 1)},
    "compiled": {"compiled": True},
    "debias": {"options": {"debias": True}},
    "statistics of the batch": {"options": {"statistics": "batch"}},
    "the reference backend": {"options": {"fast": False}},
}


def settings(size: int, **about: Any) -> Settings:
    batches = about.pop("batches", [4, 4, 4])[:size]
    return Settings(batches=batches, steps=about.pop("steps", [STEPS] * size), **about)


def distance(ours: Result, theirs: Result) -> float:
    """The largest relative distance, by the largest number of each tensor."""
    assert ours.keys() == theirs.keys()
    gaps = {name: np.abs(ours[name].astype(float) - theirs[name]).max() for name in ours}
    return max(float(gap) / max(float(np.abs(theirs[name]).max()), 1e-300) for name, gap in gaps.items())


def check(pool: Pool, chosen: Settings, tolerance: float) -> list[int]:
    """Equal on all processes to the bit, and to one process; returns the numbers of small and large all_reduces."""
    found = pool.run(together, chosen)
    for other, _, _ in found[1:]:
        assert [name for name in other if not np.array_equal(found[0][0][name], other[name])] == []
    assert distance(found[0][0], alone(chosen)) < tolerance
    assert [said for _, _, said in found] == [[]] * len(found)
    counted: list[int] = found[0][1]
    return counted


LONG = ("compiled", "ZeRO", "one sample", "static graph", "bucket views", "debias", "statistics of the batch")


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in CASES]
)
def test_as_one_process(case: str, two: Pool) -> None:
    check(two, settings(2, **CASES[case]), 1e-10 if "options" in CASES[case] else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["BNP before wrapping", "ragged batches", "a layer that one process does not use"])
def test_three_processes(case: str, three: Pool) -> None:
    check(three, settings(3, **CASES[case]), 1e-12)


@pytest.mark.parametrize(
    "case", ["BNP before wrapping", "ragged batches", "accumulation", pytest.param("compiled", marks=pytest.mark.slow)]
)
def test_float32(case: str, two: Pool) -> None:
    check(two, settings(2, dtype=torch.float32, **CASES[case]), 1e-6)


def test_one_collective_per_step_and_one_to_compare_the_layers(two: Pool) -> None:
    assert check(two, settings(2), 1e-12) == [1, STEPS]
    assert check(two, settings(2, micro=2), 1e-12) == [1, STEPS]


@pytest.mark.slow
def test_processes_that_run_out_of_data(three: Pool) -> None:
    assert check(three, settings(3, steps=[10, 7, 5], join=True), 1e-12)[1] == 10


@pytest.mark.slow
def test_processes_with_a_part_of_the_optimizer_that_run_out_of_data(three: Pool) -> None:
    """ZeRO's own hook makes steps with the gradients that are there: BNP neither changes them nor exchanges again."""
    found = three.run(together, settings(3, steps=[10, 7, 5], join=True, zero=True))
    for other, (_, exchanges), _ in found:
        assert [name for name in other if not np.array_equal(found[0][0][name], other[name])] == []
        assert exchanges == 10
    assert all(np.isfinite(value).all() for value in found[0][0].values())


def test_without_sync_it_is_said(two: Pool) -> None:
    found = two.run(together, dataclasses.replace(settings(2), steps=[3, 3], options={"sync": False}))
    assert all(len(said) == 1 and "sync=False" in said[0] for _, _, said in found)
    assert not np.array_equal(found[0][0]["first mean"], found[1][0]["first mean"])
