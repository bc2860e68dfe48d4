"""Turns plain data into records; the data of a file may be anything, so each field is checked."""

import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

# Numbers of these names have a range; all whole numbers in records are counts.
_RANGES: dict[str, tuple[Any, Any, str]] = {
    **dict.fromkeys(("epoch", "seconds", "lr", "images_per_second"), (0.0, math.inf, "a number, 0 or more")),
    **dict.fromkeys(("accuracy", "train_accuracy", "last_epoch_accuracy"), (0.0, 1.0, "a number from 0 to 1")),
}


def read_json(path: Path) -> Any:
    """What a file has in JSON.

    Raises:
        ValueError: If it cannot be read, or is something else.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def checked(cls: type[T], content: Mapping[str, Any]) -> T:
    """A record of a class, with every field checked against its type.

    Raises:
        ValueError: If one is missing, not known, of another type, or impossible; the sentence names it.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"it is {shown(content)}, not fields with their names")
    hints, needed = _fields(cls)  # type: ignore[arg-type]
    if missing := needed - content.keys():
        raise ValueError(f"it has no {min(missing)}")
    for name, value in content.items():
        if name not in hints:
            raise ValueError(f"it has {shown(name)}, which is not known")
        if wanted := _wanted(name, value, hints[name]):
            raise ValueError(f"{name} is {shown(value)}, not {wanted}")
    return cls(**content)


def shown(value: object) -> str:
    """A value for an error message, shortened."""
    try:
        text = re.sub(r"\s*\n\s*", " ", repr(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, a list in a list in a list ...
        return "something very long"
    return text if len(text) <= 60 else f"{text[:50]}..."


@lru_cache
def _fields(cls: Any) -> tuple[dict[str, Any], frozenset[str]]:
    hints = get_type_hints(cls)
    of_fields = {field.name: hints[field.name] for field in fields(cls)}
    return of_fields, frozenset(f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)


def _wanted(name: str, value: Any, hint: Any) -> str:
    """What a value should be, in words; empty if the value is valid."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None:
            return ""
        (hint,) = (option for option in get_args(hint) if option is not type(None))
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return "" if value in choices and isinstance(value, str) else f"one of {', '.join(choices)}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        whole = isinstance(value, int) and number
        return "" if whole and value >= 0 else "a whole number, 0 or more"
    if hint is float:
        least, most, words = _RANGES.get(name, (None, None, "a number"))
        return "" if number and (least is None or least <= value <= most) else words
    if get_origin(hint) is dict:
        of = str if get_args(hint)[1] is str else object
        named = isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, of) for k, v in value.items())
        return "" if named else "names with values"
    kind = get_origin(hint) or hint  # of a tuple, whoever made it knows what is in it
    return "" if isinstance(value, kind) else {str: "text", bool: "true or false"}.get(kind, "what belongs there")
