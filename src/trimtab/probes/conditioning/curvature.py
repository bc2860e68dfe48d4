"""The second derivative of a loss by what one output unit of a layer computes: S of the bnp paper's Props. 2 and 9."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trimtab import _torch
from trimtab.probes.conditioning.patches import unit_of

_CANNOT = ("not implemented", "double backward")  # in what torch says then


class CannotDifferentiate(Exception):  # noqa: N818
    """Something after the layer has no second derivative; the sentence says what torch says."""


def differentiable_attention() -> AbstractContextManager[None]:
    """Compute attention by operations that can be differentiated twice, which torch's fast kernels cannot."""
    return sdpa_kernel(SDPBackend.MATH)


class Curvature:
    """S of a layer's units, known by its products.

    Args:
        layer: The layer.
        loss: The loss, in torch's graph.
        shifts: Tensors of zeros that were added to the layer's outputs, one for each call of it.

    Attributes:
        eps: The precision in which it is known.

    Raises:
        CannotDifferentiate: If torch has no second derivative of something.
    """

    def __init__(self, layer: nn.Module, loss: Tensor, shifts: list[Tensor]) -> None:
        self._layer = layer
        self._shifts = shifts
        self.eps = max(float(torch.finfo(shift.dtype).eps) for shift in shifts)
        if loss.requires_grad:
            self._gradients = self._grad([loss], None, create_graph=True)
        else:
            self._gradients = [torch.zeros_like(shift) for shift in shifts]

    def within(self, unit: int, basis: Tensor) -> Tensor:
        """BᵀSB for a unit and an orthonormal basis B, with a row for each row of H; one product for each column."""
        return basis.T @ self._times(unit, basis)

    def _times(self, unit: int, vectors: Tensor) -> Tensor:
        """S times each column."""
        gradients = [unit_of(self._layer, gradient, unit) for gradient in self._gradients]
        sizes = [gradient.numel() for gradient in gradients]
        columns = []
        for vector in vectors.T:
            parts = zip(gradients, vector.split(sizes), strict=True)
            used = [(g, part.reshape(g.shape).to(g.dtype)) for g, part in parts if g.requires_grad]
            if not used:  # nothing is curved
                return torch.zeros_like(vectors)
            products = self._grad([g for g, _ in used], [part for _, part in used])
            columns.append(torch.cat([unit_of(self._layer, each, unit).reshape(-1) for each in products]))
        return torch.stack(columns, 1).to(vectors.dtype)

    def _grad(self, outputs: list[Tensor], along: list[Tensor] | None, create_graph: bool = False) -> list[Tensor]:
        try:
            return _torch.gradients(outputs, self._shifts, along, retain_graph=True, create_graph=create_graph)
        except RuntimeError as error:
            if any(words in str(error).lower() for words in _CANNOT):
                raise CannotDifferentiate(str(error).splitlines()[0]) from None
            raise
