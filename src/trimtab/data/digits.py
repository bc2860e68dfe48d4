"""The embedded default: 1797 real images of handwritten digits that come with scikit-learn."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

TRAIN, VALIDATION = 1000, 397  # the remaining 400 are for testing


@dataclass(frozen=True, slots=True)
class Split:
    """Images and labels of one part of a data set."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)


@cache
def digits() -> dict[str, Split]:
    """The digits as 1×8×8 images in [0, 1], in the parts `train`, `validation` and `test`.

    The parts are drawn once and for all, so that every run sees the same ones.
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = order.tensor_split([TRAIN, TRAIN + VALIDATION])
    names = ("train", "validation", "test")
    return {name: Split(images[part], labels[part]) for name, part in zip(names, parts, strict=True)}
