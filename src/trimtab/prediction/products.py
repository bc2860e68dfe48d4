"""Products with the derivative J of a model's outputs with respect to its parameters, on several batches.

Jᵀu is a backward. Jv is a forward with derivatives carried along (forward mode). Where an operation of the model cannot
do that, Jv is the derivative of Jᵀu with respect to u, which takes more time and memory and second derivatives.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from trimtab import _torch
from trimtab.probes.isolation import IsolatedModel, Point
from trimtab.probes.result import CannotMeasure
from trimtab.probes.spectrum.operators import GaussNewton
from trimtab.probes.spectrum.second_derivatives import check_finite, twice_differentiable

T = TypeVar("T")
Batch = tuple[Tensor, Any]
Select = Callable[[Tensor], Tensor]


class OutputDerivative:
    """J, whose rows are the outputs on all batches.

    To be used within a run of the isolated model.

    Args:
        isolated: The model.
        batches: Inputs and targets.
        select: Takes what the model returns on a batch to the outputs that count.
        point: Values for the parameters; None: their own.

    Attributes:
        isolated: The model.
        batches: Inputs and targets.
        leaves: The parameters.
        in_forward_mode: Whether the products with J are computed in forward mode.
    """

    def __init__(
        self, isolated: IsolatedModel, batches: Sequence[Batch], select: Select, point: Point | None = None
    ) -> None:
        self.isolated, self.batches = isolated, batches
        self.leaves = isolated.leaves(point)
        self.in_forward_mode = True
        self._select = select
        self._kept: Tensor | None = None  # the outputs of a single batch, with their graph; several would not fit
        self._twice: GaussNewton | None = None  # likewise, with that of the gradient

    def outputs(self) -> list[Tensor]:
        """The outputs on each batch."""
        return self._each(lambda index: self._forward(index).detach())

    def transposed(self, u: Sequence[Tensor]) -> list[Tensor]:
        """Jᵀu, one tensor for each parameter, of one tensor for each batch."""
        leaves = list(self.leaves.values())

        def part(index: int) -> list[Tensor]:
            values = self._forward(index)
            return _torch.gradients([values], leaves, [u[index].to(values)], retain_graph=len(self.batches) == 1)

        return [sum(parts[1:], parts[0]) for parts in zip(*self._each(part), strict=True)]

    def times(self, v: Sequence[Tensor]) -> list[Tensor]:
        """Jv, one tensor for each batch."""
        if self.in_forward_mode:
            try:
                return self._by_forward_mode(v)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # of an operation that has no forward mode, and what is wrong else is found below
                self.in_forward_mode = False
        return self._each(lambda index: self._by_second_derivative(index, v))

    def agrees(self, product: float, other: float, scale: float) -> bool:
        """Whether ⟨u, Jv⟩ and ⟨Jᵀu, v⟩ are equal; if not, no forward mode is used from now on.

        They differ for a model that computes a part under torch.no_grad, through which forward mode differentiates.
        """
        eps = max(torch.finfo(leaf.dtype).eps for leaf in self.leaves.values())
        if not self.in_forward_mode or not abs(product - other) > max(1e-3, eps**0.5) * scale:
            return True
        self.in_forward_mode = False
        return False

    def _by_forward_mode(self, v: Sequence[Tensor]) -> list[Tensor]:
        def tangent(index: int) -> Tensor:
            values, found = forward_mode.unpack_dual(self._model_output(index))
            # None: no parameter moves the outputs. Within torch.enable_grad a tangent has a graph of its own.
            return torch.zeros_like(values) if found is None else found.detach()

        with torch.no_grad(), forward_mode.dual_level():
            point = {
                name: forward_mode.make_dual(leaf.detach(), along.to(leaf))
                for (name, leaf), along in zip(self.leaves.items(), v, strict=True)
            }
            return self._each(tangent, point)

    def _by_second_derivative(self, index: int, v: Sequence[Tensor]) -> Tensor:
        twice = self._twice or GaussNewton(self._forward(index), self.leaves, lambda h: h)
        if len(self.batches) == 1:
            self._twice = twice
        return twice.times_jacobian(v)

    def _each(self, part: Callable[[int], T], point: Point | None = None) -> list[T]:
        """Something of each batch, each with the same random numbers and buffers of its own."""
        with twice_differentiable():
            work = [partial(part, index) for index in range(len(self.batches))]
            return [self.isolated.run(one, self.leaves if point is None else point) for one in work]

    def _forward(self, index: int) -> Tensor:
        if self._kept is not None:
            return self._kept
        values = self._model_output(index)
        if not values.requires_grad:
            raise CannotMeasure("No gradient reaches the outputs of the model: its forward ends in detach or no_grad.")
        check_finite(values, "The outputs are not finite.")
        if len(self.batches) == 1:
            self._kept = values
        return values

    def _model_output(self, index: int) -> Tensor:
        x, _ = self.batches[index]
        values = self.isolated.model(x.clone())  # which the model may change in place
        check_outputs(values, len(x))
        return self._select(values)


def check_outputs(values: Any, samples: int) -> None:
    """Refuse what a model returns if it is nothing that can be differentiated by sample.

    Raises:
        ValueError: If it is not one tensor of real numbers, with a row for each sample.
    """
    if not isinstance(values, Tensor) or not values.ndim or len(values) != samples or not values.numel():
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"The model must return one tensor with a row for each sample, not {found}.")
    if values.is_complex():
        raise ValueError("The model must return real numbers, not complex ones.")


def operations(isolated: IsolatedModel, inputs: Tensor) -> tuple[int, bool]:
    """The floating-point operations of a forward in products and convolutions, and whether it draws random numbers."""
    counter = FlopCounterMode(display=False)

    try:
        with counter:
            _, is_random = outputs_of(isolated, inputs)
        return counter.get_total_flops(), is_random
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # of a model that takes derivatives itself, which the counter cannot follow
        _, is_random = outputs_of(isolated, inputs)
        return 2 * len(inputs) * sum(values.numel() for values in isolated.parameters.values()), is_random


def outputs_of(isolated: IsolatedModel, inputs: Tensor) -> tuple[Any, bool]:
    """What the model returns, and whether it draws random numbers for that."""

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(inputs.device)] if inputs.is_cuda else [])]

    def work() -> tuple[Any, bool]:
        before = states()
        values = isolated.model(inputs.clone())  # which it may change in place
        return values, not all(map(torch.equal, before, states()))

    return isolated.run(work)
