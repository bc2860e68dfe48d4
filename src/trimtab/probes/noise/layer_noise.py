"""The noise of one BatchNorm layer: the variances of its statistics, their prediction, and ζ."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.norms.base import dims_but_channel
from trimtab.probes.noise.batch_statistics import Pair, Population, population, statistic_size

_ROUNDINGS = 8  # a channel that varies by no more than so many of them is constant


@dataclass(frozen=True, kw_only=True)
class LayerNoise:
    """The statistics of one BatchNorm layer as random variables; medians over its channels.

    Attributes:
        samples: How many samples it was measured on.
        batch_size: M, the samples of a batch.
        positions: How many positions a sample has; 1 in dense layers.
        channels: How many channels vary, and were measured.
        constant: How many channels do not vary over the samples; they are not in the medians.
        mu_variance: Var μ_B, measured over batches of M samples.
        mu_predicted: σ_P²/M.
        mu_ratio: Measured over predicted.
        mu_ratio_positions: Measured over σ_P²/(M · positions), as if positions were independent.
        sigma_variance: Var σ_B, measured.
        sigma_predicted: σ_P²(ρ+2)/(4M).
        sigma_ratio: Measured over predicted.
        sigma_ratio_positions: Measured over σ_P²(ρ+2)/(4M · positions).
        effective: σ_P²/Var μ_B: how many independent values a batch amounts to.
        kurtosis: ρ, the excess kurtosis.
        zeta: ζ by Theorem 1 for M independent values; NaN if M is 3 or less.
        zeta_from_mu: Its part from μ_B.
        zeta_from_sigma: Its part from σ_B.
        zeta_measured: ζ with the measured variances in the place of the predicted ones.
        mu_ratio_split: As `mu_ratio`, of the parts that the batch was split into, as the network computes them: with
            the noise that earlier layers add or take away. The mean over channels, which often go together, so that
            its relative error is up to √(2/(parts − 1)). NaN if it was not split.
        sigma_ratio_split: The same of σ_B.
    """

    samples: int
    batch_size: int
    positions: int
    channels: int
    constant: int
    mu_variance: float = math.nan
    mu_predicted: float = math.nan
    mu_ratio: float = math.nan
    mu_ratio_positions: float = math.nan
    sigma_variance: float = math.nan
    sigma_predicted: float = math.nan
    sigma_ratio: float = math.nan
    sigma_ratio_positions: float = math.nan
    effective: float = math.nan
    kurtosis: float = math.nan
    zeta: float = math.nan
    zeta_from_mu: float = math.nan
    zeta_from_sigma: float = math.nan
    zeta_measured: float = math.nan
    mu_ratio_split: float = math.nan
    sigma_ratio_split: float = math.nan


class PartStatistics(NamedTuple):
    """μ_B and σ_B of a layer's channels in a part of the batch, and how many samples that has."""

    samples: int
    mu: Tensor
    sigma: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "PartStatistics":
        """Of a layer's input."""
        variance, mean = torch.var_mean(x.detach().double(), dims_but_channel(x), correction=0)
        return cls(len(x), mean, variance.sqrt())


class LayerCall(NamedTuple):
    """A layer's input: what it says of the population, which channels vary, and M."""

    population: Population
    varying: Tensor
    batch_size: int

    @classmethod
    def of(cls, layer: nn.Module, x: Tensor, link: str, batch_size: int | None) -> "LayerCall":
        """A layer's input, for batches of so many samples (None: as many as it has)."""
        one = population(layer, x, link)
        varying = one.variance.sqrt() > _ROUNDINGS * torch.finfo(x.dtype).eps * one.mean.abs()
        return cls(one, varying, statistic_size(layer, batch_size or len(x)))

    def noise(self, drawn: Pair, parts: list[PartStatistics]) -> LayerNoise:
        """All numbers, by the variances of batches that were drawn and the statistics of parts of the batch."""
        one, size = self.population, self.batch_size
        predicted, spread_out = one.predicted(size), one.predicted(size * one.positions)
        decay, decay_drawn = one.decay(predicted), one.decay(drawn)
        if size <= 3:  # the variance of 1/σ_B does not exist
            decay = Pair(decay.mu * math.nan, decay.sigma * math.nan)
        if size * one.positions <= 3:
            decay_drawn = decay
        channels = {
            "mu_variance": drawn.mu,
            "mu_predicted": predicted.mu,
            "mu_ratio": drawn.mu / predicted.mu,
            "mu_ratio_positions": drawn.mu / spread_out.mu,
            "sigma_variance": drawn.sigma,
            "sigma_predicted": predicted.sigma,
            "sigma_ratio": drawn.sigma / predicted.sigma,
            "sigma_ratio_positions": drawn.sigma / spread_out.sigma,
            "effective": one.variance / drawn.mu,
            "kurtosis": one.kurtosis,
            "zeta": decay.mu + decay.sigma,
            "zeta_from_mu": decay.mu,
            "zeta_from_sigma": decay.sigma,
            "zeta_measured": decay_drawn.mu + decay_drawn.sigma,
        }
        table = torch.stack(list(channels.values()))[:, self.varying].cpu().numpy()
        medians = np.median(table, axis=1).tolist() if table.size else []
        count = int(self.varying.sum())
        return LayerNoise(
            samples=len(one.shifts),
            batch_size=size,
            positions=one.positions,
            channels=count,
            constant=len(self.varying) - count,
            **dict(zip(channels, medians, strict=False)),
            **(self._split_ratios(parts) if len(parts) > 1 and count else {}),
        )

    def _split_ratios(self, parts: list[PartStatistics]) -> dict[str, float]:
        """Variances over the parts against eq. 2 with the unbiased variance of all samples; means over channels."""
        predicted = self.population.predicted(parts[0].samples * (1 - 1 / len(self.population.shifts)))
        ratios = {
            "mu_ratio_split": torch.stack([part.mu for part in parts]).var(0) / predicted.mu,
            "sigma_ratio_split": torch.stack([part.sigma for part in parts]).var(0) / predicted.sigma,
        }
        return {name: float(ratio[self.varying].mean()) for name, ratio in ratios.items()}
