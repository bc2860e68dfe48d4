"""What a sweep has shown, in sentences."""

from collections.abc import Sequence
from statistics import median

from trimtab.records import GridCell, Sweep

WORDS = {"exploded": "explode", "untrained": "fail to train (explode or die)"}


def conclusion(sweep: Sweep) -> str:
    """How the networks ended, and how far the measured boundary is from each predicted one."""
    states = [restart.state for cell in sweep.cells for restart in cell.restarts]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("trained", "exploded", "dead"))
    sentences = [f"Of {counted(len(states))}: {counts}."]
    if reasons := [cell.why_not for cell in sweep.cells if cell.why_not is not None]:
        points = "1 point" if len(reasons) == 1 else f"{len(reasons)} points"
        sentences.append(
            f"At {points} of the grid there is nothing to train: {reasons[0].rstrip('.')}"
            + "." * (reasons[0][-2:] != ".)")
        )
    if sweep.rate_axis is None:
        return " ".join(sentences)
    exploded = sweep.boundary("exploded")
    sentences += _about(sweep, "exploded", exploded)
    if (untrained := sweep.boundary("untrained")) != exploded:
        sentences += _about(sweep, "untrained", untrained)
    if doubted := [one.name for one in sweep.predictions if one.notes]:
        sentences.append(f"Theory has reservations about these networks ({', '.join(doubted)}); they are on the page.")
    return " ".join(sentences)


def counted(networks: int) -> str:
    """So many networks, in words.

    >>> counted(1)
    '1 network'
    """
    return "1 network" if networks == 1 else f"{networks} networks"


def _about(sweep: Sweep, ended: str, rates: Sequence[float | None]) -> list[str]:
    """Where one of the measured boundaries is."""
    words = WORDS[ended]
    slices = [cells for _, cells in sweep.slices()]
    below = [any(restart.state == "exploded" for restart in cells[0].restarts) for cells in slices]
    seen = sum(rate is not None for rate in rates)
    sentences = []
    if ended == "exploded" and any(below):
        among = f" in {sum(below)} of {len(slices)} slices" if len(slices) > 1 else ""
        sentences.append(f"At the smallest rate of the grid networks explode already{among}.")
    # Of the slices without a boundary, in some no rate is small enough, and in others none is too large.
    never = [any(cell.restarts for cell in cells) and not any(map(_all_trained, cells)) for cells in slices]
    if ended == "untrained" and any(never):
        among = f" in {sum(never)} of {len(slices)} slices" if len(slices) > 1 else ""
        sentences.append(f"At no rate of the grid all networks are trained{among}.")
    if not seen:
        if not sentences:
            sentences.append(f"No rate within the grid was found from which networks {words}.")
        return sentences
    distances = []
    for predicted in sweep.predictions:
        ratios = [m / p for m, p in zip(rates, predicted.rates, strict=True) if m is not None and p is not None]
        if ratios:
            spread = f" ({_short(min(ratios))}–{_short(max(ratios))})" if len(ratios) > 1 else ""
            distances.append(f"{_short(median(ratios))}{spread} times η* ({predicted.name})")
    among = f" in {seen} of {len(rates)} slices" if seen < len(rates) else ""
    if distances:
        sentences.append(f"The rate from which networks {words} is{among}, at the median, {'; '.join(distances)}.")
    else:
        found = [rate for rate in rates if rate is not None]
        spread = f" ({_short(min(found))}–{_short(max(found))})" if len(found) > 1 else ""
        sentences.append(
            f"The rate from which networks {words} is{among}, at the median, {_short(median(found))}{spread}."
        )
    return sentences


def _all_trained(cell: GridCell) -> bool:
    return bool(cell.restarts) and all(restart.state == "trained" for restart in cell.restarts)


def _short(number: float) -> str:
    """Two digits of a number.

    >>> _short(0.0123), _short(1.234), _short(12345.0), _short(1.23e40)
    ('0.012', '1.2', '12,000', '1.2e+40')
    """
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if 10 <= abs(rounded) < 1e9 else f"{rounded:g}"
