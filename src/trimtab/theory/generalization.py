"""Generalization of a noisy linear teacher's student: the curves of the regularization paper's Sec. 4 (eqs. 14 to 16).

Teacher y = w*ᵀx + ε with x ~ N(0, I/N), ‖w*‖² = N and noise of variance δ², P = αN samples, N → ∞. The student
minimizes ‖y − Xw‖² + ζ‖w‖²: ζ = 0 is the pseudo-inverse that vanilla SGD approaches from w = 0, ζ > 0 is WN with a
decay on γ.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.theory.checks import finite

Array = NDArray[np.float64]

_LARGEST = 1e100
"""Loads and decays beyond this would leave the range of floating point in their squares."""


@dataclass(frozen=True)
class Generalization:
    """The two quantities that the paper calls the generalization error, over the loads α.

    Attributes:
        alpha: Samples per input, P/N.
        excess_risk: ‖w − w*‖²/N, the expected loss on new data less the noise: eqs. 14 and 15.
        training_loss: Mean of (y − wᵀx)² over the training set.
        noise_variance: δ².
    """

    alpha: Array
    excess_risk: Array
    training_loss: Array
    noise_variance: float

    @property
    def validation_loss(self) -> Array:
        """Mean of (y − wᵀx)² on new data, noise included."""
        return self.excess_risk + self.noise_variance

    @property
    def gap(self) -> Array:
        """Validation loss minus training loss."""
        return self.validation_loss - self.training_loss


def ridge_curve(alpha: ArrayLike, zeta: ArrayLike, *, noise_variance: float = 0.25) -> Generalization:
    """Both errors of the minimizer of ‖y − Xw‖² + ζ‖w‖² (regularization paper, eqs. 15 and 16).

    With S = √((ζ+(1+√α)²)(ζ+(1−√α)²)), G = (1−α−ζ+S)/(2ζ) and ∂(ζG)/∂ζ = 2α/(S(S+ζ+1+α)), the excess risk is
    δ²∂(ζG)/∂ζ − ζ²∂G/∂ζ. The training loss, which the paper leaves out, follows from the same G. At ζ = 0 they are the
    limits, eq. 14.

    Args:
        alpha: α = P/N, positive.
        zeta: ζ of the summed loss, one for all loads or one each. For the mean loss (1/P)Σ(y − ŷ)² + ζγ² pass αζ.
        noise_variance: δ², which the paper also writes ε².
    """
    a, z = _numbers(alpha, "alpha"), _numbers(zeta, "zeta")
    if not np.all((a > 0) & (a <= _LARGEST)):
        raise ValueError(f"alpha must be positive and at most {_LARGEST:g}.")
    if not np.all((z >= 0) & (z <= _LARGEST)):
        raise ValueError(f"zeta must be 0 or larger and at most {_LARGEST:g}.")
    try:
        a, z = np.broadcast_arrays(a, z)
    except ValueError:
        raise ValueError(f"zeta must be one number or one for each of alpha, not {z.shape} for {a.shape}.") from None
    check_noise(noise_variance)
    root = np.sqrt((z + (1 + np.sqrt(a)) ** 2) * (z + (1 - np.sqrt(a)) ** 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = 2 * a / (root * (root + z + 1 + a))
        excess = (noise_variance - z) * slope + _half_sum(1 - a - z, root, z)
        training = noise_variance * _half_sum(a - 1 - z, root, a * z) / a - (noise_variance - z) * z * slope / a
    at_peak = root == 0  # α = 1, ζ = 0: the noise is amplified without bound, and nothing is left to fit
    excess = np.where(at_peak, np.inf if noise_variance > 0 else 0.0, excess)
    return Generalization(a, excess, np.where(at_peak, 0.0, training), noise_variance)


def sgd_curve(alpha: ArrayLike, *, noise_variance: float = 0.25) -> Generalization:
    """Both errors of vanilla SGD, the pseudo-inverse solution (regularization paper, eq. 14, corrected).

    The excess risk is 1 − α + αδ²/(1−α) for α < 1 and δ²/(α−1) for α > 1; the paper prints 1 − α in the second. The
    training loss is 0 up to α = 1 and δ²(1 − 1/α) beyond.
    """
    return ridge_curve(alpha, 0.0, noise_variance=noise_variance)


def check_noise(noise_variance: float) -> None:
    """Refuse a noise variance that is negative or not finite."""
    if finite(noise_variance, "noise_variance") < 0:
        raise ValueError(f"noise_variance must be 0 or larger and finite, not {noise_variance}.")


def _numbers(values: ArrayLike, name: str) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number or an array of numbers, not {values!r}.") from None


def _half_sum(first: Any, root: Any, product: Any) -> Any:
    """(first + root)/2 where root² − first² = 4·product, without cancellation where first is negative."""
    return np.where(first < 0, 2 * product / (root - first), (first + root) / 2)
