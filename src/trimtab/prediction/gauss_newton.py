"""The Gauss–Newton matrix JᵀHJ of a loss, and its largest eigenvalue, without ever forming it.

J is the derivative of the outputs with respect to the parameters, H that of the loss, twice, with respect to the
outputs. Lanczos' method needs products with the matrix only.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trimtab.prediction.losses import Loss, Outputs, Product, hessian_product, hessian_root
from trimtab.prediction.products import Batch, OutputDerivative
from trimtab.probes.isolation import IsolatedModel, Point
from trimtab.probes.spectrum.basis import norm, products
from trimtab.probes.spectrum.lanczos import Ritz, extremes, gaussian

TOLERANCE, FINE_TOLERANCE = 0.02, 0.001
MIN_PRODUCTS, FINE_MIN_PRODUCTS, MAX_PRODUCTS = 5, 12, 40
"""Of random starts, one in a hundred had so little of the largest eigenvector that after 3 or 4 products the second
eigenvalue was taken for it (0.76 of the largest, all others below 0.3); after 5, one in six hundred."""

Projection = Callable[[Sequence[Tensor]], Tensor]
Parts = Callable[[Tensor], Sequence[Tensor]]


class BatchedGaussNewton:
    """The mean of the Gauss–Newton matrices JᵀHJ of several batches, each by its share of the samples.

    If H = RRᵀ, its eigenvalues are those of RᵀJJᵀR, which has a row for each output. That matrix is taken where it is
    the smaller one: Lanczos' vectors cost nothing then, and have no part that J cannot see.

    To be used within a run of the isolated model.

    Args:
        isolated: The model.
        batches: Inputs and targets.
        loss: The loss.
        outputs: Of all outputs or of the first one.
        point: Values for the parameters; None: their own.

    Attributes:
        isolated: The model.
        derivative: J.
    """

    def __init__(
        self,
        isolated: IsolatedModel,
        batches: Sequence[Batch],
        loss: Loss,
        outputs: Outputs,
        point: Point | None = None,
    ) -> None:
        self.isolated = isolated
        self.derivative = OutputDerivative(isolated, batches, lambda values: _selected(values, loss, outputs), point)
        self._loss = loss
        samples = sum(len(x) for x, _ in batches)
        self._shares = [len(x) / samples for x, _ in batches]

    def largest(self, max_products: int = MAX_PRODUCTS, fine: bool = False) -> Ritz:
        """The largest eigenvalue as the last of the values, within 2 %, or, with more products, within 0.1 %."""
        return self.isolated.run(lambda: self._largest(max_products, fine)[0], self.derivative.leaves)

    def largest_by_sample(self, fine: bool = False) -> tuple[Ritz, list[float]]:
        """The same, and what each sample adds to the largest eigenvalue."""

        def work() -> tuple[Ritz, list[float]]:
            ritz, parts = self._largest(MAX_PRODUCTS, fine)
            added = parts(ritz.basis.combined(ritz.vectors[:, -1]))
            return ritz, torch.cat([each.double().reshape(len(each), -1).sum(1) for each in added]).tolist()

        return self.isolated.run(work, self.derivative.leaves)

    def _largest(self, max_products: int, fine: bool) -> tuple[Ritz, Parts]:
        noise = torch.Generator().manual_seed(0)
        values, leaves = self.derivative.outputs(), list(self.derivative.leaves.values())
        rows, columns = (sum(t.numel() for t in tensors) for tensors in (values, leaves))
        roots = [root for each in values if (root := hessian_root(self._loss, each)) is not None]
        by_outputs = rows <= columns and len(roots) == len(values)
        product, project, parts = self._of_outputs(roots, values) if by_outputs else self._of_parameters(values)
        # Noise that went through the matrix once, or halfway: most of it lies where eigenvalues are large.
        start = project([gaussian(leaf, noise).view_as(leaf) for leaf in leaves])
        if not norm(start) > 0:
            start = gaussian(start, noise)
        ritz = extremes(
            product,
            start,
            tolerance=FINE_TOLERANCE if fine else TOLERANCE,
            max_products=max_products,
            max_vectors=16,
            min_products=FINE_MIN_PRODUCTS if fine else MIN_PRODUCTS,
            stop_when_stable=True,
            noise=noise,
        )
        return ritz, parts

    def _of_outputs(
        self, roots: Sequence[tuple[Product, Product]], values: Sequence[Tensor]
    ) -> tuple[Product, Projection, Parts]:
        """The product with RᵀJJᵀR, that with RᵀJ, and what each output adds to the eigenvalue of a vector."""
        scales = [share**0.5 for share in self._shares]
        like = [each.to(torch.promote_types(each.dtype, torch.float32)) for each in values]

        def product(vector: Tensor) -> Tensor:
            parts = zip(roots, scales, _split(vector, like), strict=True)
            u = [root(part) * scale for (root, _), scale, part in parts]
            gradient = self.derivative.transposed(u)
            moved = self.derivative.times(gradient)
            square = _dot(gradient, gradient)
            if not self.derivative.agrees(_dot(u, moved), square, square):
                moved = self.derivative.times(gradient)
            return transposed(moved)

        def transposed(tensors: Sequence[Tensor]) -> Tensor:
            parts = zip(roots, scales, tensors, like, strict=True)
            return _flat([root(one.to(each)) * scale for (_, root), scale, one, each in parts])

        def parts(vector: Tensor) -> list[Tensor]:
            # The eigenvector of JᵀHJ is v = JᵀRq/√λ, so that RᵀJv = √λ q.
            return [part.square() for part in _split(vector, like)]

        return product, lambda along: transposed(self.derivative.times(along)), parts

    def _of_parameters(self, values: Sequence[Tensor]) -> tuple[Product, Projection, Parts]:
        """The product with JᵀHJ, of a vector and of one tensor for each parameter, and what each output adds."""
        targets = [y for _, y in self.derivative.batches]
        hessians = [hessian_product(self._loss, each, y) for each, y in zip(values, targets, strict=True)]
        leaves = list(self.derivative.leaves.values())

        def split(vector: Tensor) -> list[Tensor]:
            return [part.to(leaf) for part, leaf in zip(_split(vector, leaves), leaves, strict=True)]

        def parts(vector: Tensor) -> list[Tensor]:
            moved = self.derivative.times(split(vector))
            return [a * b for a, b in zip(curved(moved), moved, strict=True)]

        def project(along: Sequence[Tensor]) -> Tensor:
            moved = self.derivative.times(along)
            u = curved(moved)
            gradient = self.derivative.transposed(u)
            scale = (_dot(u, u) * _dot(moved, moved)) ** 0.5
            if not self.derivative.agrees(_dot(u, moved), _dot(gradient, along), scale):
                gradient = self.derivative.transposed(curved(self.derivative.times(along)))
            return _flat(gradient)

        def curved(tensors: Sequence[Tensor]) -> list[Tensor]:
            parts = zip(hessians, self._shares, tensors, values, strict=True)
            return [hessian(one.to(like)) * share for hessian, share, one, like in parts]

        return (lambda vector: project(split(vector))), project, parts


def _selected(values: Tensor, loss: Loss, outputs: Outputs) -> Tensor:
    """The outputs that count.

    Raises:
        ValueError: If the loss says nothing about so few.
    """
    if callable(loss):  # which takes them as they are
        return values
    values = values.unsqueeze(1) if values.ndim == 1 else values
    if loss == "cross_entropy" and values.shape[1] < 2:
        raise ValueError("loss='cross_entropy' is constant for a model with one output; give a loss of your own.")
    return values.flatten(1)[:, :1] if outputs == "one" else values


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All entries as one vector, in float32 at least."""
    kind = torch.float32
    for tensor in tensors:
        kind = torch.promote_types(kind, tensor.dtype)
    return torch.cat([tensor.flatten().to(kind) for tensor in tensors])


def _split(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `_flat`, but for the type of the entries."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def _dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """The scalar product."""
    pairs = zip(first, second, strict=True)
    return math.fsum(float(products(a.reshape(1, -1).float(), b.flatten().float())) for a, b in pairs)
