"""Condition numbers of matrices whose entries were rounded: ranks first, then what is not zero."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDINGS = 8
"""So many roundings may have gone into a number that is taken for 0."""

_EPS = torch.finfo(torch.float64).eps


class Factors(NamedTuple):
    """A matrix of known rank r as basis · core.

    Attributes:
        basis: Orthonormal columns, (rows, r).
        core: (r, columns), of rank r.
    """

    basis: Tensor
    core: Tensor


def factors(matrix: Tensor, eps: float) -> Factors:
    """A matrix by its rank.

    The rank is that of the matrix with its columns scaled to norm 1, since entries are rounded in proportion to
    themselves: a column that is small is not noise. Of the scaled matrix those singular values count that are above
    8ε(1 + √(n/m)), for m rows and n columns (independent roundings of relative size ε/2 give 0.3ε(1 + √(n/m))), and
    above max(m, n) · 2⁻⁵² of the largest, which is double precision's own rounding and numpy's rule.

    Args:
        matrix: In double precision.
        eps: ε, the precision in which its entries were computed.
    """
    rows, columns = matrix.shape
    norms = torch.linalg.vector_norm(matrix, dim=0)
    unit = torch.where(norms > 0, norms, 1)
    left, values, right = _svd(matrix / unit)
    noise = ROUNDINGS * eps * (1 + math.sqrt(columns / rows))
    rank = int((values > torch.clamp(values[0] * max(rows, columns) * _EPS, min=noise)).sum())
    return Factors(left[:, :rank], values[:rank, None] * right[:rank] * unit)


def condition(core: Tensor) -> float:
    """κ, the largest over the smallest singular value, of a matrix with independent rows; NaN if it has none.

    Values below double precision's rounding are left out, so that it is never above 2⁵²/max(rows, columns).
    """
    if not core.numel():
        return math.nan
    return _ratio(torch.linalg.svdvals(torch.linalg.qr(core.T, mode="r").R), max(core.shape))[0]


def hessian_condition(curvature: Tensor, core: Tensor, eps: float) -> tuple[float, int]:
    """κ and rank of Aᵀ M A for a symmetric M and an A with independent rows, by the eigenvalues that are not 0.

    Those eigenvalues of M that are above 8ε of the largest, in absolute value, span what counts of M; the product has
    as many that are not 0. So M's noise is separated from zero before A, which may be badly conditioned, stretches it.

    Args:
        curvature: M, (r, r).
        core: A, (r, columns).
        eps: ε, the precision in which M was computed.

    Returns:
        NaN and 0 if M is 0.
    """
    values, vectors = torch.linalg.eigh((curvature + curvature.T) / 2)
    sizes = values.abs()
    if not sizes.numel() or not bool(sizes.max() > 0):
        return math.nan, 0
    nonzero = sizes > max(ROUNDINGS * eps, len(sizes) * _EPS) * sizes.max()
    stretched = vectors[:, nonzero].T @ core
    lower = torch.linalg.qr(stretched.T, mode="r").R.T  # stretched = lower · (orthonormal rows)
    return _ratio(torch.linalg.eigvalsh(lower.T @ (values[nonzero, None] * lower)).abs(), max(lower.shape))


def hessian_norm(curvature: Tensor, core: Tensor) -> float:
    """‖Aᵀ M A‖, the largest eigenvalue in absolute value, for a symmetric M and an A with independent rows."""
    lower = torch.linalg.qr(core.T, mode="r").R.T
    return float(torch.linalg.eigvalsh(lower.T @ ((curvature + curvature.T) / 2) @ lower).abs().max())


def _svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The thin singular value decomposition, by that of a square matrix: several times faster if it is far from one."""
    if matrix.shape[0] < matrix.shape[1]:
        left, values, right = _svd(matrix.T)
        return right.T, values, left.T
    basis, small = torch.linalg.qr(matrix)
    left, values, right = torch.linalg.svd(small)
    return basis @ left, values, right


def _ratio(sizes: Tensor, length: int) -> tuple[float, int]:
    """The largest over the smallest that is above rounding, and how many are."""
    above = sizes[sizes > sizes.max() * length * _EPS]
    return (float(above.max() / above.min()), len(above)) if len(above) else (math.nan, 0)
