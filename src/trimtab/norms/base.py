"""What our normalization layers have in common: checks, running statistics, γ and β.

None of them inherits from torch's BatchNorm. `nn.SyncBatchNorm.convert_sync_batchnorm` replaces whatever does by
plain synchronized BatchNorm, which would quietly make another network of ours; so it leaves these layers as they
are, and they in turn refuse to train in several processes unless they are told that each process's own batch is
what they shall normalize by.
"""

from typing import ClassVar

import torch
import torch.distributed
from torch import Tensor, nn

from trimtab.norms.checks import check_flags, check_numbers, check_whole


class RunningNorm(nn.Module):
    """A normalization by statistics of the batch in training, and by their running averages in evaluation.

    Inputs are (samples, features), or (samples, channels, *positions) with one to three spatial dimensions.
    Statistics are taken per feature or channel, over samples and positions, in float32 at least. The conventions
    are those of `nn.BatchNorm2d`: biased variance in the normalization and unbiased in its running average, which
    moves by `momentum` towards the new value; `weight` is γ and `bias` is β.

    Args:
        num_features: Features or channels.
        space: How many spatial dimensions inputs must have; None takes any from 0 to 3.
        eps: Added to a divisor.
        momentum: The share of the new value in the running averages.
        gamma: The value at which each γ starts.
        fixed_gamma: Whether γ stays there.
        fixed_beta: Whether β stays at 0.
        scale: Whether there is a γ at all.

    Attributes:
        local_statistics: Set it to True to allow training in several processes, each by its own statistics.
    """

    running: ClassVar[dict[str, float]] = {"running_mean": 0.0, "running_var": 1.0}
    """The running averages that a class keeps, and where they start."""

    decay_gamma_beta: ClassVar[bool] = False
    """Whether weight decay is meant for γ and β too; the lab's training reads it."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        space: int | None = None,
        eps: float = 1e-5,
        momentum: float = 0.1,
        gamma: float = 1.0,
        fixed_gamma: bool = False,
        fixed_beta: bool = False,
        scale: bool = True,
    ) -> None:
        super().__init__()
        check_whole(num_features=num_features)
        check_numbers(eps=eps, momentum=momentum, gamma=gamma)
        check_flags(fixed_gamma=fixed_gamma, fixed_beta=fixed_beta, scale=scale)
        if space not in (None, 0, 1, 2, 3):
            raise ValueError(f"space must be None or 0 to 3 spatial dimensions, not {space}.")
        if not eps >= 0:
            raise ValueError(f"eps must be 0 or larger, not {eps}.")
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be in [0, 1], not {momentum}.")
        if not scale and (gamma != 1.0 or fixed_gamma):
            raise ValueError("gamma and fixed_gamma have no meaning without a γ: leave them out, or leave scale=True.")
        self.num_features = num_features
        self.space = space
        self.eps = eps
        self.momentum = momentum
        self.gamma = gamma
        self.local_statistics = False
        self.weight = nn.Parameter(torch.empty(num_features), requires_grad=not fixed_gamma) if scale else None
        self.bias = nn.Parameter(torch.empty(num_features), requires_grad=not fixed_beta)
        for name in self.running:
            self.register_buffer(name, torch.empty(num_features))
        self.register_buffer("num_batches_tracked", torch.empty((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset γ, β and all running averages to their initial values."""
        if self.weight is not None:
            nn.init.constant_(self.weight, self.gamma)
        nn.init.zeros_(self.bias)
        self.reset_running_stats()

    def reset_running_stats(self) -> None:
        """Reset all running averages to their initial values."""
        for name, value in self.running.items():
            self.get_buffer(name).fill_(value)
        self.num_batches_tracked.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """The input normalized, scaled by γ and shifted by β, in the dtype of the input."""
        self._check(x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        y = self.normalize_by_batch(wide) if self.training else self.normalize_by_running(wide)
        if self.weight is not None:
            y = y * per_channel(self.weight, x)
        return (y + per_channel(self.bias, x)).to(x.dtype)

    def normalize_by_batch(self, x: Tensor) -> Tensor:
        """Normalize in training, and update the running averages; as BatchNorm does, unless overridden."""
        mean, variance = batch_moments(x)
        self._track_moments(x, mean, variance)
        return self._standardize(x, mean, variance)

    def normalize_by_running(self, x: Tensor) -> Tensor:
        """Normalize in evaluation; as BatchNorm does, unless overridden."""
        return self._standardize(x, self.running_mean, self.running_var)

    def _standardize(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return (x - per_channel(mean, x)) * per_channel(torch.rsqrt(variance + self.eps), x)

    def _track(self, **statistics: Tensor) -> None:
        """Update the running averages with the statistics of a batch."""
        self.num_batches_tracked.add_(1)
        for name, value in statistics.items():
            average = self.get_buffer(name)
            # Not lerp_, which has no batching rule: vmapped training would be slow, and warn of it.
            average.mul_(1 - self.momentum).add_(value.detach().to(average.dtype), alpha=self.momentum)

    def _track_moments(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        self._track(running_mean=mean, running_var=unbiased(variance, x))

    def _values_per_statistic(self, x: Tensor) -> int:
        """The number of values that a statistic is computed from; the least, if they differ."""
        return x.numel() // self.num_features

    def _check(self, x: Tensor) -> None:
        name, shape = type(self).__name__, tuple(x.shape)
        if not (2 <= x.ndim <= 5 if self.space is None else x.ndim == self.space + 2):
            wanted = "2 to 5" if self.space is None else str(self.space + 2)
            raise ValueError(f"{name} takes inputs of {wanted} dimensions, not of shape {shape}.")
        if x.shape[1] != self.num_features:
            raise ValueError(f"{name} was made for {self.num_features} channels, not for an input of shape {shape}.")
        if not x.is_floating_point():
            raise ValueError(f"{name} takes floating-point inputs, not {x.dtype}; convert them first.")
        if self.training:
            self._check_training(x)

    def _check_training(self, x: Tensor) -> None:
        name = type(self).__name__
        if self._values_per_statistic(x) < 2:
            raise ValueError(
                f"{name} needs more than one value per statistic in training, which an input of shape "
                f"{tuple(x.shape)} does not give; take a larger batch."
            )
        if not self.local_statistics and _processes() > 1:
            raise RuntimeError(
                f"{name} does not synchronize its statistics between processes; train in one process, or set "
                "local_statistics = True on the layer to normalize each process's batch by itself."
            )

    def extra_repr(self) -> str:
        """The settings, for `print(model)`."""
        fixed = ", fixed_gamma=True" if self.weight is not None and not self.weight.requires_grad else ""
        fixed += "" if self.bias.requires_grad else ", fixed_beta=True"
        scale = f", gamma={self.gamma}" if self.weight is not None else ", scale=False"
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}{scale}{fixed}"


def batch_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel over samples and positions."""
    variance, mean = torch.var_mean(x, dims_but_channel(x), correction=0)
    return mean, variance


def unbiased(variance: Tensor, x: Tensor) -> Tensor:
    """The unbiased form of a channel's biased variance, as the running average takes it."""
    count = x.numel() // x.shape[1]
    return variance * (count / (count - 1))


def dims_but_channel(x: Tensor) -> list[int]:
    """The dimensions of samples and positions."""
    return [0, *range(2, x.ndim)]


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """One value per channel, shaped to act on an input."""
    return values.view(-1, *[1] * (x.ndim - 2))


def _processes() -> int:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1
