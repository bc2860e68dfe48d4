"""How far gradients of small batches lie from each other (McCandlish, Kaplan, Amodei et al. 2018)."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

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
    means: dict[str, Tensor] = {}
    spreads: dict[str, Tensor] = {}
    count = 0
    for gradient in gradients:
        count += 1
        for name, value in gradient.items():
            value = at_least_float32(value)
            if count == 1:
                means[name], spreads[name] = value.clone(), value.new_zeros((), dtype=torch.float64)
                continue
            away = value - means[name]
            means[name] += away / count
            spreads[name] += (away * (value - means[name])).sum(dtype=torch.float64)
    if count < 2:
        raise ValueError(f"The noise of gradients takes two of them or more, not {count}.")
    found: dict[str, GradientNoise] = {}
    for layer, names in by_layer(means).items():
        trace = samples * sum(float(spreads[name]) for name in names) / (count - 1)
        square = sum(float(means[name].square().sum(dtype=torch.float64)) for name in names)
        found[layer] = GradientNoise(square - trace / (count * samples), trace)
    squares, traces = zip(*found.values(), strict=True)
    return GradientNoise(sum(squares), sum(traces)), found
