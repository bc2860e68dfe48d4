"""Products with the Hessian, the Gauss–Newton matrix and the Fisher matrix of an isolated model.

All products use the graph of one forward and one gradient, which is in memory as long as these objects are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab import _torch
from trimtab.probes.spectrum.basis import norm
from trimtab.probes.spectrum.lanczos import gaussian
from trimtab.probes.spectrum.second_derivatives import check_differentiable_twice, check_finite
from trimtab.probes.surface import differentiate

Leaves = dict[str, Tensor]


class Curvature(ABC):
    """A symmetric matrix with a row for each entry of some parameters.

    Vectors are flat: the parameters' entries one after the other, in float32 at least.

    Args:
        leaves: The parameters.

    Attributes:
        size: Rows of the matrix.
        products: How many products were computed, without those with diagonal blocks.
        rank: The largest rank that it can have, as far as is known.
        eps: The precision of its entries.
    """

    def __init__(self, leaves: Leaves) -> None:
        self.leaves = leaves
        tensors = list(leaves.values())
        self._sizes = [t.numel() for t in tensors]
        self.size = sum(self._sizes)
        self.products = 0
        self.eps = max(torch.finfo(t.dtype).eps for t in tensors)
        kind = torch.float32
        for tensor in tensors:
            kind = torch.promote_types(kind, tensor.dtype)
        self._like = torch.empty(0, dtype=kind, device=tensors[0].device)

    @property
    def rank(self) -> int:
        """All rows."""
        return self.size

    def times(self, vector: Tensor) -> Tensor:
        """The product with a vector."""
        self.products += 1
        parts = vector.split(self._sizes)
        leaves = self.leaves.values()
        return self.flat(self._times([p.view_as(t).to(t) for p, t in zip(parts, leaves, strict=True)]))

    def flat(self, tensors: Iterable[Tensor]) -> Tensor:
        """One tensor for each parameter as one vector."""
        return torch.cat([t.detach().flatten().to(self._like) for t in tensors])

    def start(self, noise: torch.Generator) -> Tensor:
        """Where to begin Lanczos' method: half the gradient, which lies largely where the matrix is large, half noise.

        (Gur-Ari, Roberts and Dyer, 2018, on the gradient.)
        """
        gradient = self.flat(self._gradient(noise))
        vector = gaussian(gradient, noise)
        length = norm(gradient)
        if length > 0:
            vector.add_(gradient, alpha=norm(vector) / length)
        return vector

    def dense(self) -> Tensor:
        """The matrix itself, by as many products as it has rows."""
        rows = [self.times(row) for row in torch.eye(self.size, dtype=self._like.dtype, device=self._like.device)]
        matrix = torch.stack(rows).double().cpu()
        return (matrix + matrix.T) / 2

    def eigenvalues(self) -> Tensor:
        """All of them, ascending, by as many products as the matrix has rows."""
        values: Tensor = torch.linalg.eigvalsh(self.dense())
        return values

    @abstractmethod
    def block(self, names: Iterable[str]) -> "Curvature":
        """The diagonal block of some of the parameters."""

    @abstractmethod
    def _times(self, vector: list[Tensor]) -> list[Tensor]:
        """The product, one tensor for each parameter."""

    @abstractmethod
    def _gradient(self, noise: torch.Generator) -> list[Tensor]:
        """A vector that is likely to be large where the matrix is."""


class Hessian(Curvature):
    """The second derivative of a loss, by the derivative of its gradient.

    Args:
        loss: As a function in torch's graph.
        leaves: The parameters.
        gradient: Of the loss, in torch's graph; None: it is computed.

    Raises:
        CannotMeasure: If loss or gradient are not finite.
    """

    def __init__(self, loss: Tensor, leaves: Leaves, gradient: Leaves | None = None) -> None:
        super().__init__(leaves)
        self._loss = loss
        if gradient is None:
            check_finite(loss, "The loss is not finite.")
            gradient = differentiate(loss, leaves, create_graph=True)
            check_finite(
                torch.stack([g.detach().double().norm() for g in gradient.values()]), "The gradient is not finite."
            )
            check_differentiable_twice(gradient.values())
        self._slope = gradient

    def block(self, names: Iterable[str]) -> "Hessian":
        """The diagonal block of some of the parameters, from the same graph."""
        names = list(names)
        return Hessian(self._loss, _subset(self.leaves, names), _subset(self._slope, names))

    def _times(self, vector: list[Tensor]) -> list[Tensor]:
        return _weighted_gradient(self._slope.values(), self.leaves.values(), vector)

    def _gradient(self, noise: torch.Generator) -> list[Tensor]:
        return list(self._slope.values())


class GaussNewton(Curvature):
    """JᵀSJ, with J the derivative of a network's outputs and S a symmetric matrix over them.

    Args:
        outputs: Of the network, in torch's graph.
        leaves: The parameters.
        inner: The product with S.
        pulled: For blocks.

    Raises:
        CannotMeasure: If an output is not finite.
    """

    def __init__(
        self,
        outputs: Tensor,
        leaves: Leaves,
        inner: Callable[[Tensor], Tensor],
        pulled: tuple[Tensor, Leaves] | None = None,
    ) -> None:
        super().__init__(leaves)
        self._outputs = outputs
        self._inner = inner
        if pulled is None:
            check_finite(outputs, "The outputs are not finite.")
            # Jᵀu is linear in u, so that its derivative with respect to u is the product with J.
            u = torch.zeros_like(outputs, requires_grad=True)
            back = _torch.gradients([outputs], list(leaves.values()), [u], create_graph=True)
            check_differentiable_twice(back)
            pulled = u, dict(zip(leaves, back, strict=True))
        self._u, self._pulled = pulled

    @property
    def rank(self) -> int:
        """At most the number of outputs."""
        return min(self.size, self._outputs.numel())

    def block(self, names: Iterable[str]) -> "GaussNewton":
        """The diagonal block of some of the parameters, from the same graph."""
        names = list(names)
        return GaussNewton(
            self._outputs, _subset(self.leaves, names), self._inner, (self._u, _subset(self._pulled, names))
        )

    def eigenvalues(self) -> Tensor:
        """All of them, ascending, by one product for each output (or parameter, if these are fewer).

        Those that are not zero are those of K^½ S K^½, K = JJᵀ.
        """
        count = self._outputs.numel()
        if count >= self.size:
            return super().eigenvalues()
        self.products += count
        units = torch.eye(count, dtype=self._outputs.dtype, device=self._outputs.device)
        rows = [self._vjp(unit.view_as(self._outputs)) for unit in units]
        gram = torch.stack([self.times_jacobian(row).flatten() for row in rows]).double().cpu()
        outer = torch.stack([self._inner(unit.view_as(self._outputs)).flatten() for unit in units]).double().cpu()
        values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
        root = vectors * values.clamp(min=0).sqrt()
        some = torch.linalg.eigvalsh(root.T @ (outer + outer.T) @ root / 2)
        return torch.cat([some, some.new_zeros(self.size - count)]).sort().values

    def _times(self, vector: list[Tensor]) -> list[Tensor]:
        return self._vjp(self._inner(self.times_jacobian(vector)))

    def times_jacobian(self, vector: Sequence[Tensor]) -> Tensor:
        """Jv, of one tensor for each parameter."""
        (result,) = _weighted_gradient(self._pulled.values(), [self._u], vector)
        return result

    def _vjp(self, u: Tensor) -> list[Tensor]:
        return _weighted_gradient([self._outputs], self.leaves.values(), [u])

    def _gradient(self, noise: torch.Generator) -> list[Tensor]:
        # Near the vector of all ones, in which mean field finds the largest eigenvalue of ½‖f − y‖².
        some = gaussian(self._outputs, noise).view_as(self._outputs)
        return self._vjp(self._inner(1 + 0.3 * some))


def criterion_hessian(
    outputs: Tensor, criterion: Callable[[Tensor, Any], Tensor], batch: Any
) -> Callable[[Tensor], Tensor]:
    """The product with the Hessian of a criterion with respect to the outputs.

    Raises:
        TypeError: If the criterion does not return one number.
        CannotMeasure: If that is not finite.
    """
    place = outputs.detach().requires_grad_()
    loss = criterion(place, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise TypeError("criterion must return a tensor of one number.")
    check_finite(loss, "The loss is not finite.")
    slope = differentiate(loss.reshape(()), {"": place}, create_graph=True)[""]
    return lambda h: _weighted_gradient([slope], [place], [h])[0]


def categorical_hessian(outputs: Tensor) -> Callable[[Tensor], Tensor]:
    """The product with (diag(p) − ppᵀ)/m, p the softmax over the last dimension, m the number of distributions."""
    p = outputs.detach().softmax(-1)
    count = p[..., 0].numel()
    return lambda h: p * (h - (p * h).sum(-1, keepdim=True)) / count


def gaussian_hessian(outputs: Tensor) -> Callable[[Tensor], Tensor]:
    """The product with I/m, m the number of samples: the first dimension."""
    count = len(outputs)
    return lambda h: h / count


def _weighted_gradient(tensors: Iterable[Tensor], inputs: Iterable[Tensor], weights: Iterable[Tensor]) -> list[Tensor]:
    """The derivative of the weighted sum of some tensors, of which some may be constant; the graph stays."""
    used = [(t, w) for t, w in zip(tensors, weights, strict=True) if t.requires_grad]
    inputs = list(inputs)
    if not used:
        return [torch.zeros_like(t) for t in inputs]
    return _torch.gradients([t for t, _ in used], inputs, [w for _, w in used], retain_graph=True)


def _subset(tensors: Mapping[str, Tensor], names: list[str]) -> Leaves:
    return {name: tensors[name] for name in names}
