"""What a record says of one part of a criterion.

A part is met or not met by a computed comparison. Runs with the same seed are paired; the interval of their mean
difference is a bootstrap from five seeds on and their range below that, so that all must agree. A part is undecided if
its interval contains the threshold while the mean is on the paper's side: it is to be run with more seeds, up to ten,
before it counts as not met. With one seed nothing is met but what is computed or counted, and differences of a factor
of three.
"""

import math
import re
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from trimtab.claims.intervals import Interval, chance_of_agreeing, paired
from trimtab.claims.part import Part
from trimtab.claims.record import Record, rounded

State = Literal["met", "not met", "undecided", "not applicable", "not run"]

MOST_SEEDS = 10
ENOUGH_WITH_ONE_SEED = 3.0
CLEARLY_SMALLER = 1.5
MUCH = {"points": 2.0, "loss": 0.1, "time": 0.1, "factor": 1.0, "exact": 1.0}
"""A difference that is significant: in points, otherwise as a share of the right side."""
ROUNDING = 1e-6
"""A tolerance above this is part of what a check asks for, and is told."""
COMPARABLE = {"points": 1.0, "loss": 0.1, "time": 0.1, "factor": 0.1, "exact": 0.1}
"""A mean difference that is none; the interval may reach twice as far."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out for one part.

    Attributes:
        part: The part.
        state: What it is.
        sentence: The numbers, or why there are none.
        interval: Of the difference, or of the number itself.
        chance: How likely it would be met if there were no difference; None if that is not known.
        opposed: Whether the whole interval of a comparison is on the other side than the one that is claimed.
    """

    part: Part
    state: State
    sentence: str
    interval: Interval | None = None
    chance: float | None = None
    opposed: bool = False


def chance_of_failing(seeds: int) -> float:
    """How likely a comparison is not met if there is no difference.

    The mean is on the other side every second time. With as many seeds as are asked for at most, what is not surely on
    the right side is not met either. Where a difference has to have a size, it is likelier still.
    """
    return 0.5 if seeds < MOST_SEEDS else 1 - chance_of_agreeing(seeds)


def judge_part(part: Part, record: Record) -> list[Outcome]:
    """What a record says of a part: one outcome, or two for "slightly", whose size is a part of its own."""
    if part.kind == "check":
        return [_of_check(part, record)]
    if part.parts:
        return [_joined(part, [one for each in part.parts for one in judge_part(each, record)], record)]
    measure = record.numbers.get(part.measure)
    for case in (part.case, part.other):
        if measure is None or (case and case != "chance" and not measure.get(case)):
            what = f"no {part.measure}" if measure is None else f"no {part.measure} of {case}"
            return [Outcome(part, "not run", f"the record of {record.experiment} has {what}")]
    if part.other == "chance" and record.chance is None:
        return [Outcome(part, "not run", f"the record of {record.experiment} has no accuracy of guessing")]
    assert measure is not None
    if part.kind == "range":
        return [_of_range(part, record, list(measure[part.case].values()))]
    if _is_threshold_in_points(part, record) and (part.other in ("", "chance") or part.offset or part.op == "≈"):
        return [Outcome(part, "not applicable", f"a threshold in points, with {record.neighbour}")]
    if part.other in ("", "chance"):
        left = list(measure[part.case].values())
        right = [record.chance or 0.0 if part.other == "chance" else 0.0] * len(left)
    else:
        left, right = paired(measure[part.case], measure[part.other])
        if not left:
            return [Outcome(part, "not run", f"{part.case} and {part.other} have no seed in common")]
    # Rounded: 3 × 0.1 is 0.30000000000000004, which 0.3 would be below.
    right = [rounded(part.factor * value + part.offset, 12) for value in right]
    return [_without_diverged(one, record) for one in _compared(part, record, left, right)]


def _without_diverged(outcome: Outcome, record: Record) -> Outcome:
    """A run that diverged has no drop and no gap: nothing is met by the other seeds alone."""
    part = outcome.part
    name = next((name for name in ("drop", "gap") if re.match(rf"{name}\b", part.measure)), None)
    if name is None:
        return outcome
    losses = record.numbers.get("vloss" + part.measure.removeprefix(name), {})
    lost = [
        f"{case} diverged with seed {seed}"
        for case in (part.case, part.other)
        for seed, loss in losses.get(case, {}).items()
        if math.isinf(loss) and seed not in record.numbers[part.measure][case]
    ]
    if not lost:
        return outcome
    state, seeds = outcome.state, 1 if outcome.interval is None else outcome.interval.seeds
    told = f"{outcome.sentence}; {', '.join(lost)}, and has no {name}"
    return replace(outcome, state=_state(True, False, seeds) if state == "met" else state, sentence=told)


