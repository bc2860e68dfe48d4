"""Named functions for parts of criteria that no comparator fits.

A function takes the part that names it and the record of the experiment, and returns what came out.
"""

import math
from collections.abc import Callable
from statistics import fmean

from trimtab.claims.errata import ERRATA
from trimtab.claims.intervals import Interval, paired
from trimtab.claims.judging import ENOUGH_WITH_ONE_SEED, MOST_SEEDS, Outcome, State
from trimtab.claims.part import Part
from trimtab.claims.record import Record
from trimtab.claims.verdict import PartFunction

FUNCTIONS: dict[str, PartFunction] = {f"erratum-{name}": erratum for name, erratum in ERRATA.items()}


def part_function(function: PartFunction) -> PartFunction:
    """Register a function under its own name."""
    FUNCTIONS[function.__name__] = function
    return function


# ---- regularization --------------------------------------------------------------------------------------------------


@part_function
def gaps_of_parts_differ(part: Part, record: Record) -> Outcome:
    """Whether the interval of gap(WN + mean-only BN) − gap(WN + variance-only BN) is without 0, whichever is larger.

    With one seed one of them has to be three times the other.
    """
    gaps = record.numbers.get("gap", {})
    left, right = paired(gaps.get("wn+mean-bn", {}), gaps.get("wn+var-bn", {}))
    if not left:
        return Outcome(part, "not run", f"the record of {record.experiment} has no gap of wn+mean-bn and wn+var-bn")
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


# ---- meanfield -------------------------------------------------------------------------------------------------------


def _near(form: str, low: float, high: float, is_judged: Callable[[str], bool]) -> PartFunction:
    """Whether λ_max by theory is so near to that of drawn networks, with the interval of their mean, in each setting.

    Args:
        form: The theory: `printed` or `exact`.
        low: The lowest that predicted over measured may be.
        high: The highest.
        is_judged: Which settings are looked at: `γ=1`, ..., `vanilla`.
    """

    def near(part: Part, record: Record) -> Outcome:
        drawn, ratios = record.numbers.get("largest eigenvalue", {}), record.numbers.get("predicted over measured", {})
        found: dict[str, Interval] = {}
        for setting, ratio in ratios.get(form, {}).items():
            values = list(drawn.get(f"drawn-{setting}", {}).values())
            if values and is_judged(setting):
                mean, measured = fmean(values), Interval.of(values)
                ends = ratio * mean / measured.high, ratio * mean / measured.low
                found[setting] = Interval(ratio, *ends, measured.seeds)
        if not found:
            return Outcome(part, "not run", f"the record of {record.experiment} has no λ_max by {form} theory")

        def away(setting: str) -> float:
            one = found[setting]
            return max(math.log(one.high / high), math.log(low / one.low))

        surely = all(low <= one.low and one.high <= high and one.seeds > 1 for one in found.values())
        inside = all(low <= one.mean <= high for one in found.values())
        more = min(one.seeds for one in found.values()) < MOST_SEEDS
        state: State = "met" if surely else "undecided" if inside and more else "not met"
        farthest = max(found, key=away)
        one = found[farthest]
        sentence = f"farthest of {len(found)} settings: {one.mean:.4g} ({one.low:.3g} to {one.high:.3g}) at {farthest}"
        return Outcome(part, state, f"{sentence}, {one.seeds} draws", one)

    return near


def _everywhere(setting: str) -> bool:
    return True


FUNCTIONS["printed_theory_near"] = _near("printed", 0.8, 1.25, _everywhere)
FUNCTIONS["exact_theory_near"] = _near("exact", 0.8, 1.25, _everywhere)
FUNCTIONS["exact_theory_within_a_tenth"] = _near(
    "exact", 0.9, 1.1, lambda setting: setting in ("γ=0.5", "γ=1", "γ=2", "γ=3")
)
