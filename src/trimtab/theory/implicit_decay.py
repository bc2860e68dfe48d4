"""The decay on γ that is equivalent to BatchNorm's noise (regularization paper, Theorem 1 and eq. 13).

Formulas only; `trimtab.theory.simulation.measure_decay` draws batches and measures the same quantity.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bernoulli, expit, spence

from trimtab.theory.checks import finite

Array = NDArray[np.float64]

_SERIES_FROM = 20.0
"""From this x on the series of log Γ(x+½)/Γ(x) is exact to rounding; Γ itself overflows further on."""


class Link(NamedTuple):
    """A of the loss A(h) − y·h, with the derivatives the theory needs: A′ is the activation, A″ its slope."""

    potential: Callable[[Array], Array]
    activation: Callable[[Array], Array]
    curvature: Callable[[Array], Array]


def _softplus_integral(h: Array) -> Array:
    """∫ log(1+eʰ) dh = −Li₂(−eʰ), of the softplus that stands for ReLU in Theorem 1; reflected where eʰ is large."""
    below: Array = -spence(1 + np.exp(-np.abs(h)))
    return np.where(h > 0, h**2 / 2 + np.pi**2 / 6 - below, below)


LINKS: dict[str, Link] = {
    "relu": Link(_softplus_integral, lambda h: np.logaddexp(0, h), expit),
    "linear": Link(lambda h: h**2 / 2, lambda h: h, np.ones_like),
    "sigmoid": Link(lambda h: np.logaddexp(0, h), expit, lambda h: expit(h) * expit(-h)),
}


class Normal(NamedTuple):
    """A Gaussian by its mean and variance."""

    mean: float
    variance: float


class Prior(NamedTuple):
    """The distributions of a batch's mean and standard deviation."""

    mu: Normal
    sigma: Normal


@dataclass(frozen=True)
class Decay:
    """ζ of Theorem 1, the coefficient of γ², by the noise it comes from."""

    from_sigma: float
    from_mu: float

    @property
    def zeta(self) -> float:
        """The sum of both parts."""
        return self.from_sigma + self.from_mu


def batch_prior(mu: float, sigma: float, batch_size: float, *, excess_kurtosis: float = 0.0) -> Prior:
    """Mean and standard deviation of a batch as random variables (regularization paper, eq. 2, corrected).

    μ_B ~ N(μ_P, σ_P²/M) and σ_B ~ N(σ_P, σ_P²(ρ+2)/(4M)); the paper prints the second variance without σ_P².

    Args:
        mu: Population mean μ_P.
        sigma: Population standard deviation σ_P.
        batch_size: M.
        excess_kurtosis: ρ, 0 for a Gaussian and never below −2.
    """
    check_batch_size(batch_size, above=0)
    _check_kurtosis(excess_kurtosis)
    finite(mu, "mu")
    if not finite(sigma, "sigma") > 0:
        raise ValueError(f"sigma must be positive, not {sigma}.")
    return Prior(
        Normal(mu, sigma**2 / batch_size),
        Normal(sigma, sigma**2 * (excess_kurtosis + 2) / (4 * batch_size)),
    )


def implicit_decay(
    normalized: ArrayLike,
    batch_size: float,
    *,
    gamma: float = 1.0,
    beta: float = 0.0,
    curvature: str | Callable[[Array], Array] = "relu",
    excess_kurtosis: float | None = None,
) -> Decay:
    """ζ in E ℓ(ĥ) ≈ ℓ(h̄) + ζγ² and its two parts (regularization paper, Theorem 1, eqs. 3 and 4).

    ζ = (ρ+2)/(8M)·F_γ + mean A″(h̄)/(2M) with F_γ = mean A″(h̄)·((wᵀx−μ)/σ)² and h̄ = γ(wᵀx−μ)/σ + β. It holds to
    O(1/M²) for the statistics of a batch that the sample is not in, and for E[y|x] = A′(h̄).

    Args:
        normalized: (wᵀx − μ_P)/σ_P of each sample, with population mean 0 and variance 1.
        batch_size: M, larger than 3: below that the variance of 1/σ_B does not exist.
        gamma: BatchNorm's scale.
        beta: BatchNorm's shift.
        curvature: A″ as a function of an array, or the name of one in `LINKS`: "relu" (softplus, A″ the logistic
            function), "linear", "sigmoid".
        excess_kurtosis: ρ of wᵀx; measured on `normalized` if None.
    """
    check_batch_size(batch_size)
    z = _finite_samples(normalized, "normalized")
    finite(gamma, "gamma")
    finite(beta, "beta")
    rho = measured_kurtosis(z) if excess_kurtosis is None else excess_kurtosis
    _check_kurtosis(rho)
    second = link(curvature).curvature if isinstance(curvature, str) else curvature
    bend = np.asarray(second(gamma * z + beta), dtype=np.float64)
    fisher = float(np.mean(bend * z**2))
    return Decay((rho + 2) / (8 * batch_size) * fisher, float(np.mean(bend)) / (2 * batch_size))


