"""Several batches as one."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.probes.batches import samples_of
from trimtab.probes.result import CannotMeasure


def joined(batches: Sequence[Any]) -> Any:
    """The samples of all batches in one, whatever they are made of: what `split_batch` cuts apart.

    Tensors are joined along dimension 0, in dictionaries, lists and tuples; anything else is that of the first batch.

    Raises:
        CannotMeasure: If they do not fit together, as sequences of unlike lengths do not.
    """
    if not batches or samples_of(batches[0]) is None:
        raise CannotMeasure("The batches have no tensor of samples, so that they cannot be joined to one.")
    try:
        return _joined(batches)
    except (RuntimeError, TypeError, KeyError) as error:
        raise CannotMeasure(f"The batches cannot be joined to one: {error}") from error


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(list(values)) if first.ndim else first
    if isinstance(first, Mapping):
        return {key: _joined([value[key] for value in values]) for key in first}
    if isinstance(first, list | tuple):
        parts = [_joined(several) for several in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first
