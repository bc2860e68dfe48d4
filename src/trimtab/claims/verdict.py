"""Verdicts on claims, from what came out for the parts of their criteria, by the rules of the ledger."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.claims.claim import Claim
from trimtab.claims.judging import Outcome, State, judge_part
from trimtab.claims.needs import Records, what_decides, what_is_missing
from trimtab.claims.part import Part
from trimtab.claims.record import Record

VerdictState = Literal["holds", "holds in part", "does not hold", "undecided", "not applicable", "not run"]
VERDICTS: tuple[VerdictState, ...] = (
    *("holds", "holds in part", "does not hold", "undecided", "not applicable", "not run"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out for a claim at a size.

    Attributes:
        claim: Its id.
        size: At which size.
        state: What it is.
        outcomes: Of its parts.
        corrected: Of the parts of its corrected form.
        flags: `erratum`: the printed form does not hold, the corrected one does. `input scaling`: with standardized
            inputs the verdict would be another one. `neighbour`: other data or another network than the paper's.
        reason: Why it was not run, and what would run it.
        records: What it was judged by, by experiment.
        to_decide: What would decide the parts that are undecided: the command, and how long it takes.
    """

    claim: str
    size: str
    state: VerdictState
    outcomes: tuple[Outcome, ...]
    corrected: tuple[Outcome, ...]
    flags: tuple[str, ...]
    reason: str
    records: Mapping[str, Record]
    to_decide: str = ""

    @property
    def corrected_state(self) -> VerdictState | None:
        """The verdict on the corrected form; None if there is none."""
        return summed_up(self.corrected) if self.corrected else None


PartFunction = Callable[[Part, Record], Outcome]
"""A named function for a part that no comparator fits."""


def judge(
    claim: Claim,
    size: str,
    records: Records,
    claims: Mapping[str, Claim],
    functions: Mapping[str, PartFunction],
) -> Verdict:
    """The verdict on a claim at a size.

    Args:
        claim: The claim.
        size: The size.
        records: The records that there are.
        claims: All claims, for those that are derived from others.
        functions: The functions that parts can name.
    """
    if not claim.parts:
        return Verdict(claim.id, size, "not run", (), (), (), what_is_missing(claim, size, records, claims), {})
    found = {name: record for name in claim.experiments if (record := records.find(name, size)) is not None}
    origins: dict[str, Verdict] = {}

    def outcomes(parts: tuple[Part, ...], default: str | None) -> tuple[Outcome, ...]:
        several: list[Outcome] = []
        for part in parts:
            if part.kind == "claim":
                origins[part.name] = judge(claims[part.name], size, records, claims, functions)
                several.append(_of_claim(part, origins[part.name]))
                continue
            name = part.experiment or default
            record = None if name is None else found.get(name)
            if record is None:
                several.append(Outcome(part, "not run", f"experiment {name} was not run at size {size}"))
            elif part.kind == "function":
                several.append(functions[part.name](part, record))
            else:
                several += judge_part(part, record)
        return tuple(several)

    printed, corrected = outcomes(claim.parts, claim.experiment), outcomes(claim.corrected, claim.experiment)
    state = summed_up(printed)
    flags = []
    if corrected and state != "holds" and summed_up(corrected) == "holds":
        flags.append("erratum")
    if claim.other_inputs in found and state in _DECIDED:
        others = summed_up(outcomes(claim.parts, claim.other_inputs))
        if others in _DECIDED and others != state:
            flags.append("input scaling")
    if any(record.neighbour for record in found.values()):
        flags.append("neighbour")
    reason = ""
    if state == "not run":
        lacks = next(outcome.sentence for outcome in printed if outcome.state == "not run")
        reason = what_is_missing(claim, size, records, claims, lacks)
    named = [(outcome, outcome.part.experiment or claim.experiment or "") for outcome in printed]
    more = [what_decides(named, size, found), *(origin.to_decide for origin in origins.values())]
    to_decide = "; ".join(dict.fromkeys(filter(None, more)))
    return Verdict(claim.id, size, state, printed, corrected, tuple(flags), reason, found, to_decide)


_DECIDED: tuple[VerdictState, ...] = ("holds", "holds in part", "does not hold")


def summed_up(outcomes: tuple[Outcome, ...]) -> VerdictState:
    """The verdict on all parts."""
    states = [outcome.state for outcome in outcomes if outcome.state != "not applicable"]
    if not states:
        return "not applicable"
    if "not run" in states:
        return "not run"
    met, not_met = "met" in states, "not met" in states
    if met and not_met:
        return "holds in part"
    if "undecided" in states:
        return "undecided"
    return "holds" if met else "does not hold"


def _of_claim(part: Part, verdict: Verdict) -> Outcome:
    states: dict[VerdictState, State] = {
        "holds": "met",
        "holds in part": "not met",
        "does not hold": "not met",
        "undecided": "undecided",
        "not applicable": "not applicable",
        "not run": "not run",
    }
    sentence = f"{verdict.claim}: {verdict.state}" + (f", since {verdict.reason}" if verdict.reason else "")
    return Outcome(part, states[verdict.state], sentence)
