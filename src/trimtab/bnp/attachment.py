"""The bond between a BNP and an optimizer: something to do before each optimizer step."""

import weakref
from collections.abc import Callable
from itertools import chain
from typing import Any

from torch.optim import LBFGS, Optimizer

# What is attached to an optimizer, so that no layer's gradient is preconditioned twice.
_ATTACHED: "weakref.WeakKeyDictionary[Optimizer, weakref.WeakSet[Attachment]]" = weakref.WeakKeyDictionary()


class Attachment:
    """Calls `precondition(parameters, fold)` before each step of an optimizer.

    Where the step is given a closure, which may run the backward, it is called after each run of that; `fold` is
    true in the first call of an optimizer step.
    """

    def __init__(
        self, optimizer: Optimizer, layers: set[int], bnp: Any, precondition: Callable[[set[int], bool], None]
    ) -> None:
        """Hook into the optimizer, for the layers of a BNP with these weights."""
        self.optimizer = optimizer
        self.layers = layers
        self.bnp = bnp  # kept: who attaches a BNP need not hold it
        self._precondition = precondition
        try:
            self._handle = optimizer.register_step_pre_hook(self._before_step)
        except AttributeError:  # torch's own __init__ was never called
            raise TypeError(
                f"attach cannot hook into the steps of {type(optimizer).__name__}, which is an Optimizer of torch by "
                "name only; call bnp.step() before its steps instead."
            ) from None
        _ATTACHED.setdefault(optimizer, weakref.WeakSet()).add(self)

    def detach(self) -> None:
        """Leave the optimizer as it was."""
        self._handle.remove()
        _ATTACHED.get(self.optimizer, weakref.WeakSet()).discard(self)

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The step pre-hook. `args` begin with the optimizer; a closure may follow, or be a keyword."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._precondition(parameter_ids(optimizer), True)
            return None
        followed = self._followed(closure)
        if len(args) > 1:
            return (args[0], followed, *args[2:]), kwargs
        return args, {**kwargs, "closure": followed}

    def _followed(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, followed each time by our part."""
        first = True

        def closure_and_precondition() -> Any:
            nonlocal first
            result = closure()
            self._precondition(parameter_ids(self.optimizer), first)
            first = False
            return result

        return closure_and_precondition


def innermost(optimizer: Any) -> Any:
    """The optimizer that takes the steps, within what has no parameter groups of its own and only wraps it.

    Such are the optimizers that Accelerate's `prepare`, Lightning and Fabric hand out. They claim to be optimizers, but
    hooks on their steps are not called, or cannot be set.
    """
    while isinstance(optimizer, Optimizer) and "param_groups" not in vars(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return optimizer


def check_optimizer(optimizer: object) -> None:
    """Refuse what cannot be attached to.

    Raises:
        TypeError: If it is not an optimizer.
        ValueError: If it is one that needs true gradients.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"attach takes a torch.optim.Optimizer, not {type(optimizer).__name__}.")
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "LBFGS cannot be preconditioned by BNP: it builds its curvature pairs from differences of gradients, "
            "and PPᵀ times a gradient is not the gradient of anything it could line-search; use SGD or Adam."
        )


def attached_to(optimizer: Optimizer) -> list[Attachment]:
    """What is attached to an optimizer now."""
    return list(_ATTACHED.get(innermost(optimizer), ()))


def parameter_ids(optimizer: Optimizer) -> set[int]:
    """The identities of an optimizer's parameters."""
    # A list and not operator.itemgetter, at which torch.compile would break the step of an optimizer.
    return set(map(id, chain.from_iterable([group["params"] for group in optimizer.param_groups])))


def bnps_attached_to(optimizer: Optimizer) -> list[Any]:
    """The BNPs that are attached to an optimizer."""
    return [attachment.bnp for attachment in attached_to(optimizer)]
