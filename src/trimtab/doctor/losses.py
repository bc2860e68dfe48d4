"""The loss of a batch that is a pair of inputs and classes."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """The mean cross-entropy of a batch of inputs and classes.

    Raises:
        ValueError: If the batch is no such pair.
    """
    if not (isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(x, Tensor) for x in batch)):
        raise ValueError("the loader's batches are not pairs of inputs and classes; give --loss-fn")
    return F.cross_entropy(model(batch[0]), batch[1])
