"""The normalizations that the four papers compare, by name or as layers for any model."""

from trimtab.norms.base import RunningNorm
from trimtab.norms.decay import gamma_decay, trained_gammas
from trimtab.norms.ghost import FourThingsBatchNorm, GhostBatchNorm
from trimtab.norms.group import GroupNorm
from trimtab.norms.noisy import Noise, NoisyBatchNorm, StopGradientBatchNorm
from trimtab.norms.norm import NORMS, WITHOUT_BETA, WITHOUT_GAMMA, Norm
from trimtab.norms.partial import LpNorm, MeanOnlyBatchNorm, VarianceOnlyBatchNorm
from trimtab.norms.renorm import BatchRenorm, RenormLimits

__all__ = [
    "NORMS",
    "WITHOUT_BETA",
    "WITHOUT_GAMMA",
    "BatchRenorm",
    "FourThingsBatchNorm",
    "GhostBatchNorm",
    "GroupNorm",
    "LpNorm",
    "MeanOnlyBatchNorm",
    "Noise",
    "NoisyBatchNorm",
    "Norm",
    "RenormLimits",
    "RunningNorm",
    "StopGradientBatchNorm",
    "VarianceOnlyBatchNorm",
    "gamma_decay",
    "trained_gammas",
]
