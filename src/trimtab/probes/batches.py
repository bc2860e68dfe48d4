"""The samples of a batch, whatever it is made of, counted and cut."""

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


def samples_of(batch: Any) -> int | None:
    """The length of dimension 0 of the first tensor or array in it; None if there is none."""
    if isinstance(batch, Tensor | np.ndarray):
        return len(batch) if batch.ndim else None
    found = (samples_of(each) for each in _contents(batch))
    return next((count for count in found if count is not None), None)


def split_batch(batch: Any, parts: int) -> list[Any]:
    """Parts of equal size, in the order of the samples; what is left over by the division is in none of them.

    Tensors and arrays are cut along dimension 0, in dictionaries, lists, tuples and dataclasses, nested as they may be.
    What has another length than the first tensor, or none, goes into each part as it is.

    Args:
        batch: The batch.
        parts: How many.

    Raises:
        ValueError: If there is no tensor, or if there are fewer samples than parts.
    """
    count = samples_of(batch)
    if count is None:
        raise ValueError("The batch has no tensor to split along its first dimension; pass a split of your own.")
    if not 1 <= parts <= count:
        raise ValueError(f"parts must be between 1 and the {count} samples of the batch, not {parts}.")
    size = count // parts
    return [_sliced(batch, count, slice(index * size, (index + 1) * size)) for index in range(parts)]


def on_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device, in dictionaries, lists, tuples and dataclasses; the rest is as it was."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    return _changed(batch, lambda each: on_device(each, device))


def first_samples(batch: Any, wanted: int) -> Any:
    """The first samples of a batch that has so many, cut as by `split_batch`."""
    return _sliced(batch, samples_of(batch) or 0, slice(wanted))


def _sliced(value: Any, count: int, which: slice) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        return value[which] if value.ndim and len(value) == count else value
    return _changed(value, lambda each: _sliced(each, count, which))


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same container with its contents changed; what is none is as it was."""
    if isinstance(value, Mapping):
        changed = {key: change(each) for key, each in value.items()}
        if not isinstance(value, MutableMapping):
            return changed
        same = copy.copy(value)  # of its own type, which may have methods of its own
        same.update(changed)
        return same
    if isinstance(value, list | tuple):
        several = [change(each) for each in value]
        return type(value)(*several) if hasattr(value, "_fields") else type(value)(several)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: change(getattr(value, field.name)) for field in fields(value)})
    return value


def _contents(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, list | tuple):
        return list(batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in fields(batch)]
    return []
