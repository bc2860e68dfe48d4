"""Order parameters of drawn networks, beside those that mean field predicts, and how Gaussian preactivations are.

The meanfield paper's recursions are about limits of many units and samples. Here they are measured on networks of
finite width: means over samples and units, or over pairs of samples, then over draws. A layer of few inputs is off by
more than chance: with BatchNorm the mean of 1/s² of n Gaussian weights is n/(n − 2) times 1/(mean of s²).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from trimtab.theory.checks import whole
from trimtab.theory.mean_field.draw import DrawnNetwork, draw_network
from trimtab.theory.mean_field.eigenvalue import Order, mean_field
from trimtab.theory.mean_field.layers import Layer

NAMES = ("q_hat", "q_hat_xy", "q", "q_xy", "q_tilde", "q_tilde_xy")
"""The order parameters that are measured, as `Order` names them."""
GAUSSIANITY = ("distance", "kurtosis", "correlation", "correlation_spread")


@dataclass(frozen=True, kw_only=True)
class MeasuredOrder:
    """The order parameters of one layer in drawn networks; where positions differ, their means.

    Attributes:
        predicted: What mean field says of the layer.
        q_hat: Mean square of the layer's input, per unit.
        q_hat_xy: Mean product of the inputs of two samples, at the same position.
        q: Mean square of its output z, before normalization and activation.
        q_xy: Mean product of the outputs of two samples.
        q_tilde: Mean over samples and positions of ‖∂f/∂z‖², f being one output of the network.
        q_tilde_xy: Mean over pairs of samples of the product of their ∂f/∂z.
        errors: The standard errors over draws of these, by name; NaN for one draw.
        distance: The Kolmogorov–Smirnov distance between z, normalized unit by unit over samples and positions, and a
            standard Gaussian: the largest difference of their distribution functions, of all units, samples and
            positions pooled; the mean over draws.
        kurtosis: Excess kurtosis of the same, 0 for a Gaussian.
        correlation: Mean over pairs of samples of the correlation over units of normalized z, at the first position;
            for independent samples −1/(m − 1), since each unit is centred. NaN for fewer than three units.
        correlation_spread: Its root mean square, less what so many units show by chance.
    """

    predicted: Order
    q_hat: float
    q_hat_xy: float
    q: float
    q_xy: float
    q_tilde: float
    q_tilde_xy: float
    errors: dict[str, float]
    distance: float
    kurtosis: float
    correlation: float
    correlation_spread: float

    def ratios(self) -> dict[str, float]:
        """Measured over predicted, by name; NaN where 0 is predicted."""
        told = {name: getattr(self.predicted, name) for name in NAMES}
        return {name: getattr(self, name) / told[name] if told[name] else math.nan for name in NAMES}


def measure_orders(
    layers: Sequence[Layer],
    *,
    sigma_w2: float,
    sigma_b2: float,
    gamma: float | None = None,
    activation: str = "relu",
    variant: Literal["exact", "paper"] = "exact",
    samples: int = 300,
    draws: int = 20,
    seed: int = 0,
) -> tuple[MeasuredOrder, ...]:
    """Draw networks and white noise, and measure the order parameters layer by layer (meanfield, eqs. 17–19, 29–33).

    BatchNorm's statistics are those of the samples, and the gradient does not pass through them, as in the paper.

    Args:
        layers: As for `mean_field`; f is the first output of the last.
        sigma_w2: The weights' variance times fan-in.
        sigma_b2: The biases' variance.
        gamma: BatchNorm's γ; None: no BatchNorm.
        activation: As for `draw_network`.
        variant: Of the prediction that stands beside.
        samples: m, 2 or more.
        draws: How many networks, each with samples of its own.
        seed: Of the draws; torch's own generators are as before afterwards.

    Raises:
        ValueError: If an argument is invalid.
    """
    samples, draws, seed = whole(samples, "samples", 2), whole(draws, "draws"), whole(seed, "seed", 0)
    told: dict[str, Any] = {"sigma_w2": sigma_w2, "sigma_b2": sigma_b2, "activation": activation}
    if gamma is None:
        predicted = mean_field(layers, variant=variant, **told)
    else:
        predicted = mean_field(layers, variant=variant, norm="batch", gamma=gamma, **told)
    found = []
    with torch.random.fork_rng(devices=[]):
        for draw in range(draws):
            torch.manual_seed(seed + draw)
            network = draw_network(layers, gamma=gamma, **told)
            found.append(_measure(network, samples))
    numbers = np.array(found)  # draws, layers, numbers
    means = numbers.mean(axis=0)
    errors = numbers.std(axis=0, ddof=1) / math.sqrt(draws) if draws > 1 else np.full_like(means, math.nan)
    return tuple(
        MeasuredOrder(
            predicted=order,
            **dict(zip((*NAMES, *GAUSSIANITY), map(float, row), strict=True)),
            errors=dict(zip(NAMES, map(float, error), strict=False)),
        )
        for order, row, error in zip(predicted.layers, means, errors, strict=True)
    )


def _measure(network: DrawnNetwork, samples: int) -> list[list[float]]:
    """One draw: a row of numbers for each dense or convolutional layer."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.append(args[0].detach())
        outputs.append(output)

    network.eval()
    for module in network.children():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(look)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.register_forward_pre_hook(_take_statistics)
            module.eps = 0.0
    values = network(torch.randn(samples, *network.input_shape))
    gradients = torch.autograd.grad(values.flatten(1)[:, 0].sum(), outputs)
    rows = []
    for h, z, delta in zip(inputs, outputs, gradients, strict=True):
        z = z.detach()
        units, below = z.shape[1], h.shape[1]
        rows.append([*_products(h, below), *_products(z, units), *_products(delta, 1), *_gaussianity(z)])
    return rows


