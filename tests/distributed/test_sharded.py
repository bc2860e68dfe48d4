"""BNP with weights that are sharded over several processes (fully_shard), against one process with the data of all."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import trimtab
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


@pytest.mark.parametrize("case", CASES)
def test_as_one_process(case: str, two: Pool) -> None:
    check(two, settings(2, **CASES[case]), 1e-10 if "options" in CASES[case] else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["as it comes", "ragged batches", "accumulation, reduced at the end", "one unit"])
def test_three_processes(case: str, three: Pool) -> None:
    """Of which some hold no row of a layer at all."""
    check(three, settings(3, **CASES[case]), 1e-12)


@pytest.mark.parametrize("case", ["as it comes", "ragged batches"])
def test_float32(case: str, two: Pool) -> None:
    check(two, settings(2, dtype=torch.float32, **CASES[case]), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["as it comes", "accumulation, reduced at the end"])
def test_copies_that_are_sharded(case: str, four: Pool) -> None:
    check(four, settings(4, replicas=2, **CASES[case]), 1e-12)


def test_collectives(two: Pool) -> None:
    """One exchange per step, and one for the biases of layers whose rows are inputs."""
    assert check(two, settings(2), 1e-12) == [0, 2]