_MOST_DECISIVE: dict[str, tuple[State, ...]] = {
    "all": ("not run", "not met", "undecided", "met", "not applicable"),
    "any": ("met", "undecided", "not run", "not met", "not applicable"),
    "not": ("not run", "not met", "undecided", "met", "not applicable"),
}
_OPPOSITE: dict[State, State] = {"met": "not met", "not met": "met"}


def _joined(part: Part, found: list[Outcome], record: Record) -> Outcome:
    """What came out for several comparisons together, or for the opposite of one."""
    state = min((one.state for one in found), key=_MOST_DECISIVE[part.kind].index)
    if part.kind == "not":
        state = _OPPOSITE.get(state, state)
        if state == "met" and (interval := found[0].interval) is not None:
            if math.isnan(interval.mean) or math.isnan(interval.low):  # what is no number shows nothing
                state = "not met"
            elif interval.seeds == 1 and record.units.get(part.parts[0].measure) != "exact":
                state = "undecided"
        return replace(found[0], part=part, state=state, chance=None)
    return Outcome(part, state, "; ".join(f"{one.part.measure}: {one.sentence}" for one in found))


def _of_check(part: Part, record: Record) -> Outcome:
    check = record.checks.get(part.name)
    if check is None:
        return Outcome(part, "not run", f"the record of {record.experiment} has no check {part.name}")
    what = "cases" if "cases" in check.parameters else "draws"
    sentence = f"{check.holds} of {check.draws} {what}"
    if {check.left, check.right} - {0.0, 1.0}:  # else it is true or false, and has no sides
        nearest = "nearest" if check.holds == check.draws else "worst"
        sentence += f"; {nearest}: {check.left:.6g} {check.relation} {check.right:.6g}"
        tolerance = check.parameters.get("tolerance", 0.0)
        if tolerance > ROUNDING:
            sentence += f" within {100 * tolerance:g} %"
    if check.counterexample and "case" in check.counterexample:
        sentence += f"; the first that does not hold: {check.counterexample['case']}"
    return Outcome(part, "met" if check.holds == check.draws else "not met", sentence)


def _of_range(part: Part, record: Record, values: list[float]) -> Outcome:
    if _is_threshold_in_points(part, record):
        return Outcome(part, "not applicable", f"a threshold in points, with {record.neighbour}")
    interval = _interval(values, record.units[part.measure])
    inside = part.low <= interval.mean <= part.high
    if record.units[part.measure] == "exact":
        met = all(part.low <= value <= part.high for value in values)
        return Outcome(part, "met" if met else "not met", _number_of(part.case, interval), interval)
    surely = part.low <= interval.low and interval.high <= part.high and interval.seeds > 1
    return Outcome(part, _state(inside, surely, interval.seeds), _number_of(part.case, interval), interval)


def _compared(part: Part, record: Record, left: list[float], right: list[float]) -> list[Outcome]:
    """A comparison of numbers with others, pair by pair."""
    unit = record.units[part.measure]
    if part.op == "⪡":
        return [_clearly_smaller(part, left, right)]
    sign = 1.0 if part.op in ">≥≫≳≈" else -1.0
    differences = [_difference(a, b) * sign for a, b in zip(left, right, strict=True)]
    interval = _interval(differences, unit)
    sentence = _comparison(part, left, right, unit)
    if part.op == "≈":
        return [_comparable(part, left, right, unit, sentence)]
    if unit == "exact":
        met = all(d > 0 or (d == 0 and part.op in "≥≤") for d in differences) and _is_large_enough(
            part, left, right, unit
        )
        return [Outcome(part, "met" if met else "not met", sentence, interval)]
    chance = chance_of_agreeing(interval.seeds) if part.other not in ("", "chance") else None
    allowed = part.op in "≥≤"
    on_the_side = interval.mean > 0 or (allowed and interval.mean == 0)
    surely = interval.low > 0 or (allowed and interval.low == 0)
    if interval.seeds == 1:
        surely = surely and unit != "points" and _is_a_factor(left[0], right[0], sign)
    neighbour = _is_threshold_in_points(part, record)
    if part.op in "≫≪" and not neighbour:
        enough = _is_large_enough(part, left, right, unit)
        on_the_side, surely = on_the_side and enough, surely and enough
    opposed = interval.seeds > 1 and interval.high < 0
    direction = Outcome(part, _state(on_the_side, surely, interval.seeds), sentence, interval, chance, opposed)
    if part.op in "≳≲" and direction.state == "met":
        if neighbour:
            return [direction, Outcome(part, "not applicable", f"its size, with {record.neighbour}")]
        small = abs(_relative(left, right, unit)) <= MUCH["points" if unit == "points" else "loss"]
        return [direction, Outcome(part, "met" if small else "not met", f"its size: {sentence}", interval)]
    return [direction]


