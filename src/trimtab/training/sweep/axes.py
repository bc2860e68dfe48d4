"""The axes of a sweep: a setting and the values that it takes."""

import math
from dataclasses import dataclass

from trimtab.nearest import nearest
from trimtab.training.conversion import convert
from trimtab.training.settings import SettingInfo, setting_infos

FORMS = "NAME=A..B:N (geometric), NAME=lin:A..B:N or NAME=A,B,..."
DIGITS = 6
"""Values of a range are rounded to so many digits, as a person would write them."""
# They say how often something is written down, or that it is: no result depends on them.
_NOT_AXES = ("log_every", "evaluate_every", "evaluations", "probe_every", "train_subset", "seed")
_LONGEST = 10_000
SMALLEST, LARGEST = 1e-30, 1e30
"""In size; beyond them neither float32 nor a figure has room."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a sweep.

    Attributes:
        name: The setting.
        values: Those it takes, rising.
        geometric: Whether their ratios are equal, rather than their differences; None if they were listed.
    """

    name: str
    values: tuple[float, ...]
    geometric: bool | None = None

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """The axis that a text like `lr=1e-4..10:24` describes.

        >>> Axis.parse("gamma=0.5..2:3").values
        (0.5, 1.0, 2.0)
        >>> Axis.parse("batch_size=lin:10..40:4").values
        (10, 20, 30, 40)
        >>> Axis.parse("rho=0.9,0.5").values
        (0.5, 0.9)

        Raises:
            ValueError: If it is none, names no numeric setting, or has values that the setting cannot have.
        """
        raw, equals, described = text.partition("=")
        if not equals or not described:
            raise ValueError(f"an axis is {FORMS}, not {text!r}")
        setting = _setting(raw.strip().replace("-", "_"))
        if ".." in described:
            values, geometric = _range(setting, described, text)
        else:
            values, geometric = [_number(word, text) for word in described.split(",")], None
        if len(set(values)) < len(values):
            raise ValueError(f"the axis {setting.name} has a value twice; give each once")
        try:
            converted = tuple(convert(value, setting.hint) for value in sorted(values))
        except ValueError as error:
            raise ValueError(f"the axis {setting.name}: {error}") from None
        return cls(setting.name, converted, geometric)


def numeric_settings() -> dict[str, SettingInfo]:
    """The settings that can be an axis, by name."""
    return {s.name: s for s in setting_infos() if s.hint in (int, float) and s.name not in _NOT_AXES}


def _setting(name: str) -> SettingInfo:
    known = numeric_settings()
    if name in known:
        return known[name]
    if name == "seed":
        raise ValueError("seed cannot be an axis: the restarts of each cell have seeds of their own; give --restarts")
    other = next((s for s in setting_infos() if s.name == name), None)
    if other is not None:
        why = "it is for records" if other.hint is int else "it is no single number"
        raise ValueError(f"{name} cannot be an axis: {why}")
    near = nearest(name, known)
    raise ValueError(f"there is no setting {name!r} for an axis" + (f"; did you mean {near!r}?" if near else ""))


def _range(setting: SettingInfo, described: str, text: str) -> tuple[list[float], bool]:
    """The values of `A..B:N` or `lin:A..B:N`, and whether they are geometric."""
    linear = described.startswith("lin:")
    ends, colon, number = described.removeprefix("lin:").partition(":")
    low, _, high = ends.partition("..")
    first, last = _number(low, text), _number(high, text)
    if not colon or not number.strip().isdecimal() or not 2 <= int(number) <= _LONGEST:
        raise ValueError(f"the axis {text!r} needs the number of its values, 2 to {_LONGEST}, at the end: A..B:N")
    count = int(number)
    if not first < last:
        raise ValueError(f"the axis {text!r} must go from a smaller to a larger number")
    if not linear and first <= 0:
        raise ValueError(f"the axis {text!r} is geometric and must begin above 0; with lin:A..B:N it has equal steps")
    shares = [i / (count - 1) for i in range(count)]
    if linear:
        values = [first + share * (last - first) for share in shares]
    else:
        low_log, high_log = math.log(first), math.log(last)  # their ratio may be more than a float holds
        values = [math.exp(low_log + share * (high_log - low_log)) for share in shares]
    values = [first, *(float(f"{value:.{DIGITS}g}") for value in values[1:-1]), last]
    if len(set(values)) < count:
        raise ValueError(f"the axis {text!r} has values that are equal in {DIGITS} digits; take fewer of them")
    if setting.hint is int and not all(float(value).is_integer() for value in values):
        raise ValueError(f"the axis {text!r} has values that are no whole numbers, as {setting.name} needs; list them")
    return values, not linear


def _number(word: str, text: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if math.isfinite(number) and number and not SMALLEST <= abs(number) <= LARGEST:
        raise ValueError(f"the axis {text!r} has {word.strip()}; its values are 0 or from {SMALLEST:g} to {LARGEST:g}")
    if not math.isfinite(number):
        raise ValueError(f"the axis {text!r} has {word.strip()!r}, which is no number; an axis is {FORMS}")
    return number
