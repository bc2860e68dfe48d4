"""How fast gradient descent converges where the Hessian is singular along scalings: bnp Theorem 1 and eq. 6."""

import numpy as np
from numpy.typing import ArrayLike

from trimtab.theory.bounds.sides import Array, Sides, array, positive, shaped, symmetric


def scaling_null_space(hessian: ArrayLike, tangents: ArrayLike) -> Sides:
    """∇²L(θ*) D_tθ*(t) = 0: along the scalings that leave a network as it is, its Hessian is flat (bnp Theorem 1).

    Condition: θ* is a minimizer (or any point of gradient 0), and all of θ*(t) have the same loss. Elsewhere the
    gradient does not vanish along the manifold and the Hessian need not.

    Args:
        hessian: ∇²L at θ*.
        tangents: D_tθ*(t), one column per scaling.
    """
    matrix = symmetric(hessian, "hessian")
    columns = array(tangents, "tangents", 2)
    product = matrix @ shaped(columns, "tangents", (len(matrix), columns.shape[1]))
    scale = float(np.linalg.norm(matrix, 2) * np.linalg.norm(columns, 2))
    return Sides(product, np.zeros_like(product), "==", scale)


def contraction(distances: ArrayLike, hessian: ArrayLike, learning_rate: float) -> Sides:
    """‖θ_{k+1} − θ*_{k+1}‖/‖θ_k − θ*_k‖ ≤ r + ε, r = max |1 − αλ| over the nonzero λ (bnp Theorem 1).

    θ*_k is the minimizer nearest to θ_k: it moves along the scale-invariant manifold. ε is the tolerance to give to
    `holds`: the statement is for starts near enough to the manifold. Conditions: the null space of the Hessian is that
    of the scalings alone; L has continuous third derivatives; and 0 < α < 2/λ_max, which the paper does not state but
    its proof takes for granted ("clearly, r < 1"). Without that the iterates leave the neighbourhood in which the
    Taylor remainder is small, and the ratio may become anything.

    Args:
        distances: ‖θ_k − θ*_k‖ for k = 0, 1, …
        hessian: ∇²L at the minimizer.
        learning_rate: α.
    """
    steps = array(distances, "distances", 1)
    if len(steps) < 2 or not (steps > 0).all():
        raise ValueError("distances must be two or more numbers above 0.")
    spectrum, broken = _nonzero(hessian)
    positive(learning_rate, "learning_rate")
    if learning_rate >= 2 / spectrum[-1]:
        broken += ("a learning rate below 2/λ_max",)
    rate = float(np.abs(1 - learning_rate * spectrum).max())
    ratios = steps[1:] / steps[:-1]
    return Sides(ratios, np.full_like(ratios, rate), broken=broken, scale=1.0)


def optimal_contraction(hessian: ArrayLike) -> Sides:
    """The rate r = (κ* − 1)/(κ* + 1) of the best learning rate, κ* without the eigenvalues 0 (bnp eq. 6 and Sec. 3.2).

    The left side is the max |1 − αλ| at `optimal_learning_rate`; it is 1 at a saddle, where no α makes it less.

    Args:
        hessian: ∇²L at the minimizer, positive semi-definite.
    """
    spectrum, broken = _nonzero(hessian)
    sizes = np.abs(spectrum)
    kappa = float(sizes.max() / sizes.min())
    left = 1.0 if broken else float(np.abs(1 - optimal_learning_rate(hessian) * spectrum).max())
    return Sides(left, (kappa - 1) / (kappa + 1), "==", 1.0, broken)


def optimal_learning_rate(hessian: ArrayLike) -> float:
    """α = 2/(λ*_min + λ_max), of the nonzero eigenvalues (bnp, before eq. 6).

    Raises:
        ValueError: If an eigenvalue is below 0: no step size is the best then.
    """
    spectrum, broken = _nonzero(hessian)
    if broken:
        raise ValueError("hessian has an eigenvalue below 0, so that no learning rate is the best.")
    return float(2 / (spectrum[0] + spectrum[-1]))


def _nonzero(hessian: ArrayLike) -> tuple[Array, tuple[str, ...]]:
    """The nonzero eigenvalues in ascending order, and the condition that none of them is negative."""
    spectrum = np.linalg.eigvalsh(symmetric(hessian, "hessian"))
    # Hessians come from autograd or from differences: what is this small beside λ_max is taken for 0.
    kept = spectrum[np.abs(spectrum) > 1e-9 * np.abs(spectrum).max()]
    if not len(kept) or kept[-1] <= 0:
        raise ValueError("hessian has no eigenvalue above 0.")
    return kept, () if kept[0] > 0 else ("a positive semi-definite Hessian",)
