"""The settings of BNP, checked once."""

import sys
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args, get_type_hints

Statistics = Literal["running", "batch"]
Spatial = Literal["channel", "site"]
Tokens = Literal["positions", "samples"]
NoBias = Literal["second_moment", "variance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `trimtab.BNP` is told; see there for the meaning of each field."""

    rho: float = 0.99
    eps1: float = 1e-2
    eps2: float = 1e-4
    statistics: Statistics = "running"
    debias: bool = False
    spatial: Spatial = "channel"
    tokens: Tokens = "positions"
    no_bias: NoBias = "second_moment"
    fast: bool = True

    def __post_init__(self) -> None:
        """Refuse what has no meaning, naming the argument."""
        if not _is_number(self.rho) or not 0 <= self.rho < 1:
            raise ValueError(
                f"rho must be a number in [0, 1), not {self.rho!r}: it is the share of the running "
                "averages that a step keeps."
            )
        for name in ("eps1", "eps2"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= sys.float_info.max:
                raise ValueError(f"{name} must be a finite number, 0 or larger, not {value!r}.")
        for name in ("rho", "eps1", "eps2"):  # numpy's have no place in a saved state
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("debias", "fast"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}.")
        hints = get_type_hints(type(self))
        for name in ("statistics", "spatial", "tokens", "no_bias"):
            choices = get_args(hints[name])
            value = getattr(self, name)
            if not isinstance(value, str) or value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