def _clearly_smaller(part: Part, left: list[float], right: list[float]) -> Outcome:
    ratios = [_ratio(b, a) for a, b in zip(left, right, strict=True)]
    # Neither a median nor a minimum is sure to see what is no number.
    of_medians = math.nan if any(map(math.isnan, ratios)) else _ratio(median(right), median(left))
    interval = Interval(of_medians, min(ratios), max(ratios), len(ratios))
    needed = ENOUGH_WITH_ONE_SEED if len(ratios) == 1 else CLEARLY_SMALLER
    surely = interval.low >= needed and of_medians >= needed
    sentence = f"{part.case} is smaller by a factor of {of_medians:.3g}{_range(interval)}"
    state = _state(of_medians >= CLEARLY_SMALLER, surely, interval.seeds)
    opposed = interval.seeds > 1 and interval.high < 1
    return Outcome(part, state, sentence, interval, chance_of_agreeing(len(ratios)), opposed)


def _comparable(part: Part, left: list[float], right: list[float], unit: str, sentence: str) -> Outcome:
    margin = COMPARABLE[unit] if part.margin is None else part.margin
    if unit == "points":
        differences = [_difference(a, b) for a, b in zip(left, right, strict=True)]
    else:
        differences = [_ratio(a, b) - 1 for a, b in zip(left, right, strict=True)]
    interval = Interval.of(differences)
    near = abs(_relative(left, right, unit)) <= margin
    surely = near and -2 * margin <= interval.low and interval.high <= 2 * margin
    if interval.seeds == 1 and unit != "exact":
        surely = False
    return Outcome(part, _state(near, surely, interval.seeds), sentence, interval)


def _interval(values: list[float], unit: str) -> Interval:
    """Of seeds, where the mean may be; of computed numbers, which all are judged, their range."""
    if unit == "exact":
        return Interval(fmean(values), min(values), max(values), len(values))
    return Interval.of(values)


def _state(on_the_papers_side: bool, surely: bool, seeds: int) -> State:
    if surely:
        return "met"
    return "undecided" if on_the_papers_side and seeds < MOST_SEEDS else "not met"


def _is_large_enough(part: Part, left: list[float], right: list[float], unit: str) -> bool:
    """Whether a difference is "significant", where that is claimed."""
    if part.op not in "≫≪":
        return True
    if unit in ("factor", "exact"):
        larger, smaller = (left, right) if part.op == "≫" else (right, left)
        return _ratio(fmean(larger), fmean(smaller)) >= 2
    return abs(_relative(left, right, unit)) >= MUCH[unit]


def _is_threshold_in_points(part: Part, record: Record) -> bool:
    """Whether it is about points of accuracy with other data or another network, where only directions are judged."""
    return bool(record.neighbour) and record.units[part.measure] == "points"


def _is_a_factor(left: float, right: float, sign: float) -> bool:
    larger, smaller = (left, right) if sign > 0 else (right, left)
    return smaller > 0 and _ratio(larger, smaller) >= ENOUGH_WITH_ONE_SEED * (1 - 1e-9)  # 0.3 is three times 0.1


def _difference(left: float, right: float) -> float:
    return 0.0 if left == right else left - right  # of two infinities, too


def _ratio(left: float, right: float) -> float:
    if left == right:
        return 1.0
    return left / right if right else math.copysign(math.inf, left)


def _relative(left: list[float], right: list[float], unit: str) -> float:
    """The mean difference: in points, otherwise as a share of the right side."""
    if unit == "points":
        return _difference(fmean(left), fmean(right))
    return _ratio(fmean(left), fmean(right)) - 1


def _comparison(part: Part, left: list[float], right: list[float], unit: str) -> str:
    words = part.other if part.factor == 1 and not part.offset else "the right side"
    against = f"{fmean(right):.4g}" + (f" ({words})" if part.other else "")
    interval = _interval([_difference(a, b) for a, b in zip(left, right, strict=True)], unit)
    count = f", {interval.seeds} {'seed' if interval.seeds == 1 else 'seeds'}" if unit != "exact" else ""
    return f"{part.case} {fmean(left):.4g}, against {against}: {interval.mean:+.3g}{_range(interval)}{count}"


def _number_of(case: str, interval: Interval) -> str:
    return f"{case} {interval.mean:.4g}{_range(interval)}"


def _range(interval: Interval) -> str:
    return "" if interval.low == interval.high else f" ({interval.low:.3g} to {interval.high:.3g})"