def first_order_term(
    normalized: ArrayLike,
    labels: ArrayLike,
    batch_size: float,
    *,
    gamma: float = 1.0,
    beta: float = 0.0,
    activation: str = "relu",
    excess_kurtosis: float | None = None,
) -> float:
    """R^f, the part of E ℓ(ĥ) − ℓ(h̄) that Theorem 1 leaves out (regularization paper, App. 1).

    R^f = (ρ+2)/(4M)·γ·mean (A′(h̄) − y)·(wᵀx−μ)/σ. Its mean over labels with E[y|x] = A′(h̄) is 0; for one set of
    labels it is of the order of 1/√P beside ζγ², the term that is kept.

    Args:
        normalized: As for `implicit_decay`.
        labels: y of each sample.
        batch_size: M, larger than 3.
        gamma: BatchNorm's scale.
        beta: BatchNorm's shift.
        activation: A name in `LINKS`.
        excess_kurtosis: ρ of wᵀx; measured on `normalized` if None.
    """
    check_batch_size(batch_size)
    z, y = _finite_samples(normalized, "normalized"), _finite_samples(labels, "labels")
    if z.shape != y.shape:
        raise ValueError(f"labels must be as many as the samples, {z.size}, not {y.size}.")
    finite(gamma, "gamma")
    finite(beta, "beta")
    rho = measured_kurtosis(z) if excess_kurtosis is None else excess_kurtosis
    _check_kurtosis(rho)
    away = link(activation).activation(gamma * z + beta) - y
    return (rho + 2) / (4 * batch_size) * gamma * float(np.mean(away * z))


def measured_kurtosis(values: ArrayLike) -> float:
    """Excess kurtosis ρ = C/σ⁴ − 3 of a sample, C its fourth central moment (regularization paper, after eq. 2)."""
    centred = _samples(values, "values")
    centred = centred - centred.mean() if centred.size else np.zeros(1)
    variance = float(np.mean(centred**2))
    if not variance > 0:
        raise ValueError("the values must vary to have a kurtosis: pass excess_kurtosis instead.")
    return float(np.mean(centred**4)) / variance**2 - 3


def linear_decay(batch_size: float, *, lam: float = 1.0, mean_noise: bool = False) -> float:
    """ζ of a linear unit under the squared error, exact for Gaussian inputs (regularization paper, eq. 13).

    ζ = λ·E[(σ_P/σ_B − 1)²] = λ(1 + M/(M−3) − √(2M) Γ((M−2)/2)/Γ((M−1)/2)) = λ/(2M)·(1 + 71/(8M) + …), for the noise
    of σ_B alone and the loss (y − ŷ)² without ½.

    Args:
        batch_size: M, larger than 3.
        lam: λ, the mean square of (wᵀx − μ_P)/σ_P over the samples.
        mean_noise: Add 1/(M−3) = E[(μ_B−μ_P)²/σ_B²], what the mean of an independent batch brings.
    """
    check_batch_size(batch_size)
    if not finite(lam, "lam") >= 0:
        raise ValueError(f"lam must be 0 or larger and finite, not {lam}.")
    # M/(M−3) − 1 and E[σ_P/σ_B] − 1, each without the 1 that would swallow its digits.
    second, first = 3 / (batch_size - 3), math.expm1(_log_mean_inverse(batch_size))
    return lam * (second - 2 * first) + (1 / (batch_size - 3) if mean_noise else 0.0)


