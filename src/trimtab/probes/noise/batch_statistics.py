"""The mean and standard deviation of a batch as random variables, measured on a layer's input.

Regularization paper, eq. 2 (corrected: Var σ_B = σ_P²(ρ+2)/(4M)) and Theorem 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.norms import (
    BatchRenorm,
    GhostBatchNorm,
    LpNorm,
    MeanOnlyBatchNorm,
    RunningNorm,
    VarianceOnlyBatchNorm,
)

_AT_ONCE = 2**20  # numbers drawn at a time, to keep memory small

CURVATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.sigmoid,  # softplus stands for ReLU, as in Theorem 1
    "linear": torch.ones_like,
    "sigmoid": lambda h: torch.sigmoid(h) * torch.sigmoid(-h),
}
"""A″ of the links in `trimtab.theory.implicit_decay.LINKS`."""


class Pair(NamedTuple):
    """A value for μ_B and one for σ_B, for each channel."""

    mu: Tensor
    sigma: Tensor


class Population(NamedTuple):
    """Estimates of the distribution that a batch was drawn from, for each channel, in double precision.

    Attributes:
        positions: How many positions a sample has.
        mean: μ_P.
        variance: σ_P², biased.
        kurtosis: ρ, the excess kurtosis.
        shifts: Each sample's mean over its positions, less μ_P: (samples, channels).
        squares: Each sample's mean square distance from μ_P: (samples, channels).
        bend: mean A″(h̄).
        fisher: F_γ = mean A″(h̄)·((wᵀx − μ_P)/σ_P)².
    """

    positions: int
    mean: Tensor
    variance: Tensor
    kurtosis: Tensor
    shifts: Tensor
    squares: Tensor
    bend: Tensor
    fisher: Tensor

    def predicted(self, values: float) -> Pair:
        """By eq. 2 for batches of so many independent values."""
        mu = self.variance / values
        return Pair(mu, mu * (self.kurtosis + 2) / 4)

    def drawn(self, batch_size: int, draws: int, generator: torch.Generator) -> Pair:
        """Over batches of so many samples, drawn with replacement, each with all its positions."""
        samples, found = len(self.shifts), []
        for batches in torch.arange(draws).split(max(1, _AT_ONCE // max(samples, batch_size))):
            picks = torch.randint(samples, (len(batches), batch_size), generator=generator)
            counts = torch.zeros(len(batches), samples, dtype=torch.float64)
            counts.scatter_add_(1, picks, torch.ones(1, dtype=torch.float64).expand_as(picks))
            counts = (counts / batch_size).to(self.shifts.device)
            mu = counts @ self.shifts
            found.append(torch.stack([mu, (counts @ self.squares - mu.square()).clamp(min=0).sqrt()]))
        return Pair(*torch.cat(found, 1).var(1))

    def decay(self, variances: Pair) -> Pair:
        """ζ by the noise it comes from: ½ mean A″ · Var μ_B/σ_P² and ½ F_γ · Var σ_B/σ_P².

        With the variances of eq. 2 this is Theorem 1's eq. 4.
        """
        return Pair(self.bend * variances.mu / self.variance / 2, self.fisher * variances.sigma / self.variance / 2)


def reason_left_out(layer: nn.Module) -> str | None:
    """Why a layer that can normalize by its batch does not, or not by the mean and variance of each channel."""
    if isinstance(layer, RunningNorm):
        if isinstance(layer, LpNorm | BatchRenorm) or getattr(layer, "group_size", 1) > 1:
            return f"{type(layer).__name__} does not normalize a channel by the mean and variance of its batch"
        by_running = not layer.training
    else:
        by_running = not layer.training and layer.running_mean is not None
    return "it normalizes by its running statistics" if by_running else None


def normalizes(layer: nn.Module) -> bool:
    """Whether it is a layer of the kind that can normalize by the batch."""
    return isinstance(layer, (*_torch.BATCH_NORMS, RunningNorm))


def statistic_size(layer: Any, batch_size: int) -> int:
    """Over how many samples of a batch the layer takes its statistics."""
    return min(batch_size, layer.ghost_size) if isinstance(layer, GhostBatchNorm) else batch_size


def population(layer: Any, x: Tensor, link: str) -> Population:
    """All that is needed of a layer's input.

    h̄ = γ(wᵀx − μ_P)/σ_P + β. Layers that do without the mean or without the division have h̄ so, and no noise from
    what they do without: for `MeanOnlyBatchNorm` F_γ is 0 and mean A″ is multiplied by σ_P², for
    `VarianceOnlyBatchNorm` mean A″ is 0 and F_γ has wᵀx in the place of wᵀx − μ_P.

    Args:
        layer: A layer that normalizes by the batch; its γ and β are taken, its eps is not.
        x: Its input, (samples, channels, *positions).
        link: A name in `CURVATURES`.
    """
    values = x.detach().double().flatten(2) if x.ndim > 2 else x.detach().double().unsqueeze(2)
    mean = values.mean((0, 2))
    centred = values - mean[:, None]
    squares = centred.square()
    variance = squares.mean((0, 2))
    safe = torch.where(variance > 0, variance, 1)
    kurtosis = squares.square().mean((0, 2)) / safe.square() - 3
    without_mean, without_sigma = (isinstance(layer, kind) for kind in (VarianceOnlyBatchNorm, MeanOnlyBatchNorm))
    normalized = (values if without_mean else centred) / (1 if without_sigma else safe.sqrt()[:, None])
    gamma, beta = (
        default if given is None else given.detach().double()[:, None]
        for given, default in ((layer.weight, 1.0), (layer.bias, 0.0))
    )
    curvature = CURVATURES[link](gamma * normalized + beta)
    bend = curvature.mean((0, 2))
    fisher = (curvature * normalized.square()).mean((0, 2))
    return Population(
        positions=values.shape[2],
        mean=mean,
        variance=variance,
        kurtosis=kurtosis,
        shifts=centred.mean(2),
        squares=squares.mean(2),
        bend=0 * bend if without_mean else bend * variance if without_sigma else bend,
        fisher=0 * fisher if without_sigma else fisher,
    )
