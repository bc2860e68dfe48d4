"""Checks of the types of settings, with errors that name the setting."""

from numbers import Integral, Real
from typing import Any


def check_numbers(**settings: Any) -> None:
    """Refuse settings that are not real numbers. The caller checks their range.

    Raises:
        ValueError: If there is such a setting; it is named.
    """
    for name, value in settings.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ValueError(f"{name} must be a number, not {value!r}.")


def check_whole(least: int = 1, **settings: Any) -> None:
    """Refuse settings that are not integers, or are smaller than `least`.

    Raises:
        ValueError: If there is such a setting; it is named.
    """
    for name, value in settings.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number, {least} or larger, not {value!r}.")


def check_flags(**settings: Any) -> None:
    """Refuse settings that are neither True nor False.

    Raises:
        ValueError: If there is such a setting; it is named.
    """
    for name, value in settings.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, not {value!r}.")
