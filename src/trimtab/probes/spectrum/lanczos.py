"""Lanczos' method: the ends of the spectrum of a symmetric matrix that is known by its products with vectors."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.probes.result import CannotMeasure
from trimtab.probes.spectrum.basis import Basis, norm
from trimtab.renamed import renamed_arguments

Product = Callable[[Tensor], Tensor]
"""The product of the matrix with a vector, as a new vector."""


class Lanczos:
    """The matrix A restricted to a growing space: AQ = QT + w bᵀ, with orthonormal rows Qᵀ and w orthogonal to them.

    Each vector is orthogonalized against all before, so that no eigenvalue appears twice by rounding. T is
    tridiagonal until `shrink` (thick restart: Wu and Simon, 2000).

    Args:
        product: The product with A.
        start: Where to begin; it must not be zero.
        noise: Where to take new directions from when the space is exhausted; None: it ends there.

    Attributes:
        basis: Q.
        products: How many there were.
        exhausted: Whether the space cannot grow: then AQ = QT.
    """

    def __init__(self, product: Product, start: Tensor, *, noise: torch.Generator | None = None) -> None:
        length = norm(start)
        if not length > 0:
            raise ValueError("start must be a vector of finite length that is not zero.")
        self.basis = Basis(start)
        self.products = 0
        self.exhausted = False
        self._product = product
        self._noise = noise
        self._projected = torch.zeros(0, 0, dtype=torch.double)
        self._beside = torch.zeros(0, dtype=torch.double)
        self._next = start / length
        self._rounding = 10 * torch.finfo(start.dtype).eps

    def step(self) -> None:
        """Grow by one vector, by one product.

        Raises:
            CannotMeasure: If the product is not finite.
        """
        size = len(self.basis)
        vector = self._product(self.basis.append(self._next))
        self.products += 1
        components, length = self.basis.orthogonalize(vector)
        projected = torch.zeros(size + 1, size + 1, dtype=torch.double)
        projected[:size, :size] = self._projected
        projected[size, :size] = projected[:size, size] = self._beside
        projected[size, size] = components[size]
        if not bool(torch.isfinite(projected).all()):
            raise CannotMeasure("A product with the matrix has entries that are not finite.")
        self._projected = projected
        self._beside = torch.zeros(size + 1, dtype=torch.double)
        if length > self._rounding * float(projected.abs().max()):
            self._beside[size] = length
            self._next = vector.div_(length)
        else:
            self._start_again(vector)

    def ritz(self) -> tuple[Tensor, Tensor, Tensor]:
        """Values in ascending order, their residuals, and the vectors as columns, in terms of the basis.

        Within its residual ‖Ax − θx‖ of each value θ there is an eigenvalue of A.
        """
        values, vectors = torch.linalg.eigh(self._projected)
        return values, (self._beside @ vectors).abs(), vectors

    def shrink(self, keep: Tensor) -> None:
        """Keep some of the Ritz vectors only, by number."""
        values, _, vectors = self.ritz()
        self.basis.rotate(vectors[:, keep])
        self._projected = torch.diag(values[keep])
        self._beside = self._beside @ vectors[:, keep]

    def _start_again(self, like: Tensor) -> None:
        """All that A makes of the vectors is in their space: go on with anything outside."""
        if self._noise is not None and len(self.basis) < like.numel():
            for _ in range(5):
                vector = gaussian(like, self._noise)
                before = norm(vector)
                _, length = self.basis.orthogonalize(vector)
                if length > 1e-3 * before:  # else it is mostly rounding: draw another
                    self._next = vector.div_(length)
                    return
        self.exhausted = True


@dataclass(frozen=True, eq=False)
class Ritz:
    """The result of Lanczos' method.

    Attributes:
        values: All values of the last space, ascending; those at the ends are near eigenvalues.
        residuals: Within its residual of each value there is an eigenvalue.
        converged: Whether those asked for are within the tolerance.
        basis: The last space; the trace of the matrix in it is the sum of the values.
        products: How many there were.
        vectors: Of the values, as columns, in terms of the basis.
    """

    values: Tensor
    residuals: Tensor
    converged: bool
    basis: Basis
    products: int
    vectors: Tensor


def extremes(
    product: Product,
    start: Tensor,
    *,
    top: int = 1,
    bottom: int = 0,
    tolerance: float = 1e-2,
    max_products: int = 100,
    max_vectors: int = 32,
    min_products: int = 1,
    stop_when_stable: bool = False,
    noise: torch.Generator | None = None,
) -> Ritz:
    """The ends of the spectrum of a symmetric matrix.

    One start sees one eigenvector of each eigenvalue: an eigenvalue that is exactly repeated counts once. And it is
    possible, if not likely, that a value is within its residual of another eigenvalue than the outermost, of which the
    start had hardly anything.

    Args:
        product: The product with the matrix.
        start: A vector that is not orthogonal to the eigenvectors looked for.
        top: How many of the largest have to converge.
        bottom: How many of the lowest have to.
        tolerance: They have when their residuals are below this share of them (or are rounding).
        max_products: It ends after so many products at the latest.
        max_vectors: Of the basis; when it is full, only its best part is retained.
        min_products: It does not end before, unless it is exact.
        stop_when_stable: Whether they also count as converged when their last product moved them by less than the
            tolerance and their errors, estimated by squared residuals over the gaps to the values beside them
            (Temple, 1928; Kato, 1949; right unless another eigenvalue hides in a gap), are ten times smaller than that.
        noise: See `Lanczos`.

    Raises:
        CannotMeasure: If a product is not finite.
    """
    lanczos = Lanczos(product, start, noise=noise)
    size = start.numel()
    top, bottom = min(top, size), min(bottom, size)
    rounding = 10 * torch.finfo(start.dtype).eps
    before = torch.zeros(0, dtype=torch.double)
    while True:
        lanczos.step()
        values, residuals, vectors = lanczos.ritz()
        converged = lanczos.exhausted or len(values) == size
        if not converged and lanczos.products >= min_products and len(values) >= max(top, bottom):
            enough = tolerance * values.abs() + rounding * values.abs().max()
            good = residuals <= enough
            if stop_when_stable:
                good |= _stable(values, residuals, before, top, enough)
            converged = bool(good[len(values) - top :].all() and good[:bottom].all())
        if converged or lanczos.products >= max_products:
            return Ritz(values, residuals, converged, lanczos.basis, lanczos.products, vectors)
        before = values
        if len(values) >= max_vectors:
            lanczos.shrink(_best(max_vectors, top, bottom))


def _stable(values: Tensor, residuals: Tensor, before: Tensor, top: int, enough: Tensor) -> Tensor:
    """Which values hardly moved, and are hardly off if there is no eigenvalue in the gaps beside them."""
    low = len(values) - top
    if len(before) < max(low, top):
        return torch.zeros_like(values, dtype=torch.bool)
    moved = (values - torch.cat([before[:low], before[len(before) - top :]])).abs()  # counted from either end
    gaps = (values.unsqueeze(1) - values).abs() - residuals
    gaps.fill_diagonal_(float("inf"))
    gap = gaps.min(1).values
    return (moved <= enough) & (gap > 0) & (residuals.square() <= 0.1 * enough * gap)


@renamed_arguments(most="max_products")
def lanczos_max(product: Product, start: Tensor, *, tolerance: float = 1e-4, max_products: int = 200) -> float:
    """The largest eigenvalue of a symmetric matrix that is known by its products, by Lanczos' method.

    Args:
        product: The product of the matrix with a vector.
        start: A vector that is not orthogonal to the eigenvector.
        tolerance: It ends when the residual, which bounds the distance to an eigenvalue, is below this share of it.
        max_products: It ends after so many products at the latest.
    """
    ritz = extremes(product, start, tolerance=tolerance, max_products=max_products, max_vectors=max_products)
    return float(ritz.values[-1])


def gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent standard normal numbers, the same on all devices."""
    return torch.randn(like.numel(), generator=generator, dtype=like.dtype).to(like.device)


def signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent signs, +1 or −1, the same on all devices."""
    coins = torch.randint(2, (like.numel(),), generator=generator, dtype=torch.int8)
    return coins.to(like.device, like.dtype).mul_(2).sub_(1)


def _best(size: int, top: int, bottom: int) -> Tensor:
    """Which Ritz vectors to keep: those asked for and some beside them, since these converge the faster for it."""
    spare = (size - top - bottom) // 3
    low = min(max(bottom, 1) + (spare if bottom else 0), size - 1)
    high = min(top + spare, size - 1 - low)
    return torch.cat([torch.arange(low), torch.arange(size - high, size)])
