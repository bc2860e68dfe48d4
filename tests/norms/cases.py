"""Our layers, each with its oracle, as data for the tests."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.norms import oracle
from trimtab.norms import (
    BatchRenorm,
    FourThingsBatchNorm,
    GhostBatchNorm,
    LpNorm,
    MeanOnlyBatchNorm,
    NoisyBatchNorm,
    RunningNorm,
    StopGradientBatchNorm,
    VarianceOnlyBatchNorm,
)

SCHEDULE = {"r_max": 1.5, "d_max": 0.4, "warmup": 1, "r_steps": 5, "d_steps": 4}
NO_NOISE = {"n_mu": 0.0, "n_sigma": 1.0, "r_mu": 0.0, "r_sigma": 0.0}


@dataclass(frozen=True)
class Case:
    """A layer for 4 channels, and what numpy says of it in training and in evaluation."""

    make: Callable[..., RunningNorm]
    train: Callable[..., Any]
    evaluate: Callable[..., Any]


CASES = {
    "brn": Case(partial(BatchRenorm, **SCHEDULE), partial(oracle.renorm, **SCHEDULE), oracle.batchnorm_eval),
    "ghost": Case(partial(GhostBatchNorm, ghost_size=3), partial(oracle.ghost, ghost_size=3), oracle.batchnorm_eval),
    "bn4-ghost": Case(
        partial(FourThingsBatchNorm, ghost_size=3),
        partial(oracle.four_things, ghost_size=3, group_size=1),
        partial(oracle.four_things_eval, group_size=1, alpha=1 / 3),
    ),
    "bn4-group": Case(
        partial(FourThingsBatchNorm, ghost_size=2, group_size=2, alpha=0.1),
        partial(oracle.four_things, ghost_size=2, group_size=2),
        partial(oracle.four_things_eval, group_size=2, alpha=0.1),
    ),
    "noisy-bn": Case(partial(NoisyBatchNorm, **NO_NOISE), oracle.batchnorm, oracle.batchnorm_eval),
    "l1": Case(partial(LpNorm, p=1), partial(oracle.lp, p=1), oracle.lp_eval),
    "l2": Case(partial(LpNorm, p=2), partial(oracle.lp, p=2), oracle.lp_eval),
    "linf": Case(partial(LpNorm, p=math.inf), partial(oracle.lp, p=math.inf), oracle.lp_eval),
    "mean-bn": Case(MeanOnlyBatchNorm, oracle.mean_only, oracle.mean_only_eval),
    "var-bn": Case(VarianceOnlyBatchNorm, oracle.variance_only, oracle.variance_only_eval),
    "bn-stopgrad": Case(StopGradientBatchNorm, oracle.batchnorm, oracle.batchnorm_eval),
}
CHANNELS = 4


def make(name: str, **settings: Any) -> RunningNorm:
    """A case's layer in float64, with γ and β drawn at random."""
    layer = CASES[name].make(CHANNELS, **settings).double()
    torch.nn.init.normal_(layer.bias)
    if layer.weight is not None and "gamma" not in settings:
        torch.nn.init.uniform_(layer.weight, 0.5, 2)
    return layer


def inputs(*shape: int) -> Tensor:
    """Normal inputs whose channels differ in mean and scale."""
    x = torch.randn(*shape, dtype=torch.float64)
    channels = torch.arange(shape[1], dtype=torch.float64).view(-1, *[1] * (len(shape) - 2))
    return x * (0.5 + channels) + channels - 1
