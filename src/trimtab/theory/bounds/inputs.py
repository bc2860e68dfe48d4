"""The matrices that the bnp paper builds from a layer's inputs: Ĥ, U, D, P and Ĝ (eqs. 10, 12, 14)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from trimtab.theory.bounds.sides import Array, array


class Matrices(NamedTuple):
    """The matrices of the change of variables ŵ = U D z.

    Attributes:
        augmented: Ĥ = [e, H], one row per sample.
        centring: U = [[1, −μᵀ], [0, I]].
        scaling: The diagonal of D, (1, 1/σ).
        mean: μ, the mean of each feature over the batch.
        sigma: σ, the biased standard deviation of each feature.
    """

    augmented: Array
    centring: Array
    scaling: Array
    mean: Array
    sigma: Array

    @property
    def preconditioner(self) -> Array:
        """P = U D."""
        return self.centring * self.scaling

    @property
    def normalized(self) -> Array:
        """Ĝ = [e, (H − μ)/σ], which is Ĥ P."""
        return np.column_stack([self.augmented[:, 0], (self.augmented[:, 1:] - self.mean) / self.sigma])


def augment(inputs: ArrayLike) -> Array:
    """Ĥ = [e, H] for the inputs H of a batch, one row per sample."""
    rows = array(inputs, "inputs", 2)
    return np.column_stack([np.ones(len(rows)), rows])


def matrices(inputs: ArrayLike) -> Matrices:
    """Ĥ, U and D of a batch, with its own mean and biased variance (eqs. 12 and 13)."""
    augmented = augment(inputs)
    mean, sigma = augmented[:, 1:].mean(0), augmented[:, 1:].std(0)
    if not (sigma > 1e-12 * np.abs(augmented[:, 1:]).max(0)).all():
        raise ValueError("inputs has a feature that does not vary over the batch; leave it out.")
    centring = np.eye(len(mean) + 1)
    centring[0, 1:] = -mean
    return Matrices(augmented, centring, np.concatenate([[1.0], 1 / sigma]), mean, sigma)


def singular_values(matrix: Array) -> Array:
    """The nonzero singular values, largest first; rounding is taken for 0 as numpy's matrix_rank does."""
    values = np.linalg.svd(matrix, compute_uv=False)
    if not values[0] > 0:
        raise ValueError("The matrix is 0 and has no condition number.")
    return np.asarray(values[values > values[0] * max(matrix.shape) * np.finfo(np.float64).eps], dtype=np.float64)


def condition_number(matrix: ArrayLike) -> float:
    """κ, the largest over the smallest nonzero singular value (bnp paper, Sec. 1)."""
    values = singular_values(array(matrix, "matrix", 2))
    return float(values[0] / values[-1])


def rank_condition(matrix: Array) -> tuple[str, ...]:
    """The condition "full column rank", if the matrix violates it."""
    return () if len(singular_values(matrix)) == matrix.shape[1] else ("full column rank",)