def _take_statistics(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
    """Let a BatchNorm in evaluation mode have the statistics of what it is called with."""
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    assert norm.running_mean is not None and norm.running_var is not None
    x = args[0].detach().transpose(0, 1).flatten(1)
    norm.running_mean.copy_(x.mean(1))
    norm.running_var.copy_(x.var(1, correction=0))


def _products(x: Tensor, units: int) -> tuple[float, float]:
    """Means over positions of Σx²/units, and of Σx·x′/units over pairs of samples."""
    x = x.double().flatten(2) if x.ndim > 2 else x.double().unsqueeze(2)
    count = len(x)
    square = float(x.square().sum())
    both = float(x.sum(0).square().sum()) - square
    scale = units * x.shape[2]
    return square / (count * scale), both / (count * (count - 1) * scale)


def _gaussianity(z: Tensor) -> tuple[float, float, float, float]:
    """The four numbers of `GAUSSIANITY`."""
    by_unit = z.double().transpose(0, 1).flatten(2) if z.ndim > 2 else z.double().T.unsqueeze(2)
    flat = by_unit.flatten(1)
    unit = (flat - flat.mean(1, keepdim=True)) / flat.std(1, correction=0, keepdim=True)
    values = np.sort(unit.numpy().ravel())
    steps = np.arange(len(values) + 1) / len(values)
    normal = ndtr(values)
    distance = float(max((steps[1:] - normal).max(), (normal - steps[:-1]).max()))
    kurtosis = float(unit.pow(4).mean()) - 3
    if len(unit) < 3:
        return distance, kurtosis, math.nan, math.nan
    by_sample = unit.view(by_unit.shape)[:, :, 0].T
    pairs = np.corrcoef(by_sample.numpy())[~np.eye(len(by_sample), dtype=bool)]
    spread = math.sqrt(max(float(np.mean(pairs**2)) - 1 / (len(unit) - 1), 0.0))
    return distance, kurtosis, float(pairs.mean()), spread
