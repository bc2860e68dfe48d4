"""Where a loss is smallest among rates that are spaced by a factor: which to try next, and what lies between them."""

import math
from collections.abc import Callable, Mapping


def climb(
    loss: Callable[[float], float], start: float, factor: float, most: int, ceiling: float = math.inf
) -> dict[float, float]:
    """Losses at rates around the best one, found by steps of one factor from a start.

    It goes to the neighbour that is not known yet, the larger one first, until the best rate has a worse one on each
    side. Of equal losses that of the larger rate counts as better, so that it leaves a place where nothing changes.
    While all losses are above the ceiling it goes to smaller rates, whichever of them is the best.

    Args:
        loss: Of a rate; infinite if it diverges.
        start: The first rate.
        factor: Between neighbours, above 1.
        most: How many rates may be tried.
        ceiling: Above it a loss is one of a training that does not work.

    Returns:
        The losses, by rate, the smallest rate first.
    """
    tried: dict[int, float] = {0: loss(start)}
    while len(tried) < most:
        best = min(tried, key=lambda place: (tried[place], -place))
        if not (math.isfinite(tried[best]) and tried[best] <= ceiling):
            unknown = [min(tried) - 1]
        else:
            unknown = [place for place in (best + 1, best - 1) if place not in tried]
        if not unknown:
            break
        tried[unknown[0]] = loss(start * factor ** unknown[0])
    return {start * factor**place: tried[place] for place in sorted(tried)}


def best_of(losses: Mapping[float, float]) -> float:
    """The rate with the smallest loss: the largest of them if they are equal, the smallest if all diverge."""
    return min(losses, key=lambda rate: (losses[rate], -rate if math.isfinite(losses[rate]) else rate))


def edge(losses: Mapping[float, float]) -> str | None:
    """Whether the best rate is the `smallest` or the `largest` of those tried."""
    best = best_of(losses)
    if best == max(losses):
        return "largest"
    return "smallest" if best == min(losses) else None


def between(losses: Mapping[float, float]) -> float:
    """The rate at the bottom of the parabola through the best rate and its neighbours.

    The parabola is of the logarithm of the loss (of the loss itself, if one is not positive) over that of the rate.
    Its bottom is half a factor from the best rate at most: if a neighbour diverges, that is where it goes in the limit.
    """
    best = best_of(losses)
    if edge(losses) is not None:
        return best
    rates = sorted(losses)
    place = rates.index(best)
    three = [losses[rate] for rate in rates[place - 1 : place + 2]]
    below, here, above = map(math.log, three) if min(three) > 0 else three
    step = math.log(rates[place + 1] / best)
    if not (math.isfinite(below) and math.isfinite(above)):
        shift = 0.0 if math.isfinite(below) == math.isfinite(above) else math.copysign(0.5, below - above)
    else:
        bend = below - 2 * here + above
        shift = 0.0 if bend <= 0 else 0.5 * (below - above) / bend
    return best * math.exp(shift * step)
