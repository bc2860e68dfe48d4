"""The result of evaluating a theorem: both sides, how they compare, and which conditions the input violates.

Every theorem here is a function from plain arrays to `Sides`. Invalid input (a wrong shape, a NaN, a feature
without variance where the formula divides by it) raises ValueError. Valid input that violates a condition of the
theorem does not: the condition is named in `Sides.broken`, and both sides are computed all the same.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.theory.checks import finite

Array = NDArray[np.float64]
Form = Literal["corrected", "printed"]

LARGEST = 1e75
"""Numbers beyond this would leave the range of floating point in their fourth power."""


@dataclass(frozen=True, eq=False)
class Sides:
    """Both sides of a statement.

    Attributes:
        left: The left side, a number or an array.
        right: The right side.
        relation: The relation that the statement claims, entry by entry.
        scale: The size of the largest term, where terms within a side cancel; rounding errors are relative to it.
        broken: The conditions of the statement that this input violates.
    """

    left: float | Array
    right: float | Array
    relation: Literal["<=", "=="] = "<="
    scale: float = 0.0
    broken: tuple[str, ...] = ()

    @property
    def slack(self) -> float:
        """The smallest value of right minus left; for an equation, minus the largest absolute difference."""
        difference = np.asarray(self.right) - np.asarray(self.left)
        return float(-np.abs(difference).max() if self.relation == "==" else difference.min())

    def holds(self, tolerance: float = 1e-9) -> bool:
        """Whether the statement holds for these sides, up to rounding.

        Args:
            tolerance: The largest rounding error, relative to the larger side or to `scale`.
        """
        size = max(float(np.abs(self.left).max()), float(np.abs(self.right).max()), self.scale)
        return self.slack >= -tolerance * size


def check_form(form: str) -> None:
    """Raise if the form of a statement is neither the corrected nor the printed one."""
    if form not in get_args(Form):
        raise ValueError(f"form must be 'corrected' or 'printed', not {form!r}.")


def array(value: ArrayLike, name: str, dimensions: int) -> Array:
    """The argument as an array of float64 with that many dimensions, not empty and finite."""
    try:
        result = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be an array of numbers with {dimensions} dimensions.") from None
    if result.ndim != dimensions:
        raise ValueError(f"{name} must have {dimensions} dimensions, not {result.ndim}.")
    if not result.size:
        raise ValueError(f"{name} is empty.")
    if not np.isfinite(result).all():
        raise ValueError(f"{name} has entries that are not finite.")
    return result


def shaped(value: ArrayLike, name: str, shape: tuple[int, ...]) -> Array:
    """The argument as an array of exactly that shape."""
    result = array(value, name, len(shape))
    if result.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, not {result.shape}.")
    return result


def number(value: float, name: str) -> float:
    """The argument, which must be finite and not so large that its fourth power is not."""
    result = finite(value, name)
    if abs(result) > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST:g} in size, not {value}.")
    return result


def positive(value: float, name: str) -> float:
    """The argument, which must be a number above 0."""
    result = number(value, name)
    if result <= 0:
        raise ValueError(f"{name} must be above 0, not {value}.")
    return result


def symmetric(value: ArrayLike, name: str, size: int | None = None) -> Array:
    """The argument as a symmetric matrix, up to the rounding of whatever computed it."""
    result = array(value, name, 2)
    result = shaped(result, name, (size or result.shape[0],) * 2)
    if not np.allclose(result, result.T, rtol=0, atol=1e-8 * np.abs(result).max()):
        raise ValueError(f"{name} must be symmetric.")
    return (result + result.T) / 2
