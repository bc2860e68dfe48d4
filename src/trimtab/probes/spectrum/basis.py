"""Orthonormal vectors, to project others on."""

import torch
from torch import Tensor

_ROWS = 4  # vectors to a block: memory is taken as it is needed, and products are still those of matrices
_COLUMNS = 1 << 17  # entries that are taken at a time


class Basis:
    """Orthonormal vectors of one length, stored as the rows of blocks.

    Args:
        like: A vector of their length, type and device.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like.new_empty(0)
        self._length = like.numel()
        self._count = 0
        self._blocks: list[Tensor] = []

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def append(self, vector: Tensor) -> Tensor:
        """Add a copy of a vector, and return that copy."""
        block, row = divmod(self._count, _ROWS)
        if block == len(self._blocks):
            self._blocks.append(self._like.new_empty(_ROWS, self._length))
        self._count += 1
        return self._blocks[block][row].copy_(vector)

    def orthogonalize(self, vector: Tensor) -> tuple[Tensor, float]:
        """Take the vector's components out of it, in place.

        It is done again as long as that shortens the vector: what is left of a small difference of large numbers is
        not orthogonal yet (Daniel, Gragg, Kaufman and Stewart, 1976).

        Returns:
            The components, and the length of what is left.
        """
        total = torch.zeros(self._count, dtype=torch.double)
        length = norm(vector)
        for _ in range(3):
            total += self._project(vector)
            before, length = length, norm(vector)
            if not length < 0.7 * before:  # so that it ends with numbers that are not finite, too
                break
        return total, length

    def rotate(self, weights: Tensor) -> None:
        """Replace the vectors by combinations of them.

        Args:
            weights: A column for each new vector, of which there may be fewer.
        """
        weights = weights.to(self._like.device, self._like.dtype)
        for begin in range(0, self._length, _COLUMNS):
            span = slice(begin, begin + _COLUMNS)
            new = weights.T @ torch.cat([rows[:, span] for rows in self._filled()])
            for row, values in enumerate(new):
                self._blocks[row // _ROWS][row % _ROWS, span] = values
        self._count = weights.shape[1]
        del self._blocks[-(-self._count // _ROWS) :]

    def combined(self, weights: Tensor) -> Tensor:
        """The sum of the vectors, each times its weight."""
        parts = weights.to(self._like.device, self._like.dtype).split(_ROWS)
        return sum((part @ rows for part, rows in zip(parts, self._filled(), strict=True)), self._like.new_zeros(()))

    def _filled(self) -> list[Tensor]:
        return [block[: self._count - _ROWS * number] for number, block in enumerate(self._blocks)]

    def _project(self, vector: Tensor) -> Tensor:
        filled = self._filled()
        if not filled:
            return torch.zeros(0, dtype=torch.double)
        found = torch.cat([products(rows, vector) for rows in filled])
        for rows, part in zip(filled, found.to(vector.dtype).split(_ROWS), strict=True):
            vector.addmv_(rows.T, part, alpha=-1)
        return found.cpu()


def products(rows: Tensor, vector: Tensor) -> Tensor:
    """The scalar products of each row with the vector, in float64.

    Partial sums are added up in float64: a float32 sum of the squares of 11 million numbers is 0.1 % too small, if the
    processor adds one after the other.
    """
    spans = [slice(begin, begin + _COLUMNS) for begin in range(0, vector.numel(), _COLUMNS)]
    return torch.stack([rows[:, span] @ vector[span] for span in spans]).double().sum(0)


def norm(vector: Tensor) -> float:
    """The Euclidean norm."""
    return float(products(vector.unsqueeze(0), vector).sqrt())
