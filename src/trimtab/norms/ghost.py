"""Statistics of parts of the batch: GhostBatchNorm, and BatchNorm with four improvements."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from trimtab.norms.base import RunningNorm, batch_moments, dims_but_channel
from trimtab.norms.checks import check_numbers, check_whole

GHOST_SIZE = 16


class GhostBatchNorm(RunningNorm):
    """BatchNorm within sub-batches, the "ghosts" (Hoffer, Hubara and Soudry 2017).

    The batch is cut in its order into ghosts of `ghost_size` samples, each normalized by itself; samples left over
    join the last ghost, so that none is smaller. A batch below that size is one ghost. The running statistics are
    those of the whole batch.

    Args:
        num_features: Features or channels.
        ghost_size: Samples per ghost.
        **common: See `RunningNorm`.
    """

    group_size: int = 1

    def __init__(self, num_features: int, *, ghost_size: int = GHOST_SIZE, **common: Any) -> None:
        super().__init__(num_features, **common)
        check_whole(ghost_size=ghost_size)
        self.ghost_size = ghost_size

    def normalize_by_batch(self, x: Tensor) -> Tensor:
        """Normalize each ghost by its own statistics."""
        self._track_batch(x)
        parts = [self._by_ghosts(part, size) for part, size in _ghosts(x, self.ghost_size)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _track_batch(self, x: Tensor) -> None:
        self._track_moments(x, *batch_moments(x.detach()))

    def _by_ghosts(self, x: Tensor, size: int) -> Tensor:
        """Normalized by the statistics of `size` samples and `group_size` channels each."""
        groups, positions = self.num_features // self.group_size, x.shape[2:].numel()
        blocks = x.reshape(-1, size, groups, self.group_size, positions)
        variance, mean = torch.var_mean(blocks, (1, 3, 4), correction=0, keepdim=True)
        return ((blocks - mean) * torch.rsqrt(variance + self.eps)).reshape(x.shape)

    def _values_per_statistic(self, x: Tensor) -> int:
        positions = x.shape[2:].numel()
        return min(x.shape[0], self.ghost_size) * self.group_size * positions

    def extra_repr(self) -> str:
        """The settings, for `print(model)`."""
        return f"{super().extra_repr()}, ghost_size={self.ghost_size}"


class FourThingsBatchNorm(GhostBatchNorm):
    """BatchNorm with the four improvements of Summers and Dinneen (2020), as the bnp paper compares with (Sec. 5).

    - Ghosts of `ghost_size` samples, for larger batches.
    - Statistics over groups of `group_size` neighbouring channels as well, for small ones. With ghosts of one sample
      that is GroupNorm, so a batch may have one sample.
    - In evaluation an example's own mean E[x] and mean square E[x²] enter the running ones m with the weight α:
      μ = α E[x] + (1 − α) m_x and σ² = α E[x²] + (1 − α) m_x² − μ².
    - γ and β are meant for weight decay: `decay_gamma_beta`. (The layer does not apply it; this is for the code that
      makes the optimizer.)

    The running statistics are therefore the mean and the mean square of each channel, not the variance, which one
    sample would not have.

    Args:
        num_features: Features or channels.
        ghost_size: Samples per ghost.
        group_size: Channels per group, a divisor of `num_features`; 1 is no grouping.
        alpha: α in [0, 1]. None takes the weight that an example has in training, 1/ghost_size; the authors choose
            it on held-out data.
        **common: See `RunningNorm`.
    """

    running: ClassVar[dict[str, float]] = {"running_mean": 0.0, "running_square": 1.0}
    decay_gamma_beta: ClassVar[bool] = True

    running_square: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        ghost_size: int = GHOST_SIZE,
        group_size: int = 1,
        alpha: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(num_features, ghost_size=ghost_size, **common)
        check_whole(group_size=group_size)
        if num_features % group_size:
            raise ValueError(f"group_size must divide the {num_features} channels, which {group_size} does not.")
        check_numbers(**({} if alpha is None else {"alpha": alpha}))
        if alpha is not None and not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], not {alpha}: it is an example's weight in its own statistics.")
        self.group_size = group_size
        self.alpha = 1 / ghost_size if alpha is None else alpha

    def _track_batch(self, x: Tensor) -> None:
        x, dims = x.detach(), dims_but_channel(x)
        self._track(running_mean=x.mean(dims), running_square=x.square().mean(dims))

    def normalize_by_running(self, x: Tensor) -> Tensor:
        """Normalize each sample by a mixture of its own statistics and the running averages."""
        groups, positions = self.num_features // self.group_size, x.shape[2:].numel()
        blocks = x.reshape(-1, groups, self.group_size, positions)
        example_mean = blocks.mean((2, 3), keepdim=True)
        example_variance = (blocks - example_mean).square().mean((2, 3), keepdim=True)  # var_mean warns of no samples
        running_mean, running_square = (
            m.view(-1, self.group_size, 1).mean(1, keepdim=True) for m in (self.running_mean, self.running_square)
        )
        # Rounding, or averages over a time in which the mean has moved, must not leave a negative variance.
        running_variance = (running_square - running_mean.square()).clamp(min=0)
        shift = example_mean - running_mean
        mean = running_mean + self.alpha * shift
        # The variance of the mixture, in the form without a difference of large squares.
        variance = (
            self.alpha * example_variance
            + (1 - self.alpha) * running_variance
            + self.alpha * (1 - self.alpha) * shift.square()
        )
        return ((blocks - mean) * torch.rsqrt(variance + self.eps)).reshape(x.shape)

    def extra_repr(self) -> str:
        """The settings, for `print(model)`."""
        return f"{super().extra_repr()}, group_size={self.group_size}, alpha={self.alpha}"


def _ghosts(x: Tensor, size: int) -> list[tuple[Tensor, int]]:
    """The batch in one or two parts, each a whole number of ghosts, and the samples per ghost of each part."""
    samples = x.shape[0]
    if samples < 2 * size:
        return [(x, samples)]
    if samples % size == 0:
        return [(x, size)]
    even = (samples // size - 1) * size
    return [(x[:even], size), (x[even:], samples - even)]
