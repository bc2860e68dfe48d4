"""The effective β-smoothness along a line, point by point: for the probe that measures it and for reports.

Records of an earlier trimtab have the numbers that it is made of, so it can be told of them too.
"""

import math
from collections.abc import Sequence


def smoothness_by_multiple(changes: Sequence[float], distances: Sequence[float]) -> tuple[float, ...]:
    """The change of the gradient over the distance, at each point of a line.

    Returns:
        One number for each point: infinite where the change is not finite, NaN at a point that is not away from θ.
    """
    return tuple(_quotient(change, away) for change, away in zip(changes, distances, strict=True))


def largest_smoothness(multiples: Sequence[float], smoothness: Sequence[float]) -> tuple[float, float, bool]:
    """The largest β of a line, at which point it is, and whether that is an edge of the range.

    Args:
        multiples: Where the points are; those below 0 are on the other side of θ.
        smoothness: β at each of them.

    Returns:
        The largest β; its multiple, which is the one nearest to θ if several have it; and whether on its side of θ no
        point was measured nearer to θ, or none farther: then a wider range might have a larger one. NaN, NaN and False
        if there is no β.
    """
    points = [(abs(s), s, beta) for s, beta in zip(multiples, smoothness, strict=True) if not math.isnan(beta)]
    if not points:
        return math.nan, math.nan, False
    largest = max(beta for _, _, beta in points)
    away, where, _ = min(point for point in points if point[2] == largest)
    side = [distance for distance, s, _ in points if (s > 0) == (where > 0)]
    return largest, where, away in (min(side), max(side))


def _quotient(change: float, distance: float) -> float:
    if not distance > 0:
        return math.nan
    return change / distance if math.isfinite(change) else math.inf
