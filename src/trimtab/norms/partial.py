"""Halves of BatchNorm and its relatives by other norms: mean-only, variance-only and ℓp normalization."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from trimtab.norms.base import RunningNorm, batch_moments, dims_but_channel, per_channel, unbiased
from trimtab.norms.checks import check_numbers


class MeanOnlyBatchNorm(RunningNorm):
    """y = γ(x − μ_B) + β: the mean's half of BatchNorm (regularization paper, Sec. 5; Salimans and Kingma 2016).

    Under weight normalization the length g of the weights is the γ, and the layer is made with `scale=False`.
    """

    running: ClassVar[dict[str, float]] = {"running_mean": 0.0}

    def normalize_by_batch(self, x: Tensor) -> Tensor:
        """The input less the batch's mean."""
        mean = x.mean(dims_but_channel(x))
        self._track(running_mean=mean)
        return x - per_channel(mean, x)

    def normalize_by_running(self, x: Tensor) -> Tensor:
        """The input less the running mean."""
        return x - per_channel(self.running_mean, x)


class VarianceOnlyBatchNorm(RunningNorm):
    """y = γ x/σ_B + β: the variance's half of BatchNorm (regularization paper, Sec. 5).

    σ_B² is the variance about the batch's mean, which itself is not subtracted.
    """

    running: ClassVar[dict[str, float]] = {"running_var": 1.0}

    def normalize_by_batch(self, x: Tensor) -> Tensor:
        """The input divided by the batch's standard deviation."""
        _, variance = batch_moments(x)
        self._track(running_var=unbiased(variance, x))
        return self._divided(x, variance)

    def normalize_by_running(self, x: Tensor) -> Tensor:
        """The input divided by the running standard deviation."""
        return self._divided(x, self.running_var)

    def _divided(self, x: Tensor, variance: Tensor) -> Tensor:
        return x * per_channel(torch.rsqrt(variance + self.eps), x)


class LpNorm(RunningNorm):
    """y = γ(x − μ_B)/(n_p + eps) + β with an average ℓp norm n_p in the place of σ_B (landscape paper, Sec. 3.3).

    n_p is that of the activations before their mean is subtracted: n_1 = mean|x|, n_2 = √mean x², n_∞ = max|x|,
    in general (mean|x|^p)^(1/p). Its running average is `running_norm`.

    Args:
        num_features: Features or channels.
        p: The order of the norm, 1 or larger, `math.inf` included.
        **common: See `RunningNorm`.
    """

    running: ClassVar[dict[str, float]] = {"running_mean": 0.0, "running_norm": 1.0}

    running_norm: Tensor

    def __init__(self, num_features: int, *, p: float = 2, **common: Any) -> None:
        super().__init__(num_features, **common)
        check_numbers(p=p)
        if not p >= 1:
            raise ValueError(f"p must be 1 or larger, not {p}: below that there is no norm.")
        self.p = float(p)

    def normalize_by_batch(self, x: Tensor) -> Tensor:
        """The input less the batch's mean, divided by the average norm."""
        mean, norm = x.mean(dims_but_channel(x)), self._average_norm(x)
        self._track(running_mean=mean, running_norm=norm)
        return self._shifted_and_divided(x, mean, norm)

    def normalize_by_running(self, x: Tensor) -> Tensor:
        """The input less the running mean, divided by the running average norm."""
        return self._shifted_and_divided(x, self.running_mean, self.running_norm)

    def _average_norm(self, x: Tensor) -> Tensor:
        if self.p == 2:  # as a root, whose second derivative stays finite where a channel is all zeros
            return torch.sqrt(x.square().mean(dims_but_channel(x)) + self.eps**4)
        count = x.numel() // self.num_features
        norm: Tensor = torch.linalg.vector_norm(x, self.p, dims_but_channel(x))
        return norm if math.isinf(self.p) else norm / count ** (1 / self.p)

    def _shifted_and_divided(self, x: Tensor, mean: Tensor, norm: Tensor) -> Tensor:
        return (x - per_channel(mean, x)) / per_channel(norm + self.eps, x)

    def extra_repr(self) -> str:
        """The settings, for `print(model)`."""
        return f"{super().extra_repr()}, p={self.p:g}"
