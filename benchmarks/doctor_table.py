"""What benchmarks/doctor.py found, judged and told: which cases were ill, and what doctors said of them."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from doctor_cases import NAMED

Row = dict[str, Any]
HEALTHY = "(healthy)"
NOTHING = "(nothing)"
STALLED, FALLING = 0.98, 0.9
"""Of the loss: where a training has not begun, and where one that is in its last quarter still falls fast."""


@dataclass(frozen=True)
class Judged:
    """The trainings of one case, of all seeds.

    Attributes:
        rows: One for each seed.
        planted: What was planted in them.
        severity: From 1 to 3, or 0.
        variant: Of a healthy one.
        ill: Whether they ended worse than their twin, beyond the spread of its seeds.
        twin_loss: The twin's mean loss.
        pair: Whether two were planted; those of them that do not harm by themselves are left out of `planted`.
    """

    rows: tuple[Row, ...]
    planted: tuple[str, ...]
    severity: int
    variant: str
    ill: bool
    twin_loss: float
    pair: bool = False

    @property
    def truth(self) -> tuple[str, ...]:
        """What should be found."""
        return self.planted if self.ill else ()


def loss_of(row: Row) -> float:
    """The validation loss; infinite where it is no number."""
    return math.inf if row["loss"] is None else float(row["loss"])


def is_ill(losses: list[float], twins: list[float]) -> bool:
    """Whether each training ended worse than each of the twin, and the mean by more than the twin's spread."""
    if not losses or not twins or not max(twins) < math.inf:
        return False
    return min(losses) > max(twins) and fmean(losses) - fmean(twins) > max(twins) - min(twins)


def judged(rows: Iterable[Row]) -> list[Judged]:
    """Cases with all of their seeds and those of their twin.

    Where two illnesses are planted, only those are to be found that harm by themselves too, as severely planted.
    """
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "case":
            grouped[row["key"]].append(row)
    found = []
    for group in grouped.values():
        first = group[0]
        twins = grouped.get(first["twin"], [])
        if first["planted"] and len(twins) != len(group):
            continue  # not all done yet
        ill = bool(first["planted"]) and is_ill([*map(loss_of, group)], [*map(loss_of, twins)])
        twin_loss = fmean(map(loss_of, twins)) if twins else math.nan
        found.append(Judged(tuple(group), tuple(first["planted"]), first["severity"], first["variant"], ill, twin_loss))
    alone = {(_base(case), case.planted, case.severity) for case in found if case.ill and len(case.planted) == 1}
    return [
        replace(case, planted=tuple(n for n in case.planted if (_base(case), (n,), case.severity) in alone), pair=True)
        if len(case.planted) == 2
        else case
        for case in found
    ]


def _base(case: Judged) -> str:
    return str(case.rows[0]["key"]).partition("; ")[0]


def the_commonest(row: Row) -> list[str]:
    """A doctor who says one thing."""
    return ["learning-rate-too-high"]


