"""Named functions for parts of criteria that no comparator fits.

A function takes the part that names it and the record of the experiment, and returns what came out.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from trimtab.claims.errata import ERRATA
from trimtab.claims.intervals import Interval, paired
from trimtab.claims.judging import ENOUGH_WITH_ONE_SEED, MOST_SEEDS, Outcome, State, judge_part
from trimtab.claims.part import Part
from trimtab.claims.record import Record
from trimtab.claims.verdict import PartFunction

FUNCTIONS: dict[str, PartFunction] = {f"erratum-{name}": erratum for name, erratum in ERRATA.items()}


def part_function(function: PartFunction) -> PartFunction:
    """Register a function under its own name."""
    FUNCTIONS[function.__name__] = function
    return function


# ---- bnp -------------------------------------------------------------------------------------------------------------

_OPPOSITE: dict[State, State] = {"met": "not met", "not met": "met"}


def _not(text: str, part: Part, record: Record) -> Outcome:
    """What came out for the opposite of a comparison."""
    (found,) = judge_part(Part.parse(text), record)
    return replace(found, part=part, state=_OPPOSITE.get(found.state, found.state), chance=None)


def _one_of(texts: tuple[str, ...], part: Part, record: Record) -> Outcome:
    """What came out for comparisons of which one is enough."""
    found = [outcome for text in texts for outcome in judge_part(Part.parse(text), record)]
    order: tuple[State, ...] = ("met", "undecided", "not run", "not met", "not applicable")
    state = min((outcome.state for outcome in found), key=order.index)
    sentence = "; ".join(f"{text.partition(':')[0]}: {each.sentence}" for text, each in zip(texts, found, strict=True))
    return Outcome(part, state, sentence)


def _all_of(texts: tuple[str, ...], part: Part, record: Record) -> Outcome:
    """What came out for comparisons that are one part together, of which each is needed."""
    found = [outcome for text in texts for outcome in judge_part(Part.parse(text), record)]
    order: tuple[State, ...] = ("not run", "not met", "undecided", "met", "not applicable")
    state = min((outcome.state for outcome in found), key=order.index)
    return Outcome(part, state, "; ".join(f"{each.part.measure}: {each.sentence}" for each in found))


@part_function
def bn_works_at_4_and_8(part: Part, record: Record) -> Outcome:
    """BN is at most a point below the vanilla network at batch sizes 4 and 8."""
    return _all_of(tuple(f"acc at batch {size}: bn ≥ vanilla − 1" for size in (4, 8)), part, record)


@part_function
def brn_works_at_3_4_and_8(part: Part, record: Record) -> Outcome:
    """Batch Renorm is at most a point below the vanilla network at batch sizes 3, 4 and 8."""
    return _all_of(tuple(f"acc at batch {size}: brn ≥ vanilla − 1" for size in (3, 4, 8)), part, record)


@part_function
def both_ahead_of_gn(part: Part, record: Record) -> Outcome:
    """BNP with GN is ahead of GN, before the decay and at the end."""
    return _all_of(tuple(f"{measure}: bnp+gn > gn" for measure in ("before", "acc")), part, record)


@part_function
def both_ahead_of_bnp(part: Part, record: Record) -> Outcome:
    """BNP with GN is ahead of BNP alone, before the decay and at the end."""
    return _all_of(tuple(f"{measure}: bnp+gn > bnp" for measure in ("before", "acc")), part, record)


_NETWORKS = ("mlp3x100", "cnn5")


@part_function
def bnp_clearly_smaller(part: Part, record: Record) -> Outcome:
    """BNP clearly improves the condition number of both networks."""
    return _all_of(tuple(f"κ in {network}: vanilla+bnp ⪡ vanilla" for network in _NETWORKS), part, record)


@part_function
def divided_below_preconditioned(part: Part, record: Record) -> Outcome:
    """In both networks norms of blocks are clearly more alike with 1/q than without."""
    measure = "largest over smallest norm in"
    return _all_of(tuple(f"{measure} {network}: divided ⪡ preconditioned" for network in _NETWORKS), part, record)


@part_function
def divided_below_hessian(part: Part, record: Record) -> Outcome:
    """In both networks norms of blocks are clearly more alike with 1/q than those of the Hessian."""
    measure = "largest over smallest norm in"
    return _all_of(tuple(f"{measure} {network}: divided ⪡ hessian" for network in _NETWORKS), part, record)


@part_function
def ln_not_clearly_smaller(part: Part, record: Record) -> Outcome:
    """LN does not clearly improve the condition number of the dense network."""
    return _not("κ in mlp3x100: ln ⪡ vanilla", part, record)


@part_function
def gn_not_clearly_smaller(part: Part, record: Record) -> Outcome:
    """GN does not clearly improve the condition number of the CNN."""
    return _not("κ in cnn5: gn ⪡ vanilla", part, record)


@part_function
def bn_ahead_of_stopgrad_fc(part: Part, record: Record) -> Outcome:
    """BN is ahead of BN without gradient through its statistics, early or at the end, in the dense network."""
    return _one_of(tuple(f"{each}, fc at 60: bn > bn-stopgrad" for each in ("early", "acc")), part, record)


@part_function
def bn_ahead_of_stopgrad_cnn(part: Part, record: Record) -> Outcome:
    """The same in the CNN."""
    return _one_of(tuple(f"{each}, cnn at 128: bn > bn-stopgrad" for each in ("early", "acc")), part, record)


# ---- regularization --------------------------------------------------------------------------------------------------


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
