"""The losses that a learning rate can be for, by their second derivative with respect to the outputs."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from trimtab.probes.result import CannotMeasure
from trimtab.probes.spectrum.operators import categorical_hessian, criterion_hessian, gaussian_hessian

Loss = Literal["squared", "cross_entropy"] | Callable[[Tensor, Any], Tensor]
"""`squared`: the mean over samples of ½‖f − y‖². `cross_entropy`: that of torch. Or a function of outputs and targets
that returns a mean over samples."""
Outputs = Literal["all", "one"]
Product = Callable[[Tensor], Tensor]
NAMES = ("squared", "cross_entropy")


def check_loss(loss: Any, outputs: Any) -> None:
    """Refuse what has no meaning.

    Raises:
        ValueError: If one of these is something else, or both do not go together.
    """
    if not callable(loss) and loss not in NAMES:
        raise ValueError(f"loss must be 'squared', 'cross_entropy' or a function of outputs and targets, not {loss!r}.")
    if outputs not in ("all", "one"):
        raise ValueError(f"outputs must be 'all' or 'one', not {outputs!r}.")
    if outputs == "one" and loss != "squared":
        raise ValueError("outputs='one' goes with loss='squared' only: other losses take all outputs together.")


def describe(loss: Loss) -> str:
    """A loss in a few words."""
    if loss == "squared":
        return "½‖f − y‖²"
    return "cross-entropy" if loss == "cross_entropy" else getattr(loss, "__name__", type(loss).__name__)


def hessian_product(loss: Loss, outputs: Tensor, targets: Any) -> Callable[[Tensor], Tensor]:
    """The product with the second derivative of a loss with respect to the outputs.

    Raises:
        ValueError: If a function does not take these outputs and targets, or does not return one number.
        CannotMeasure: If that is not finite.
    """
    if loss == "squared":
        return gaussian_hessian(outputs)
    if loss == "cross_entropy":
        product = categorical_hessian(outputs.movedim(1, -1))
        return lambda h: product(h.movedim(1, -1)).movedim(-1, 1)
    assert callable(loss)
    try:
        product = criterion_hessian(outputs, loss, targets)
        is_sum = _is_a_sum(loss, outputs.detach(), targets)
    except (torch.OutOfMemoryError, CannotMeasure):
        raise
    except Exception as error:  # of any kind, since it is the user's own code that raises it
        first = str(error).partition("\n")[0].replace("criterion", "it") or type(error).__name__
        given = f"outputs {_about(outputs)} and targets {_about(targets)}"
        raise ValueError(f"loss must return one number, with a derivative, of {given}: {first}") from error
    if is_sum:
        raise ValueError(
            "loss must return a mean over samples, and this one doubles with the samples; divide it by their number"
        )
    return product


def _is_a_sum(loss: Callable[[Tensor, Any], Tensor], outputs: Tensor, targets: Any) -> bool:
    """Whether twice the same samples have twice the loss."""
    if not isinstance(targets, Tensor) or not targets.ndim or len(targets) != len(outputs):
        return False
    with torch.no_grad():
        once, twice = loss(outputs, targets), loss(outputs.repeat_interleave(2, 0), targets.repeat_interleave(2, 0))
    return bool(once != 0) and bool(torch.isclose(twice, 2 * once, rtol=1e-4))


def _about(value: Any) -> str:
    return f"{tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def hessian_root(loss: Loss, outputs: Tensor) -> tuple[Product, Product] | None:
    """The products with R and Rᵀ, RRᵀ being the second derivative of a loss; None for a function, of unknown sign."""
    if loss == "squared":
        scale = math.sqrt(len(outputs))
        return (lambda h: h / scale), (lambda h: h / scale)
    if loss != "cross_entropy":
        return None
    # R = diag(√p) − p√pᵀ, since RRᵀ = diag(p) − 2ppᵀ + p(√pᵀ√p)pᵀ = diag(p) − ppᵀ.
    p = outputs.detach().softmax(1)
    root, scale = p.sqrt(), math.sqrt(p[:, 0].numel())
    return (
        lambda h: (root * h - p * (root * h).sum(1, keepdim=True)) / scale,
        lambda h: root * (h - (p * h).sum(1, keepdim=True)) / scale,
    )
