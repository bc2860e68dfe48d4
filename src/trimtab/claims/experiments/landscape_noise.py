"""landscape, Alg. 1: the distributions of Noisy BatchNorm's noise."""

import numpy as np
import torch

from trimtab.claims.findings import Findings
from trimtab.theory.bounds.sides import Array


def noise_of_steps(steps: int, units: int, samples: int, seed: int) -> tuple[Array, Array]:
    """Algorithm 1's s and m, (steps, samples, units), as they are in the outputs of the layer."""
    from trimtab.norms import NoisyBatchNorm

    layer = NoisyBatchNorm(units).train()
    x = torch.randn(samples, units, generator=torch.Generator().manual_seed(seed))
    scales, shifts = [], []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        assert layer.weight is not None and layer.bias is not None
        torch.nn.init.zeros_(layer.weight)  # what comes before the noise is β then
        for step in range(steps):
            outputs = []
            for beta in (0.0, 1.0):
                torch.nn.init.constant_(layer.bias, beta)
                torch.manual_seed(1000 * seed + step)
                outputs.append(layer(x).double().numpy())
            shifts.append(outputs[0])
            scales.append(outputs[1] - outputs[0])
    return np.array(scales), np.array(shifts)


def scale_distribution(s: Array) -> Array:
    """Of U(1, 1.25) + N(0, 0.1²)."""
    from scipy.stats import norm

    def integral(x: Array) -> Array:
        return np.asarray(x * norm.cdf(x) + norm.pdf(x))

    return 0.1 / 0.25 * (integral((s - 1) / 0.1) - integral((s - 1.25) / 0.1))


def shift_distribution(m: Array) -> Array:
    """Of U(−0.5, 0.5) + U(−0.1, 0.1)."""

    def integral(x: Array) -> Array:
        return np.where(x > 1, x - 0.5, np.clip(x, 0, 1) ** 2 / 2)

    return (integral(m + 0.6) - integral(m + 0.4)) / 0.2


def enter_noise(findings: Findings, seed: int) -> None:
    """Compare Algorithm 1's noise with the distributions it is to have, from step to step and within a step."""
    from scipy.stats import kstest

    s, m = noise_of_steps(100, 100, 2, seed)
    for name, values, distribution in (("s", s, scale_distribution), ("m", m, shift_distribution)):
        # One sample of each step: the others share its unit's mean and scale.
        p = float(kstest(values[:, 0].ravel(), distribution).pvalue)
        findings.number("p of Kolmogorov and Smirnov", name, p)
    s, m = noise_of_steps(1, 50, 4000, seed + 1)
    for name, values, law in (("s", s, ("norm", (0, 0.1))), ("m", m, ("uniform", (-0.1, 0.2)))):
        around = values[0] - values[0].mean(0)
        findings.number("p within a step", name, float(kstest(around.ravel(), law[0], args=law[1]).pvalue))
    findings.settings |= {"noise": "100 steps, 100 units, one sample of each; within a step 50 units, 4,000 samples"}
