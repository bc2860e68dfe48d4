"""Which dimensions of a tensor are samples, channels and positions, and how reshaping and permuting change that.

A dimension has a letter: `b` for samples, `c` for channels, `p` for positions. What weights mix are channels; at
positions the same is done to each. Reading an image of (samples, channels, height, width) begins with "bcpp".
"""

from collections.abc import Sequence

from trimtab.theory.mean_field.positions import Sites

Shape = tuple[int, ...]


def channels(shape: Shape, roles: str) -> int:
    """The number of channels."""
    product = 1
    for n, role in zip(shape, roles, strict=True):
        product *= n if role == "c" else 1
    return product


def sites(shape: Shape, roles: str) -> Sites:
    """Height and width of the positions; further dimensions count as width."""
    found = [n for n, role in zip(shape, roles, strict=True) if role == "p"]
    if len(found) < 2:
        return 1, (found or [1])[0]
    width = 1
    for n in found[1:]:
        width *= n
    return found[0], width


def channels_and_size(shape: Shape) -> tuple[int, Sites]:
    """Channels, height and width of one sample's shape, channels first."""
    roles = "c" + "p" * (len(shape) - 1)
    return channels(shape, roles), sites(shape, roles)


def same(shape: Shape, one: str, other: str) -> bool:
    """Whether two readings agree on all dimensions that have more than one entry."""
    return len(one) == len(other) and all(n == 1 or a == b for n, a, b in zip(shape, one, other, strict=True))


def exchanged(shape: Shape, before: str, after: str) -> bool:
    """Whether all positions become channels, and none of the channels stays one, or all do."""
    pairs = [(a, b) for n, a, b in zip(shape, before, after, strict=True) if n > 1]
    stay = {b for a, b in pairs if a == "c"}
    return len(stay) < 2 and all(b == "c" for a, b in pairs if a == "p") and ("b", "b") in pairs


def permuted(roles: str, order: Sequence[int]) -> str | None:
    """The letters after a permutation; None if positions change their order."""
    order = [d % len(roles) for d in order]
    kept = [d for d in order if roles[d] == "p"]
    return None if kept != sorted(kept) else "".join(roles[d] for d in order)


def reshaped(before: Shape, roles: str, after: Shape) -> str | None:
    """The letters after a change of shape; None where different ones are mixed, but for flattening everything.

    Dimensions of one entry are positions from then on.
    """
    old = [(n, role) for n, role in zip(before, roles, strict=True) if n > 1]
    new = [n for n in after if n > 1]
    letters: list[str] = []
    while old or new:
        (left, role), right, count = old.pop(0), new.pop(0), 1
        found = {role}
        while left != right:
            if left < right:
                n, role = old.pop(0)
                left, found = left * n, found | {role}
            else:
                right, count = right * new.pop(0), count + 1
        if len(found) > 1:
            whole = found == {"c", "p"} and count == 1 and "p" not in {role for _, role in old} | set(letters)
            if not whole:
                return None
            found = {"c"}
        letters += found.pop() * count
    each = iter(letters)
    return "".join("p" if n == 1 else next(each) for n in after)
