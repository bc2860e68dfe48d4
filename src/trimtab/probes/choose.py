"""Which layers of a model a probe looks at."""

from collections.abc import Sequence

from trimtab.bnp.watch import matches


def chosen(names: Sequence[str], patterns: Sequence[str], most: int | None) -> list[str]:
    """The names that a pattern matches (all without patterns), at most so many, evenly over their order.

    A pattern names a layer or a module around it; `*` and `?` match as in file names. The first and the last of the
    names stay, if there may be two; if there may be one only, it is the last.

    Raises:
        ValueError: If a pattern matches nothing.
    """
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(f"layers: no layer matches {pattern!r}; the layers are {', '.join(map(repr, names))}.")
    found = [name for name in names if not patterns or any(matches(name, pattern) for pattern in patterns)]
    if most is None or len(found) <= most:
        return found
    if most == 1:
        return found[-1:]
    return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]
