"""Which layers of a model a probe measures."""

from collections.abc import Sequence

from trimtab.bnp.rows.supported import matches


def select_layers(names: Sequence[str], patterns: Sequence[str], limit: int | None) -> list[str]:
    """The names that a pattern matches (all without patterns), at most `limit` of them, evenly over their order.

    A pattern names a layer or a module around it; `*` and `?` match as in file names. The first and the last of the
    names are among them if the limit is two or more; if it is one, it is the last.

    Raises:
        ValueError: If a pattern matches nothing.
    """
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(f"layers: no layer matches {pattern!r}; the layers are {', '.join(map(repr, names))}.")
    matching = [name for name in names if not patterns or any(matches(name, pattern) for pattern in patterns)]
    if limit is None or len(matching) <= limit:
        return matching
    if limit == 1:
        return matching[-1:]
    return [matching[round(i * (len(matching) - 1) / (limit - 1))] for i in range(limit)]
