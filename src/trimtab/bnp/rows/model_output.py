"""The tensors in what a model has returned, at which a backward may begin."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


class CannotLookIntoError(Exception):
    """A model has returned something in which tensors may be, but which cannot be looked into."""


def tensors_in(output: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in what a model has returned.

    Raises:
        CannotLookIntoError: If there may be others, in something of an unknown type.
    """
    if depth > 32:
        raise CannotLookIntoError
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from tensors_in(part, depth + 1)
    elif isinstance(output, list | tuple):
        for part in output:
            yield from tensors_in(part, depth + 1)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from tensors_in(getattr(output, field.name, None), depth + 1)
    elif output is not None and not isinstance(output, str | bytes | int | float | complex):
        raise CannotLookIntoError
