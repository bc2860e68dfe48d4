"""The best scaling of many columns: κ(AD) over diagonal D, by descent instead of the simplex search of `bounds`."""

import numpy as np

from trimtab.theory.bounds.sides import Array

SHARPNESS = (4.0, 16.0, 64.0)
"""p of the smooth stand-in for κ, one after the other; it is κ for p to infinity."""
STEPS = 20
"""Of the descent, for each p."""
DEPENDENT = 1e-10
"""Columns of norm 1 whose squared distance from the span of the others is less are taken to depend on them."""
LARGE = 1000
"""Columns beyond which eigenvalues near both ends are computed, and not all."""
ENDS = 24


def conditioning(gram: Array, scaling: Array) -> float:
    """κ(AD) from the Gram matrix AᵀA, of full rank."""
    scaled = gram * scaling * scaling[:, None]
    values = np.linalg.eigvalsh(scaled)
    return float(np.sqrt(values[-1] / values[0]))


def independent(gram: Array) -> Array:
    """The numbers of columns that do not depend on the others: A without the rest has full rank."""
    from scipy.linalg.lapack import dpstrf

    normal = 1 / np.sqrt(np.diag(gram))
    _, pivots, rank, _ = dpstrf(gram * normal * normal[:, None], tol=DEPENDENT)
    return np.sort(pivots[:rank] - 1)


def best_conditioning(gram: Array) -> float:
    """The smallest κ(AD) that a descent finds from columns of norm 1, or from above where it is no better.

    Args:
        gram: AᵀA, of full rank.
    """
    from scipy.optimize import minimize

    normal = 1 / np.sqrt(np.diag(gram))
    matrix = gram * normal * normal[:, None]
    inverse = np.asarray(np.linalg.inv(matrix), dtype=np.float64) if len(gram) > LARGE else None
    found = [np.inf]

    def smooth(logs: Array, sharpness: float) -> tuple[float, Array]:
        high, low = _ends(matrix, inverse, np.exp(logs - logs.mean()))
        found[0] = min(found[0], float(np.sqrt(high[0].max() / low[0].min())))
        value, slope = 0.0, np.zeros(len(logs))
        for (values, vectors), sign in ((high, 1.0), (low, -1.0)):
            powers = sign * sharpness * np.log(values)
            shares = np.exp(powers - powers.max())
            value += (powers.max() + np.log(shares.sum())) / (2 * sharpness)
            slope += sign * (vectors**2 @ (shares / shares.sum()))
        return float(value), slope

    logs = np.zeros(len(gram))
    for sharpness in SHARPNESS if inverse is None else SHARPNESS[1:]:  # a blunt one would need the whole spectrum
        options = {"maxiter": STEPS, "maxfun": 2 * STEPS}
        logs = minimize(smooth, logs, args=(sharpness,), jac=True, method="L-BFGS-B", options=options).x
    return found[0]


_Ends = tuple[Array, Array]


def _ends(matrix: Array, inverse: Array | None, scaling: Array) -> tuple[_Ends, _Ends]:
    """Eigenvalues and eigenvectors near both ends of the spectrum of DMD; all of them if it is small."""
    if inverse is None:
        values, vectors = np.linalg.eigh(matrix * scaling * scaling[:, None])
        return (values, vectors), (values, vectors)
    high = _largest(matrix, scaling)
    low = _largest(inverse, 1 / scaling)
    return high, (1 / low[0], low[1])


def _largest(matrix: Array, scaling: Array) -> _Ends:
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator(matrix.shape, matvec=lambda v: scaling * (matrix @ (scaling * v.ravel())), dtype=float)
    start = np.random.default_rng(0).normal(size=len(matrix))
    values, vectors = eigsh(operator, k=ENDS, ncv=3 * ENDS, v0=start, tol=1e-5)
    return values, vectors
