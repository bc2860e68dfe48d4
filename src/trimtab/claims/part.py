"""The computable form of a criterion: one line of text for each of its parts.

    acc: bnp ≈ bn                     two cases of a measure, run by run with the same seeds
    gap: bn ≤ 0.7 × wn                with a factor
    acc: bn ≥ vanilla − 1             and a number beside it
    share of layers: all ≥ 0.8        a case and a number
    acc: bnp ≈ bn ± 2                 comparable within another margin than the usual one
    acc: bn ≤ chance + 2              chance is the accuracy of guessing
    exponent: bn in [-1.3, -0.7]      a case and a range
    drop @ fc-60-mnist: bn < bnp      of another experiment than the claim's own
    check centring                    a statement that was computed on random draws
    claim landscape-thm41             another claim holds
    all: acc: a > b; loss: a < b      several comparisons that are one part together
    any: early: a > b; acc: a > b     one of them is enough
    not: κ: ln ⪡ vanilla              the opposite of a comparison
    function rates_near_printed       a function of `trimtab.claims.functions`

A larger measure is not always a better one: `<` and `>` are about numbers. `≫` and `≪` are "significantly" and "much",
`≳` and `≲` are "slightly", `≈` is "comparable" and `⪡` is a clear improvement by a smaller number.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

COMPARATORS = (">", "<", "≥", "≤", "≫", "≪", "≳", "≲", "≈", "⪡")
_NUMBER = r"[-−]?(?:inf|\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
_CASE = r"[^\s\[\],]+"
_MEASURE = r"(?P<measure>[^:@]+?)(?: @ (?P<experiment>[\w-]+))?"
_COMPARED = re.compile(
    rf"{_MEASURE}: (?P<case>{_CASE}) (?P<op>[{''.join(COMPARATORS)}]) (?:(?P<factor>{_NUMBER}) × )?(?P<other>{_CASE})"
    rf"(?: (?P<sign>[-−+±]) (?P<offset>{_NUMBER}))?"
)
_IN_RANGE = re.compile(rf"{_MEASURE}: (?P<case>{_CASE}) in \[(?P<low>{_NUMBER}), (?P<high>{_NUMBER})\]")
_NAMED = re.compile(r"(?P<kind>check|claim|function) (?P<name>[\w-]+)(?: @ (?P<experiment>[\w-]+))?")

_JOINED = re.compile(r"(?P<kind>all|any|not): (?P<parts>.+: .+)")

Kind = Literal["compare", "range", "check", "claim", "function", "all", "any", "not"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a criterion.

    Attributes:
        text: As it was written.
        kind: What it is about.
        label: `a`, `b`, ... where there are several parts.
        experiment: Whose record it is judged by; None: the claim's own.
        measure: The name of the measure.
        case: The case on the left side.
        op: One of `COMPARATORS`.
        factor: Times the right side.
        other: The case on the right side; empty if that is a number.
        offset: The number on the right side, or what is added there.
        margin: Of what is comparable, if it is not the usual one.
        low: The lower end of the range.
        high: The upper end.
        name: Of the check, the claim or the function.
        parts: What is joined.
    """

    text: str
    kind: Kind
    label: str = ""
    experiment: str | None = None
    measure: str = ""
    case: str = ""
    op: str = ""
    factor: float = 1.0
    other: str = ""
    offset: float = 0.0
    margin: float | None = None
    low: float = 0.0
    high: float = 0.0
    name: str = ""
    parts: tuple["Part", ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Part":
        """A part from its text.

        Raises:
            ValueError: If it is none of the forms above.
        """
        if found := _JOINED.fullmatch(text):
            parts = tuple(map(cls.parse, found["parts"].split("; ")))
            if (found["kind"] == "not") != (len(parts) == 1):
                raise ValueError(f"part {text!r}: 'not' is for one comparison, 'all' and 'any' are for several")
            if any(part.kind in ("claim", "function") or part.experiment for part in parts):
                raise ValueError(f"part {text!r}: what is joined is of the claim's own experiment, without @")
            return cls(text, found["kind"], parts=parts)  # type: ignore[arg-type]
        if found := _NAMED.fullmatch(text):
            kind: Kind = found["kind"]  # type: ignore[assignment]
            return cls(text, kind, experiment=found["experiment"], name=found["name"])
        if found := _IN_RANGE.fullmatch(text):
            low, high = _number(found["low"]), _number(found["high"])
            if low > high:
                raise ValueError(f"part {text!r}: the range is empty; put the smaller number first")
            of, measure, case = found["experiment"], found["measure"], found["case"]
            return cls(text, "range", experiment=of, measure=measure, case=case, low=low, high=high)
        if found := _COMPARED.fullmatch(text):
            return cls._comparison(text, found)
        raise ValueError(f"part {text!r} is none of the forms that trimtab.claims.part describes")

    @classmethod
    def _comparison(cls, text: str, found: re.Match[str]) -> "Part":
        other, sign, margin = found["other"], found["sign"] or "+", None
        offset = _number(found["offset"] or "0") * (-1 if sign in "-−" else 1)
        if sign == "±":
            if found["op"] != "≈":
                raise ValueError(f"part {text!r}: a margin is for ≈ alone; leave it out")
            offset, margin = 0.0, offset
        if re.fullmatch(_NUMBER, other):
            if found["factor"] or offset:
                raise ValueError(f"part {text!r}: two numbers on the right side are one; write that")
            other, offset = "", _number(other)
        return cls(
            text,
            "compare",
            experiment=found["experiment"],
            measure=found["measure"],
            case=found["case"],
            op=found["op"],
            factor=_number(found["factor"] or "1"),
            other=other,
            offset=offset,
            margin=margin,
        )

    def labelled(self, label: str) -> "Part":
        """The same part with a label."""
        return replace(self, label=label)


def parse_parts(texts: list[str]) -> tuple[Part, ...]:
    """The parts of a criterion, labelled if there are several."""
    parts = [Part.parse(text) for text in texts]
    if len(parts) < 2:
        return tuple(parts)
    return tuple(part.labelled(_label(i)) for i, part in enumerate(parts))


def _label(index: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    letters = chr(ord("a") + index % 26)
    return letters if index < 26 else _label(index // 26 - 1) + letters


def _number(text: str) -> float:
    return float(text.replace("−", "-"))
