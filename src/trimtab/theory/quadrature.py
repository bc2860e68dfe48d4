"""Expectations of the regularization paper by numerical integration, for comparison with its formulas.

Nothing here uses the formulas that it is compared with: only the definitions.
"""

import math

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray
from scipy.special import erf

from trimtab.theory.implicit_decay import link
from trimtab.theory.teacher_student import Averages

NODES, WEIGHTS = hermegauss(30)
"""Nodes and weights of a mean over a standard Gaussian."""
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def gaussian_decay(batch_size: float, activation: str = "relu", gamma: float = 1.0, beta: float = 0.0) -> float:
    """ζ of Theorem 1 for Gaussian wᵀx: means over the nodes are means over the population."""
    bend = link(activation).curvature(gamma * NODES + beta)
    fisher, mean = np.sum(WEIGHTS * bend * NODES**2), np.sum(WEIGHTS * bend)
    return float(fisher / (4 * batch_size) + mean / (2 * batch_size))


def expected_decay(
    batch_size: int,
    activation: str = "relu",
    gamma: float = 1.0,
    beta: float = 0.0,
    *,
    mu_noise: bool = True,
    sigma_noise: bool = True,
) -> float:
    """(E ℓ(ĥ) − ℓ(h̄))/γ² for Gaussian wᵀx and an independent batch, whose Mσ_B² is χ² with M−1 degrees of freedom.

    Args:
        batch_size: M.
        activation: A name in `trimtab.theory.implicit_decay.LINKS`.
        gamma: BatchNorm's scale.
        beta: BatchNorm's shift.
        mu_noise: Whether the mean is the batch's.
        sigma_noise: Whether the standard deviation is the batch's.
    """
    chosen = link(activation)
    shape = (batch_size - 1) / 2
    # The trapezoid rule in the logarithm of σ_B², where the density falls off fast on both sides.
    aside = np.linspace(-math.sqrt(90 / shape) - 45 / shape, math.sqrt(90 / shape) + 3 / shape, 200)
    masses = np.exp(shape * (aside - np.expm1(aside)))
    masses = masses / masses.sum()
    sigma = np.exp(aside / 2) * math.sqrt(2 * shape / batch_size) if sigma_noise else np.ones_like(aside)
    mu = NODES / math.sqrt(batch_size) if mu_noise else np.zeros_like(NODES)
    h = NODES[:, None, None]
    clean = gamma * h + beta
    noisy = gamma * (h - mu[None, :, None]) / sigma + beta
    more = chosen.potential(noisy) - chosen.potential(clean) - chosen.activation(clean) * (noisy - clean)
    return float(np.einsum("i,j,k,ijk->", WEIGHTS, WEIGHTS, masses, more)) / gamma**2


def averages_by_quadrature(q: float, r: float, activation: str = "relu") -> Averages:
    """I₁, I₂, I₃ over (v, u) = (w*ᵀx, w̃ᵀx), Gaussian with variances 1 and Q² and covariance QR."""
    if activation == "relu":
        # Of degree two in (v, u): the radius integrates to 2, and the angle is left, in pieces without a kink.
        nodes, weights = leggauss(20)
        turned = math.acos(r)  # u > 0 within a right angle of here, v > 0 within one of 0
        kinks = sorted({-math.pi, math.pi, *(_wrapped(a + b * math.pi / 2) for a in (0.0, turned) for b in (-1, 1))})
        left, right = np.array(kinks[:-1])[:, None], np.array(kinks[1:])[:, None]
        angle = ((left + right) / 2 + (right - left) / 2 * nodes).ravel()
        weight = ((right - left) / 2 * weights).ravel() / math.pi
        v, aside = np.cos(angle), np.sin(angle)
    else:
        nodes, weights = hermegauss(80)
        v, aside = (grid.ravel() for grid in np.meshgrid(nodes, nodes))
        weight = np.outer(weights, weights).ravel() / weights.sum() ** 2
    u = q * (r * v + math.sqrt(1 - r**2) * aside)
    delta = _delta(v, u, activation)
    return Averages(*(float(np.sum(weight * f)) for f in (delta * u, delta**2, delta * v)))


def _delta(v: NDArray[np.float64], u: NDArray[np.float64], activation: str) -> NDArray[np.float64]:
    """δ = g′(u)[g(v) − g(u)]."""
    if activation == "relu":
        return np.where(u > 0, np.maximum(v, 0) - u, 0.0)
    slope = math.sqrt(2 / math.pi) * np.exp(-(u**2) / 2)
    return np.asarray(slope * (erf(v / math.sqrt(2)) - erf(u / math.sqrt(2))))


def _wrapped(angle: float) -> float:
    return (angle + math.pi) % (2 * math.pi) - math.pi
