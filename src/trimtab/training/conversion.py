"""Values from YAML and command lines as the types that settings have."""

import types
from typing import Any, Literal, Union, get_args, get_origin

from trimtab.records import shown

LIMIT = 2**63
"""Whole numbers are smaller; torch has no larger ones."""


def convert(value: Any, hint: Any) -> Any:
    """A value from YAML or a command line as the type that a setting has.

    Raises:
        ValueError: If it cannot be, with what it must be.
    """
    if get_origin(hint) in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        hint = without_none(hint)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"must be one of {', '.join(get_args(hint))}, not {shown(value)}")
        return value
    if get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return tuple(convert(part.strip() if isinstance(part, str) else part, get_args(hint)[0]) for part in parts)
    if hint is bool:
        words = {"true": True, "yes": True, "false": False, "no": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        raise ValueError(f"must be true or false, not {shown(value)}")
    if hint is str:
        if not isinstance(value, str) or not value:
            raise ValueError(f"must be a name, not {shown(value)}")
        return value
    try:
        number = hint(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or (hint is int and isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"must be {'a whole number' if hint is int else 'a number'}, not {shown(value)}")
    if hint is int and abs(number) >= LIMIT:
        raise ValueError(f"must be a whole number below 2^63, not {shown(value)}")
    return number


def without_none(hint: Any) -> Any:
    """The type of a setting that may also be None."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    (option,) = (option for option in get_args(hint) if option is not type(None))
    return option
