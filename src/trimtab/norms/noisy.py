"""Deliberate noise, BatchNorm followed by it, and BatchNorm whose statistics carry no gradient."""

from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norms.base import RunningNorm, batch_moments, per_channel
from trimtab.norms.checks import check_numbers


class Noise(nn.Module):
    """Shifts and scales its input at random, anew in every step (landscape paper, Algorithm 1 without its BatchNorm).

    Per step and channel μ ~ U(−n_μ, n_μ) and σ ~ U(1, n_σ); then per sample, channel and position
    m ~ U(μ − r_μ, μ + r_μ) and s ~ N(σ, r_σ²), and the input a becomes s·a + m. In training only. The noise comes from
    torch's generator of the device; the defaults are the paper's.

    Args:
        n_mu: n_μ, 0 or larger.
        n_sigma: n_σ, 1 or larger.
        r_mu: r_μ, 0 or larger.
        r_sigma: r_σ, a standard deviation, 0 or larger.
    """

    def __init__(self, *, n_mu: float = 0.5, n_sigma: float = 1.25, r_mu: float = 0.1, r_sigma: float = 0.1) -> None:
        super().__init__()
        check_numbers(n_mu=n_mu, n_sigma=n_sigma, r_mu=r_mu, r_sigma=r_sigma)
        for name, value, smallest in (
            ("n_mu", n_mu, 0),
            ("n_sigma", n_sigma, 1),
            ("r_mu", r_mu, 0),
            ("r_sigma", r_sigma, 0),
        ):
            if not value >= smallest:
                raise ValueError(f"{name} must be {smallest} or larger, not {value}.")
        self.n_mu, self.n_sigma, self.r_mu, self.r_sigma = n_mu, n_sigma, r_mu, r_sigma

    def forward(self, a: Tensor) -> Tensor:
        """The input with noise, in evaluation without."""
        if not self.training:
            return a
        s, m = self.draw(a)
        return s * a + m

    def draw(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """The noise, s and m, for each entry of an input, (samples, channels, *positions)."""
        channels = per_channel(a.new_empty(a.shape[1]), a)
        mu = self.n_mu * _symmetric_uniform(channels)
        sigma = 1 + (self.n_sigma - 1) * torch.rand_like(channels)
        return sigma + self.r_sigma * torch.randn_like(a), mu + self.r_mu * _symmetric_uniform(a)

    def extra_repr(self) -> str:
        """The settings, for `print(model)`."""
        return f"n_mu={self.n_mu}, n_sigma={self.n_sigma}, r_mu={self.r_mu}, r_sigma={self.r_sigma}"


class NoisyBatchNorm(RunningNorm):
    """BatchNorm whose output, γ and β included, goes through `Noise` (landscape paper, Algorithm 1).

    Args:
        num_features: Features or channels.
        n_mu: See `Noise`, as the next three.
        n_sigma: n_σ.
        r_mu: r_μ.
        r_sigma: r_σ.
        **common: See `RunningNorm`.
    """

    def __init__(
        self,
        num_features: int,
        *,
        n_mu: float = 0.5,
        n_sigma: float = 1.25,
        r_mu: float = 0.1,
        r_sigma: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__(num_features, **common)
        self.noise = Noise(n_mu=n_mu, n_sigma=n_sigma, r_mu=r_mu, r_sigma=r_sigma)

    def forward(self, x: Tensor) -> Tensor:
        """BatchNorm, and in training the noise after it."""
        noisy: Tensor = self.noise(super().forward(x))
        return noisy


class StopGradientBatchNorm(RunningNorm):
    """BatchNorm whose gradient does not pass through the batch's mean and variance (bnp paper, Prop. 7).

    Its output is BatchNorm's; its gradient takes μ_B and σ_B for constants.
    """

    def normalize_by_batch(self, x: Tensor) -> Tensor:
        """Normalize by the statistics of the batch, which the gradient treats as constants."""
        mean, variance = batch_moments(x.detach())
        self._track_moments(x, mean, variance)
        return self._standardize(x, mean, variance)


def _symmetric_uniform(like: Tensor) -> Tensor:
    return 2 * torch.rand_like(like) - 1
