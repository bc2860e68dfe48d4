"""Checks of arguments, with errors that name the argument."""

import math
import operator
from typing import SupportsFloat, SupportsIndex

import numpy as np


def whole(value: object, name: str, least: int = 1) -> int:
    """The argument as an int: a Python or numpy integer that is not smaller than `least`.

    Raises:
        ValueError: If it is not.
    """
    number = least - 1
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_):
        try:
            number = operator.index(value)
        except TypeError:  # an array of several numbers, or of none that are whole
            number = least - 1
    if number < least:
        raise ValueError(f"{name} must be a whole number, {least} or larger, not {value!r}.")
    return number


def finite(value: object, name: str) -> float:
    """The argument as a float that is neither infinite nor NaN.

    Raises:
        ValueError: If it is not.
    """
    number = math.nan
    if isinstance(value, SupportsFloat):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):  # an array of several numbers; an int beyond all floats
            number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {value!r}.")
    return number