def by_the_curve(row: Row) -> list[str]:
    """A doctor who looks at the training's loss, and knows two illnesses."""
    curve = row["curve"]
    if any(loss is None for loss in curve) or curve[-1] > STALLED * curve[0]:
        return ["learning-rate-too-high"]
    return ["learning-rate-too-low"] if curve[-1] < FALLING * curve[3 * len(curve) // 4] else []


DOCTORS: dict[str, Callable[[Row], list[str]]] = {
    "the doctor": lambda row: list(row["found"]),
    "always the commonest": the_commonest,
    "by the loss curve": by_the_curve,
}


def shares(cases: list[Judged], ask: Callable[[Row], list[str]], name: str, severity: int) -> tuple[int, int, int]:
    """Of the ill trainings with one illness: how many there are, found on top, and found at all."""
    rows = [row for case in cases if case.truth == (name,) and case.severity == severity for row in case.rows]
    answers = [ask(row) for row in rows]
    return len(rows), sum(found[:1] == [name] for found in answers), sum(name in found for found in answers)


def by_illness(cases: list[Judged], ask: Callable[[Row], list[str]]) -> list[str]:
    """A line for each illness, and the mean over illnesses at severities 2 and 3."""
    lines = ["| planted | " + " | ".join(f"severity {s}: on top, at all" for s in (1, 2, 3)) + " |", "|" + "---|" * 4]
    means: list[tuple[float, float]] = []
    for name in NAMED:
        cells, higher = [], []
        for severity in (1, 2, 3):
            count, top, found = shares(cases, ask, name, severity)
            there = any(case.planted == (name,) and case.severity == severity for case in cases)
            cells.append(f"{top}, {found} of {count}" if count else "no harm" if there else "–")
            if count and severity > 1:
                higher.append((top / count, found / count))
        if higher:
            means.append((fmean(top for top, _ in higher), fmean(found for _, found in higher)))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if means:
        top, found = fmean(t for t, _ in means), fmean(f for _, f in means)
        lines.append(f"\nMean over {len(means)} illnesses at severities 2 and 3: {top:.0%} on top, {found:.0%} at all.")
    return lines


def confusion(cases: list[Judged], ask: Callable[[Row], list[str]]) -> list[str]:
    """What was planted against what was on top."""
    counts: Counter[tuple[str, str]] = Counter()
    for case in cases:
        truth = " + ".join(case.truth) if case.truth else HEALTHY
        counts.update((truth, (ask(row) or [NOTHING])[0]) for row in case.rows)
    said = sorted({top for _, top in counts}, key=lambda name: (name != NOTHING, name))
    lines = ["| is \\ on top | " + " | ".join(said) + " |", "|" + "---|" * (len(said) + 1)]
    lines += [
        f"| {truth} | " + " | ".join(str(counts[truth, top] or "") for top in said) + " |"
        for truth in sorted({truth for truth, _ in counts})
    ]
    return lines


def false_alarms(cases: list[Judged], ask: Callable[[Row], list[str]], early: bool) -> list[str]:
    """How often something was found in what is healthy by intent, by kind."""
    lines = []
    healthy = [case for case in cases if not case.planted]
    looks = {"at the end": ask} | ({"a third of the way": lambda row: list(row["early"])} if early else {})
    for when, answer in looks.items():
        kinds: dict[str, list[list[str]]] = defaultdict(list)
        for case in healthy:
            kinds[case.variant or "tuned"] += [answer(row) for row in case.rows]
        lines += [f"False alarms, healthy, {when}: {_share(kinds)}.", *_by_kind(kinds)]
    return lines


def without_harm(cases: list[Judged], ask: Callable[[Row], list[str]]) -> list[str]:
    """How often something was found where what was planted did no harm, and whether it was that."""
    kinds: dict[str, list[list[str]]] = defaultdict(list)
    named, worse = 0, 0
    for case in cases:
        if case.planted and not case.truth:
            answers = [ask(row) for row in case.rows]
            kinds[case.planted[0]] += answers
            right = sum(case.planted[0] in answer for answer in answers)
            named += right
            worse += right * (fmean(map(loss_of, case.rows)) > case.twin_loss)
    if not kinds:
        return []
    told = f"{named} of them name what was planted, {worse} where trainings ended worse in the mean"
    return [f"Findings where what was planted did no harm: {_share(kinds)}; {told}.", *_by_kind(kinds)]


def _share(kinds: dict[str, list[list[str]]]) -> str:
    answers = [answer for each in kinds.values() for answer in each]
    wrong = sum(map(bool, answers))
    return f"{wrong} of {len(answers)} ({wrong / max(len(answers), 1):.1%})"


def _by_kind(kinds: dict[str, list[list[str]]]) -> list[str]:
    lines = []
    for kind, answers in kinds.items():
        names = Counter(name for answer in answers for name in answer)
        told = ", ".join(f"{name} {count}" for name, count in names.most_common())
        lines.append(f"- {kind}: {sum(map(bool, answers))} of {len(answers)}{': ' + told if told else ''}")
    return lines


def cures(rows: list[Row], cases: list[Judged]) -> list[str]:
    """How often the cure of what was on top helped an ill training."""
    by_key = {case.rows[0]["key"]: case for case in cases}
    tried, helped, half, right, right_helped, failed = 0, 0, 0, 0, 0, Counter[str]()
    for row in rows:
        case = by_key.get(row["key"])
        if row["kind"] != "cure" or case is None or not case.ill:
            continue
        if "failed" in row:
            failed[row["failed"]] += 1
            continue
        before = next(loss_of(each) for each in case.rows if each["seed"] == row["seed"])
        after = loss_of(row)
        better = after < before
        tried, helped = tried + 1, helped + better
        half += better and (math.isinf(before) or after <= (before + case.twin_loss) / 2)
        if row["of"] in case.truth:
            right, right_helped = right + 1, right_helped + better
    lines = [f"Cures of what was on top: {helped} of {tried} lowered the final validation loss"]
    lines[0] += f", {half} by half of the way to the twin's or more; where that was right, {right_helped} of {right}."
    lines += [f"- not applied, {count} times: {why}" for why, count in failed.most_common()]
    return lines


def both_found(cases: list[Judged]) -> str:
    """Of trainings with two illnesses, how many had one named, and how many both."""
    rows = [(row, case.truth) for case in cases if len(case.truth) > 1 for row in case.rows]
    named = [sum(name in row["found"] for name in truth) for row, truth in rows]
    told = f"both named in {named.count(2)}, one in {named.count(1)} of {len(rows)} trainings."
    return f"Two illnesses at once, each of which harms alone: {told}"


def table(rows: list[Row]) -> str:
    """All of it, as Markdown."""
    cases = judged(rows)
    single = [case for case in cases if not case.pair]
    ill, healthy = sum(bool(case.truth) for case in single), sum(not case.planted for case in single)
    harmless = len(single) - ill - healthy
    trainings = sum(len(case.rows) for case in cases)
    lines = [
        f"{trainings} trainings: {ill} cases with one illness that harms, {harmless} with one "
        f"that does not, {healthy} healthy, {len(cases) - len(single)} with two."
    ]
    for name, ask in DOCTORS.items():
        lines += [f"\n## {name.capitalize()}\n", *by_illness(single, ask)]
        lines += ["", *false_alarms(single, ask, early=name == "the doctor"), "", *without_harm(single, ask)]
        if name == "the doctor":
            lines += ["", *confusion(cases, ask), "", both_found(cases), "", *cures(rows, cases)]
    return "\n".join(lines)
