"""How far gradients of small batches lie from each other (McCandlish, Kaplan, Amodei et al. 2018)."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab import _torch
from trimtab.bnp.algorithm.moments import at_least_float32
from trimtab.probes.result import by_layer


class GradientNoise(NamedTuple):
    """The size of the gradient and of its noise.

    Attributes:
        square: |G|², of the gradient without noise; without bias, so that it can come out below 0.
        trace: tr(Σ), Σ the covariance of one sample's gradient; without bias.
    """

    square: float
    trace: float

    @property
    def scale(self) -> float:
        """The simple noise scale tr(Σ)/|G|², in samples (their eq. 2.9); NaN if |G|² is lost in the noise."""
        return self.trace / self.square if self.square > 0 else math.nan


def gradient_noise(
    gradients: Iterable[dict[str, Tensor]], samples: int
) -> tuple[GradientNoise, dict[str, GradientNoise]]:
    """The noise of the whole gradient and that of each layer's, from gradients of K batches of m samples each.

    tr(Σ) = m Σ_k |G_k − Ḡ|²/(K − 1) and |G|² = |Ḡ|² − tr(Σ)/(Km). These are the paper's estimators (its appendix A.1)
    with the small batches of m samples and their mean for the large batch. Both are for a loss that is a mean over
    samples; of a sum they are m² times as large, and their ratio is the same.

    Args:
        gradients: By the names of the parameters; one at a time is looked at.
        samples: m.

    Raises:
        ValueError: If there are fewer than two.
    """
    names: list[str] = []
    means: list[Tensor] = []
    spreads: list[Tensor] = []  # |G_k − Ḡ|², as far as it goes, of all parameters
    for count, gradient in enumerate(gradients, start=1):
        values = [at_least_float32(value) for value in gradient.values()]
        if count == 1:
            names, means = list(gradient), _torch.clone_all(values)
            continue
        away = _torch.subtract_all(values, means)
        _torch.add_all_(means, away, alpha=1 / count)
        spreads.append((1 - 1 / count) * _squares(away))
    if not spreads:
        raise ValueError("The noise of gradients takes two of them or more.")
    traces = dict(zip(names, (samples * torch.stack(spreads).sum(0) / len(spreads)).tolist(), strict=True))
    squares = dict(zip(names, _squares(means).tolist(), strict=True))
    found: dict[str, GradientNoise] = {}
    for layer, mine in by_layer(names).items():
        trace = sum(traces[name] for name in mine)
        square = sum(squares[name] for name in mine)
        found[layer] = GradientNoise(square - trace / ((len(spreads) + 1) * samples), trace)
    return GradientNoise(sum(each.square for each in found.values()), sum(each.trace for each in found.values())), found


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    """The square of each tensor's norm, in float64."""
    return torch.stack([norm.to(tensors[0].device) for norm in _torch.norms(tensors)]).square()
