"""Batch Renormalization (Ioffe 2017)."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, library

from trimtab.norms.base import RunningNorm, batch_moments, per_channel
from trimtab.norms.checks import check_numbers

PUBLISHED_RUN = 160_000
"""The length of run, in steps, that the published schedule is taken to be for: a choice of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenormLimits:
    """The limits of Batch Renorm and their schedule, see `BatchRenorm`; the defaults are the published ones."""

    r_max: float = 3.0
    d_max: float = 5.0
    warmup: int = 5_000
    r_steps: int = 40_000
    d_steps: int = 25_000

    def scaled(self, steps: int) -> Self:
        """The same with a schedule for a run of so many steps: in proportion, so that a short run has all of it.

        A run of `PUBLISHED_RUN` steps or more has the schedule as it is.
        """
        share = min(steps / PUBLISHED_RUN, 1.0)
        return replace(
            self,
            warmup=int(self.warmup * share),
            r_steps=int(self.r_steps * share),
            d_steps=int(self.d_steps * share),
        )


class BatchRenorm(RunningNorm):
    """BatchNorm corrected towards what it will compute in evaluation (Ioffe 2017, Algorithm 1; bnp paper, eq. 3).

    In training y = γ((x − μ_B)/σ_B · r + d) + β with r = σ_B/σ clipped to [1/r_max, r_max] and d = (μ_B − μ)/σ
    clipped to [−d_max, d_max]; μ and σ are the running statistics before this batch. No gradient passes through r
    and d. The limits are 1 and 0, which is BatchNorm, for `warmup` steps, and then grow linearly to `r_max` at step
    `r_steps` and to `d_max` at step `d_steps`; steps are counted in `num_batches_tracked`. All defaults are the
    published ones. The paper averages standard deviations; here, as in the other layers, it is the unbiased
    variance that is averaged.

    Args:
        num_features: Features or channels.
        r_max: The limit of r at the end, 1 or larger.
        d_max: The limit of d at the end, 0 or larger.
        warmup: For how many steps it is BatchNorm.
        r_steps: The step at which `r_max` is reached; not before `warmup` ends.
        d_steps: The step at which `d_max` is reached; not before `warmup` ends.
        momentum: The share of the new value in the running averages.
        **common: See `RunningNorm`.
    """

    def __init__(
        self,
        num_features: int,
        *,
        r_max: float = 3.0,
        d_max: float = 5.0,
        warmup: int = 5_000,
        r_steps: int = 40_000,
        d_steps: int = 25_000,
        momentum: float = 0.01,
        **common: Any,
    ) -> None:
        super().__init__(num_features, momentum=momentum, **common)
        check_numbers(r_max=r_max, d_max=d_max, warmup=warmup, r_steps=r_steps, d_steps=d_steps)
        if not r_max >= 1:
            raise ValueError(f"r_max must be 1 or larger, not {r_max}: r lies between 1/r_max and r_max.")
        if not d_max >= 0:
            raise ValueError(f"d_max must be 0 or larger, not {d_max}: d lies between -d_max and d_max.")
        if not 0 <= warmup <= min(r_steps, d_steps):
            raise ValueError(f"warmup must be between 0 and the smaller of r_steps and d_steps, not {warmup}.")
        self.r_max, self.d_max = r_max, d_max
        self.warmup, self.r_steps, self.d_steps = warmup, r_steps, d_steps

    def limits(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The limits of r and d at a step; steps are counted from 1."""
        beyond = (step - self.warmup).to(torch.promote_types(self.running_var.dtype, torch.float32))
        r_share, d_share = ((beyond / max(end - self.warmup, 1)).clamp(0, 1) for end in (self.r_steps, self.d_steps))
        return 1 + (self.r_max - 1) * r_share, self.d_max * d_share

    def normalize_by_batch(self, x: Tensor) -> Tensor:
        """Normalize by the statistics of the batch, corrected towards the running averages."""
        mean, variance = batch_moments(x)
        r, d = self._correction(mean.detach(), variance.detach())
        self._track_moments(x, mean, variance)
        return self._standardize(x, mean, variance) * per_channel(r, x) + per_channel(d, x)

    def _correction(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        r_max, d_max = self.limits(self.num_batches_tracked + 1)
        sigma = torch.sqrt(self.running_var + self.eps)
        r = torch.sqrt(variance + self.eps) / sigma
        d = (mean - self.running_mean) / sigma
        return _save_copy(r.clamp(1 / r_max, r_max)), _save_copy(d.clamp(-d_max, d_max))

    def extra_repr(self) -> str:
        """The settings, for `print(model)`."""
        schedule = f"warmup={self.warmup}, r_steps={self.r_steps}, d_steps={self.d_steps}"
        return f"{super().extra_repr()}, r_max={self.r_max}, d_max={self.d_max}, {schedule}"


# The backward needs r and d as they were in the forward. A compiled one may compute them again instead, but from
# running statistics that have moved since: its gradients would be wrong (https://github.com/pytorch/pytorch/pull/197039).
# What comes out of an operator that the compiler does not know is kept.
@library.custom_op("trimtab::save_copy", mutates_args=())
def _save_copy(x: Tensor) -> Tensor:
    return x.clone()


@_save_copy.register_fake
def _save_copy_fake(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@_save_copy.register_vmap
def _save_copy_vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
    return _save_copy(x), in_dims[0]
