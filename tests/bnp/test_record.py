"""What the kernels are given by address is what they expect; else the plain way is taken."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.moments import Moments, Rows
from trimtab.bnp.algorithm.step import LayerStep
from trimtab.bnp.backends.buffers import BufferMoments, InputLayout
from trimtab.bnp.backends.record import record
from trimtab.bnp.layers import output_first
from trimtab.bnp.row_sums import RowSums


def layer_step(columns: int = 6) -> LayerStep:
    """A step of a convolution with two groups of three channels and 2×2 sites."""
    batch = Moments(5, torch.ones(columns), torch.ones(columns))
    return LayerStep(
        name="conv",
        weight=torch.ones(4, 3, 2, 2),
        bias=torch.ones(4),
        rows=Rows(batch, 5, 5),
        running=RunningAverage(batch, debias=False),
        view=lambda weight: output_first(torch.nn.Conv2d(6, 4, 2, groups=2), weight),
        shape=(2, 2, 3, 4),
        by_output=True,
    )


def running_with(name: str, value: Tensor) -> RunningAverage:
    running = layer_step().running
    setattr(running, name, value)
    return running


def kernel_moments(columns: int, dtype: torch.dtype = torch.float32) -> BufferMoments:
    x = torch.ones(5, columns, dtype=dtype)
    found = torch.ones(2 * columns, dtype=dtype)
    return BufferMoments(InputLayout(x, -1, (5, columns, 1), dtype), None, found, 0, found.data_ptr())


def test_a_row_for_what_fits() -> None:
    assert record(layer_step())
    assert record(layer_step(columns=24))  # statistics per site
    assert record(replace(layer_step(), bias=None))
    assert record(replace(layer_step(), rows=Rows(kernel_moments(6), 5, 5)))
    assert record(replace(layer_step(), rows=RowSums(torch.ones(16, dtype=torch.float64), (6,), torch.float32)))
    assert record(replace(layer_step(), weight=torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last)))


SPOILT: dict[str, Callable[[], dict[str, Any]]] = {
    "fewer weights": lambda: {"weight": torch.ones(4, 3, 2)},
    "weights with gaps": lambda: {"weight": torch.ones(4, 3, 2, 4)[..., ::2]},
    "weights of another type": lambda: {"weight": torch.ones(4, 3, 2, 2, dtype=torch.float64)},
    "weights of another kind": lambda: {"weight": torch.nn.Parameter(torch.ones(4, 3, 2, 2))},
    "weights without memory": lambda: {"weight": torch.ones(4, 3, 2, 2, device="meta")},
    "sparse weights": lambda: {"weight": torch.ones(4, 3, 2, 2).to_sparse()},
    "weights to be negated": lambda: {"weight": torch._neg_view(torch.ones(4, 3, 2, 2))},
    "fewer biases": lambda: {"bias": torch.ones(3)},
    "biases with gaps": lambda: {"bias": torch.ones(8)[::2]},
    "one bias for all": lambda: {"bias": torch.ones(1).expand(4)},
    "biases of another type": lambda: {"bias": torch.ones(4, dtype=torch.float16)},
    "biases without memory": lambda: {"bias": torch.ones(4, device="meta")},
    "sparse biases": lambda: {"bias": torch.ones(4).to_sparse()},
    "fewer means": lambda: {"rows": Rows(Moments(5, torch.ones(5), torch.ones(6)), 5, 5)},
    "more means": lambda: {"rows": Rows(Moments(5, torch.ones(7), torch.ones(6)), 5, 5)},
    "fewer variances": lambda: {"rows": Rows(Moments(5, torch.ones(6), torch.ones(5)), 5, 5)},
    "variances with gaps": lambda: {"rows": Rows(Moments(5, torch.ones(6), torch.ones(12)[::2]), 5, 5)},
    "variances of another type": lambda: {"rows": Rows(Moments(5, torch.ones(6), torch.ones(6).double()), 5, 5)},
    "means without memory": lambda: {"rows": Rows(Moments(5, torch.ones(6, device="meta"), torch.ones(6)), 5, 5)},
    "moments of fewer columns": lambda: {"rows": Rows(kernel_moments(5), 5, 5)},
    "moments of more columns": lambda: {"rows": Rows(kernel_moments(24), 5, 5)},
    "moments of another type": lambda: {"rows": Rows(kernel_moments(6, torch.float64), 5, 5)},
    "fewer sums": lambda: {"rows": RowSums(torch.ones(15, dtype=torch.float64), (6,), torch.float32)},
    "sums of another type": lambda: {"rows": RowSums(torch.ones(16), (6,), torch.float32)},
    "sums with gaps": lambda: {"rows": RowSums(torch.ones(32, dtype=torch.float64)[::2], (6,), torch.float32)},
    "averages of another shape": lambda: {"running": layer_step(columns=5).running},
    "fewer averages of variances": lambda: {"running": running_with("variance", torch.ones(5))},
    "averages of two types": lambda: {"running": running_with("variance", torch.ones(6).double())},
    "a share of another type": lambda: {"running": running_with("weight", torch.ones((), dtype=torch.float64))},
    "no share": lambda: {"running": running_with("weight", torch.ones(0))},
    "steps of another type": lambda: {"running": running_with("steps", torch.ones((), dtype=torch.int32))},
    "averages with gaps": lambda: {"running": running_with("mean", torch.zeros(12)[::2])},
}


@pytest.mark.parametrize("name", SPOILT)
def test_no_row_for_what_does_not(name: str) -> None:
    assert record(replace(layer_step(), **SPOILT[name]())) == b""


def test_moments_that_wait_for_an_input_that_was_changed_are_nan() -> None:
    """On a GPU they wait until the backward, and read whatever is at the input's address then."""
    x = torch.ones(5, 6)
    moments = BufferMoments(InputLayout(x, -1, (5, 6, 1), torch.float32), x, None)
    assert moments.input_address() == x.data_ptr()
    x.data = torch.ones(2, 3)
    assert moments.input_address() == 0
    assert moments.mean.isnan().all() and moments.variance.isnan().all()
    assert moments.mean.shape == (6,)
