"""Whether a model has second derivatives, and a sentence if it has none."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from trimtab.probes.result import CannotMeasure

# What torch's errors say of an operation without a second derivative.
_NO_SECOND = ("derivative for", "differentiate twice", "incompatible with .grad()")  # the last: of checkpointing


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Compute attention by operations that have second derivatives; an operation that has none is an error.

    Raises:
        CannotMeasure: If an operation has no second derivative.
    """
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        if isinstance(error, torch.OutOfMemoryError) or not any(words in first for words in _NO_SECOND):
            raise
        raise CannotMeasure(f"An operation of the model has no second derivative: {first}") from None


def check_finite(values: Tensor, otherwise: str) -> None:
    """Refuse numbers that are not finite.

    Raises:
        CannotMeasure: If one is not.
    """
    if not bool(torch.isfinite(values.detach()).all()):
        raise CannotMeasure(otherwise)


def check_differentiable_twice(tensors: Iterable[Tensor]) -> None:
    """Refuse gradients whose own derivative would be incomplete, since an operation can be differentiated only once.

    In the graph of the gradient, torch puts a node there that raises an error. It has no inputs, and autograd.grad
    executes only nodes that lead to its inputs: so the error would never be raised, and a part be missing.

    Raises:
        CannotMeasure: If there is such a node.
    """
    ahead, seen = [t.grad_fn for t in tensors], set()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::Error":
            raise CannotMeasure("An operation of the model has no second derivative.")
        ahead += [following for following, _ in node.next_functions]
