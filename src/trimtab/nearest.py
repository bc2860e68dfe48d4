"""Suggests a known name for an unknown one."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The most similar of the known names, ignoring case; None if none is as similar as `cutoff`.

    >>> nearest("BNP", ["bn", "bnp"])
    'bnp'
    >>> nearest("foo", ["mf-conv", "vgg"])
    """
    folded = {one.lower(): one for one in known}
    found = get_close_matches(str(name).lower(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None
