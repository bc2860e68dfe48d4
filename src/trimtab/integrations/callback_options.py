"""Options of the callbacks, checked when one is made: before a model and data are loaded."""

import inspect
from collections.abc import Mapping
from typing import Any, Literal, get_args

from trimtab.bnp import BNP

Clip = Literal["before", "after"]
"""Whether gradients are clipped before BNP preconditions them or after that."""


def check_bnp_options(clip: str, options: Mapping[str, Any]) -> None:
    """Refuse what BNP will not take.

    Raises:
        TypeError: If there is no such option of BNP.
        ValueError: If `clip` is another word.
    """
    known = [name for name in inspect.signature(BNP).parameters if name != "model"]
    for name in options:
        if name not in known:
            raise TypeError(f"BNP has no option {name!r}; the options are {', '.join(known)}, and clip.")
    if clip not in get_args(Clip):
        raise ValueError(f"clip must be 'before' or 'after', not {clip!r}.")