def own_batch_linear_decay(batch_size: float) -> float:
    """What `linear_decay(mean_noise=True)` becomes where each sample is in its own batch, as in real BatchNorm.

    E[(1−σ_B)² + μ_B²] = 2 − 2E[σ_B], with E[σ_B] = √(2/M) Γ(M/2)/Γ((M−1)/2) for Gaussian inputs of variance 1. Not in
    the paper. To first order in 1/M both are 3/(2M); this one is finite for every M ≥ 2.
    """
    check_batch_size(batch_size, above=1)
    return -2 * math.expm1(_log_mean_sigma(batch_size))


def optimal_scale(batch_size: float) -> tuple[float, float, float]:
    """The γ/γ* that minimizes the expected squared error of a linear unit whose teacher has scale γ*; Gaussian inputs.

    Returns:
        By Theorem 1, 1/(1+ζ); for the statistics of an independent batch, E[1/σ_B]/(E[1/σ_B²] + 1/(M−3)); and for real
        BatchNorm, E[σ_B]. They differ in the 1/M term (3/2, 11/4 and 3/4 of it): Theorem 1's first-order term R^f
        vanishes at γ = γ* only, and E σ_B < σ_P, which eq. 2 leaves out. Not in the paper.
    """
    check_batch_size(batch_size)
    inverse = math.exp(_log_mean_inverse(batch_size))
    independent = inverse / (batch_size / (batch_size - 3) + 1 / (batch_size - 3))
    theorem = 1 / (1 + 3 / (2 * batch_size))
    return theorem, independent, math.exp(_log_mean_sigma(batch_size))


def link(name: str) -> Link:
    """The link of that name; an unknown name is an error that lists all names."""
    if not isinstance(name, str) or name not in LINKS:
        raise ValueError(f"{name!r} is not a known link: take one of {', '.join(LINKS)}.")
    return LINKS[name]


def check_batch_size(batch_size: float, *, above: float = 3) -> None:
    """Refuse a batch size for which a formula is not defined."""
    if not (isinstance(batch_size, SupportsFloat) and above < float(batch_size) < math.inf):
        raise ValueError(f"batch_size must be finite and larger than {above}, not {batch_size}.")


def _samples(values: ArrayLike, name: str) -> Array:
    try:
        return np.asarray(values, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, not {values!r}.") from None


def _finite_samples(values: ArrayLike, name: str) -> Array:
    found = _samples(values, name)
    if found.size == 0 or not np.all(np.isfinite(found)):
        raise ValueError(f"{name} must hold at least one sample, and finite numbers only.")
    return found


def _check_kurtosis(rho: float) -> None:
    if not finite(rho, "excess_kurtosis") >= -2:
        raise ValueError(f"excess_kurtosis must be finite and at least -2, not {rho}.")


def _log_mean_inverse(m: float) -> float:
    """Log of E[σ_P/σ_B] = √(M/2) Γ((M−2)/2)/Γ((M−1)/2) (regularization paper, App. 1)."""
    return -0.5 * math.log1p(-2 / m) - _log_gamma_step((m - 2) / 2)


def _log_mean_sigma(m: float) -> float:
    """Log of E[σ_B/σ_P] = √(2/M) Γ(M/2)/Γ((M−1)/2)."""
    return 0.5 * math.log1p(-1 / m) + _log_gamma_step((m - 1) / 2)


def _log_gamma_step(x: float) -> float:
    """Log of Γ(x+½)/(Γ(x)√x), small for large x, where it is the series −1/(8x) + 1/(192x³) − 1/(640x⁵) + …."""
    if x < _SERIES_FROM:
        return math.log(math.gamma(x + 0.5) / math.gamma(x) / math.sqrt(x))
    numbers = bernoulli(12)
    return sum(
        (2.0 ** (-2 * k) - 1) * float(numbers[2 * k]) / (k * (2 * k - 1) * x ** (2 * k - 1)) for k in range(1, 7)
    )
