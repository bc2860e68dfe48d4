"""Named functions for parts of criteria that no comparator fits.

A function takes the part that names it and the record of the experiment, and returns what came out.
"""

from trimtab.claims.intervals import Interval, paired
from trimtab.claims.part import Part
from trimtab.claims.record import Record
from trimtab.claims.verdict import ENOUGH_WITH_ONE_SEED, MOST_SEEDS, Outcome, PartFunction, State

FUNCTIONS: dict[str, PartFunction] = {}


def part_function(function: PartFunction) -> PartFunction:
    """Register a function under its own name."""
    FUNCTIONS[function.__name__] = function
    return function


@part_function
def gaps_of_parts_differ(part: Part, record: Record) -> Outcome:
    """Whether the interval of gap(WN + mean-only BN) − gap(WN + variance-only BN) is without 0, whichever is larger.

    With one seed one of them has to be three times the other.
    """
    left, right = paired(record.numbers["gap"]["wn+mean-bn"], record.numbers["gap"]["wn+var-bn"])
    differences = [0.0 if a == b else a - b for a, b in zip(left, right, strict=True)]
    interval = Interval.of(differences)
    surely = interval.low > 0 or interval.high < 0
    if interval.seeds == 1:
        low, high = sorted((left[0], right[0]))
        surely = low > 0 and high >= ENOUGH_WITH_ONE_SEED * low
    sentence = f"the difference is {interval.mean:.3g} ({interval.low:.3g} to {interval.high:.3g})"
    open_still = interval.mean != 0 and interval.seeds < MOST_SEEDS
    state: State = "met" if surely else "undecided" if open_still else "not met"
    return Outcome(part, state, f"{sentence}, {interval.seeds} {'seed' if interval.seeds == 1 else 'seeds'}", interval)
