"""Random choices that depend on nothing but the seed."""

import random
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# Around the sizes at which the kernels begin another loop: vectors of 8 and 16 numbers, two of them, runs of 64 rows.
_SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65]
_LARGE = [127, 130, 511, 513, 600]


class Draw:
    """Choices, and numbers for tensors."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def pick(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def size(self, *, large: float = 0.05) -> int:
        """A number of columns, outputs or rows; most of them are small, so that a case takes milliseconds."""
        if self.chance(large):
            return self.pick(_LARGE)
        return self.pick(_SIZES if self.chance(0.4) else _SIZES[:5])

    def normal(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Numbers whose mean is not zero."""
        if dtype.is_complex:
            return torch.randn(tuple(shape), generator=self.generator, dtype=dtype)
        return (0.5 + 2 * torch.randn(tuple(shape), generator=self.generator, dtype=torch.float64)).to(dtype)
