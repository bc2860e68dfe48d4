"""Accuracy under small perturbations of the inputs, by one step along the sign of the gradient."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.probes import options
from trimtab.probes.isolation import IsolatedModel
from trimtab.probes.labelled import AccuracyProbe
from trimtab.probes.result import CannotMeasure, LossFunction, Result


@dataclass(frozen=True, kw_only=True)
class RobustnessResult(Result):
    """Accuracy with and without perturbations.

    Attributes:
        accuracy: Of the inputs as they are.
        eps: The sizes of the perturbations.
        accuracies: Under each of them.
        samples: How many samples were measured.
    """

    accuracy: float = math.nan
    eps: tuple[float, ...] = ()
    accuracies: tuple[float, ...] = ()
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Robustness(AccuracyProbe[RobustnessResult]):
    """Accuracy under x + ε·sign(∇ₓ loss), the fast gradient sign method (bnp, Sec. 2, on Galloway et al.).

    One backward gives the sign, for all ε alike; then a forward for each. All in evaluation mode by default, where the
    gradient of a sample does not depend on the others.

    Args:
        eps: The sizes ε, in units of the data before they were normalized: for images with pixels from 0 to 1.
        scale: What a unit of the data is in the inputs: 1/std for inputs that were divided by std; a number, or a
            tensor that fits the shape of a sample.
        limits: The least and the largest value of an input, numbers or tensors likewise, which a perturbed input is cut
            off at; None: no limits.
        criterion: From outputs and labels to the loss whose gradient is taken; None: cross-entropy.
        data: See `AccuracyProbe`.
        pair: See `AccuracyProbe`.
        forward: See `AccuracyProbe`.
        statistics: See `AccuracyProbe`.
    """

    name: ClassVar[str] = "robustness"
    result: ClassVar[type[Result]] = RobustnessResult

    eps: Sequence[float] = (2 / 255, 4 / 255)
    scale: float | Tensor = 1.0
    limits: tuple[float | Tensor, float | Tensor] | None = None
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If an option is invalid.
        """
        super().__post_init__()
        options.check_increasing(self, "eps", "positive numbers", lambda each: each > 0)
        if not _finite(self.scale) or bool((torch.as_tensor(self.scale) <= 0).any()):
            raise ValueError(
                f"scale must be a positive number or a tensor of such, not {options.described(self.scale)}."
            )
        if self.limits is not None:
            several = tuple(self.limits) if isinstance(self.limits, tuple | list) else ()
            if len(several) != 2 or not all(map(_finite, several)) or not bool(_in_order(*several)):
                raise ValueError(
                    "limits must be None or two numbers or tensors, the smaller one first, "
                    f"not {options.described(self.limits)}."
                )
        options.check_function(self, "criterion", "outputs, labels")

    def measure(self, model: nn.Module, loss_fn: LossFunction, batch: Any) -> RobustnessResult:
        """Perturb and count, or raise CannotMeasure."""
        inputs, labels = self.labelled(batch)
        if not inputs.is_floating_point():
            raise CannotMeasure("The inputs must be floating-point numbers, which can be moved a little.")
        isolated = IsolatedModel(model, statistics=self.statistics)

        def work() -> RobustnessResult:
            clean = self.accuracy(isolated, inputs, labels)
            sign = self._direction(isolated, inputs, labels)
            return RobustnessResult(
                accuracy=clean,
                eps=tuple(float(each) for each in self.eps),
                accuracies=tuple(self.accuracy(isolated, self._moved(inputs, sign, e), labels) for e in self.eps),
                samples=len(labels),
            )

        return isolated.run(work)

    def _direction(self, isolated: IsolatedModel, inputs: Tensor, labels: Tensor) -> Tensor:
        isolated.rewind()
        leaf = inputs.clone().requires_grad_()
        outputs = self.outputs(isolated.model, leaf, labels)
        loss = F.cross_entropy(outputs, labels) if self.criterion is None else self.criterion(outputs, labels)
        if not loss.requires_grad:
            raise CannotMeasure("The loss does not depend on the inputs.")
        (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        if gradient is None:
            raise CannotMeasure("The loss does not depend on the inputs.")
        if not bool(gradient.isfinite().all()):
            raise CannotMeasure("The gradient with respect to the inputs is not finite.")
        return gradient.sign()

    def _moved(self, inputs: Tensor, sign: Tensor, eps: float) -> Tensor:
        moved = inputs + eps * _like(self.scale, inputs) * sign
        if self.limits is not None:
            low, high = (_like(limit, inputs) for limit in self.limits)
            moved = torch.minimum(torch.maximum(moved, low), high)
        return moved


def _like(value: float | Tensor, inputs: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=inputs.dtype, device=inputs.device)


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.numel() > 0 and bool(value.isfinite().all())
    return options.is_finite(value)


def _in_order(low: float | Tensor, high: float | Tensor) -> Tensor:
    return (torch.as_tensor(low) < torch.as_tensor(high)).all()
