"""What `trimtab claims` prints of a claim: a line, a paragraph, JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.claims import Claim, Verdict


def line(claim: "Claim", verdict: "Verdict") -> str:
    """A claim in a line."""
    flags = f" [{', '.join(verdict.flags)}]" if verdict.flags else ""
    if verdict.state == "not run":
        return f"not run: {verdict.reason}"
    dates = max((record.date for record in verdict.records.values()), default="")
    return f"{verdict.state}{flags} ({verdict.size}{', ' + dates if dates else ''}): {claim.statement}"


def described(claim: "Claim", found: "Sequence[Verdict]", not_run_at: "Mapping[str, str]") -> list[str]:
    """A claim in lines; of the sizes that it has and was not run at, what they need."""
    from trimtab.claims.claim import SEEN, superseded

    lines = [f"{claim.id} ({claim.paper}, {claim.place})", claim.statement, f"Criterion: {claim.criterion}"]
    if claim.seen:
        lines.append(f"Seen before: {SEEN}.")
    for verdict in found:
        lines.append(
            f"At size {verdict.size}: {verdict.state}" + (f" [{', '.join(verdict.flags)}]" if verdict.flags else "")
        )
        if verdict.state == "not run" and not verdict.records:
            lines.append(f"  {verdict.reason}")
            continue
        if verdict.reason:
            lines.append(f"  {verdict.reason}")
        for outcome in verdict.outcomes:
            label = f"({outcome.part.label}) " if outcome.part.label else ""
            lines.append(f"  {label}{outcome.part.text}: {outcome.state}; {outcome.sentence}")
        lines += [f"  corrected form, {one.part.text}: {one.state}; {one.sentence}" for one in verdict.corrected]
        if verdict.to_decide:
            lines.append(f"  undecided: {verdict.to_decide}")
        for record in verdict.records.values():
            lines.append(f"  {record.command}; {record.date}, {record.seconds:.0f} s, {record.machine}")
            lines += [f"  {note}" for note in record.notes]
    shown = {verdict.size for verdict in found}
    lines += [f"At size {size}: not run; {what}" for size, what in not_run_at.items() if size not in shown]
    if claim.disagrees:
        lines.append(f"On the criterion: {claim.disagrees}")
    if claim.why:
        lines.append(f"Why: {claim.why}")
    return lines + superseded(claim)


def as_json(claim: "Claim", verdict: "Verdict", not_run_at: "Mapping[str, str]") -> dict[str, Any]:
    """A claim with a verdict as a JSON object, with what the sizes need that it was not run at."""
    return {
        "id": claim.id,
        "paper": claim.paper,
        "place": claim.place,
        "kind": claim.kind,
        "statement": claim.statement,
        "criterion": claim.criterion,
        "digest": claim.digest,
        "verdict": verdict.state,
        "size": verdict.size,
        "flags": list(verdict.flags),
        "reason": verdict.reason,
        "to_decide": verdict.to_decide,
        "seen": claim.seen,
        "supersedes": [asdict(old) for old in claim.supersedes],
        "disagrees": claim.disagrees,
        "why": claim.why,
        "not_run_at": dict(not_run_at),
        "corrected": verdict.corrected_state,
        "parts": [
            {
                "part": outcome.part.text,
                "state": outcome.state,
                "numbers": outcome.sentence,
                "interval": None if outcome.interval is None else asdict(outcome.interval),
            }
            for outcome in verdict.outcomes
        ],
        "records": {
            name: {"date": record.date, "command": record.command, "machine": record.machine, "commit": record.commit}
            for name, record in verdict.records.items()
        },
    }
