"""Claims beside their verdicts, and what is counted of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.claims.claim import Block, Claim
from trimtab.claims.judging import Outcome, chance_of_failing
from trimtab.claims.record import SIZES, Record
from trimtab.claims.verdict import VERDICTS, Verdict

PAPERS = {
    "bnp": "Lange, Helfrich, Ye: Batch Normalization Preconditioning (2022)",
    "landscape": "Santurkar, Tsipras, Ilyas, Mądry: How Does Batch Normalization Help Optimization? (2018)",
    "meanfield": "Mean-Field Analysis of Batch Normalization (2019)",
    "regularization": "Luo, Wang, Shao, Peng: Understanding Regularization in Batch Normalization (2018)",
    "cited": "What the papers report of others' work",
    "trimtab": "Claims of our own",
}
NOT_TO_RUN = "an experiment of theirs has not been run"
NO_NUMBER = "a record lacks a number that they need"
DERIVED = "they follow from claims that are not run"


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with its verdicts.

    Attributes:
        claim: The claim.
        best: The verdict at the largest size that decides it.
        others: Those at other sizes, the largest first.
    """

    claim: Claim
    best: Verdict
    others: tuple[Verdict, ...] = ()

    @property
    def not_run(self) -> bool:
        """Whether there is nothing to be said of it."""
        return self.best.state == "not run"


@dataclass(frozen=True, slots=True)
class JudgedBlock:
    """A block of claims with their verdicts."""

    block: Block
    rows: tuple[Judged, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """All records that these verdicts were computed from, each once; of an experiment the largest size first."""
        verdicts = [verdict for row in self.rows for verdict in (row.best, *row.others)]
        found = {(name, record.size): record for one in verdicts for name, record in one.records.items()}
        order = list(dict.fromkeys(name for name, _ in found))
        return tuple(found[name, size] for name in order for size in reversed(SIZES) if (name, size) in found)


def judged(block: Block, verdicts: Mapping[str, Sequence[Verdict]]) -> JudgedBlock:
    """A block with the verdicts on its claims, by id; the first one of each is the one that counts."""
    rows = [Judged(claim, verdicts[claim.id][0], tuple(verdicts[claim.id][1:])) for claim in block.claims]
    return JudgedBlock(block, tuple(rows))


@dataclass(frozen=True, slots=True)
class Count:
    """How many claims of a paper have which verdict.

    Attributes:
        paper: The paper.
        size: At which size; empty for all of them together.
        claims: How many.
        states: How many by verdict, in the order of `VERDICTS`.
    """

    paper: str
    size: str
    claims: int
    states: tuple[int, ...]


def counts(rows: Iterable[Judged]) -> list[Count]:
    """For each paper its claims by verdict, and below that those decided at each size; at the end the sum of all."""
    by_paper: dict[str, list[Judged]] = {}
    everything = list(rows)
    for row in everything:
        by_paper.setdefault(row.claim.paper, []).append(row)
    found = []
    for paper in sorted(by_paper, key=list(PAPERS).index):
        found += _counts_of(paper, by_paper[paper])
    return [*found, *_counts_of("all", everything)]


def _counts_of(paper: str, rows: Sequence[Judged]) -> list[Count]:
    by_size = {size: [row for row in rows if row.best.size == size and not row.not_run] for size in SIZES}
    return [
        _count(paper, "", rows),
        *(_count(paper, size, decided) for size, decided in by_size.items() if decided),
    ]


def _count(paper: str, size: str, rows: Sequence[Judged]) -> Count:
    number = Counter(row.best.state for row in rows)
    return Count(paper, size, len(rows), tuple(number[state] for state in VERDICTS))


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the criteria of all claims that were run.

    Attributes:
        states: How many are met, not met and so on.
        directions: How many compare two cases, seed by seed: these could be met by chance.
        directions_met: How many of these are met.
        directions_failed: How many are not met.
        opposed: How many of those have the whole interval on the other side.
        met_by_chance: How many directions would be expected to be met if no case differed from another, at most. By
            symmetry as many would be expected to have the whole interval on the other side.
        failed_by_chance: How many would be expected not to be met then, at least.
    """

    states: Mapping[str, int]
    directions: int
    directions_met: int
    directions_failed: int
    opposed: int
    met_by_chance: float
    failed_by_chance: float


def parts(rows: Iterable[Judged]) -> Parts:
    """Count the parts of the criteria of all claims that were run."""
    outcomes = [outcome for row in rows if not row.not_run for outcome in row.best.outcomes]
    directions = [outcome for outcome in outcomes if outcome.chance is not None and outcome.interval is not None]
    return Parts(
        states=Counter(outcome.state for outcome in outcomes),
        directions=len(directions),
        directions_met=sum(outcome.state == "met" for outcome in directions),
        directions_failed=sum(outcome.state == "not met" for outcome in directions),
        opposed=sum(outcome.opposed for outcome in directions),
        met_by_chance=sum(outcome.chance or 0.0 for outcome in directions),
        failed_by_chance=sum(chance_of_failing(outcome.interval.seeds) for outcome in directions if outcome.interval),
    )


def about_parts(counted: Parts) -> str:
    """The parts in words."""
    if not counted.states:
        return "No experiment has been run, so that no part of a criterion has been judged."
    states = [f"{counted.states[state]} {state}" for state in _STATES if counted.states.get(state)]
    text = (
        f"The criteria of the claims that were run have {_number(sum(counted.states.values()), 'part')}: "
        f"{', '.join(states)}. "
    )
    if not counted.directions:
        return text + "None of them compares two cases seed by seed, so that none is met by chance."
    return text + (
        f"{counted.directions} of them compare two cases seed by seed, so that chance alone could decide them. "
        f"{counted.directions_met} are met; if no case differed from another, {counted.met_by_chance:.1f} at most "
        f"would be expected to be. {counted.directions_failed} are not met, {counted.opposed} of them with the whole "
        f"interval on the other side; by chance alone {counted.failed_by_chance:.1f} at least would be expected not to "
        f"be met, {counted.met_by_chance:.1f} at most of them so clearly."
    )


_STATES = ("met", "not met", "undecided", "not applicable", "not run")


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def reasons(rows: Iterable[Judged]) -> list[tuple[str, int, dict[str, int]]]:
    """Why claims are not run: the reason, how many claims, and which experiments or blocks with how many of them.

    The most frequent reason comes first.
    """
    grouped: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        if row.not_run:
            reason, where = _reason(row)
            grouped.setdefault(reason, []).append(where)
    ordered = sorted(grouped.items(), key=lambda each: -len(each[1]))
    return [(reason, len(found), dict(Counter(one for where in found for one in where))) for reason, found in ordered]


def _reason(row: Judged) -> tuple[str, tuple[str, ...]]:
    """Why a claim is not run, and the experiments or the block that this is about."""
    claim, verdict = row.claim, row.best
    missing = [outcome.part for outcome in verdict.outcomes if outcome.state == "not run"]
    if not missing:
        return verdict.reason, (claim.block,)
    wanted = [part.experiment or claim.experiment or "" for part in missing if part.kind != "claim"]
    lacking = tuple(dict.fromkeys(name for name in wanted if name not in verdict.records))
    if lacking:
        return NOT_TO_RUN, lacking
    return (NO_NUMBER, tuple(dict.fromkeys(wanted))) if wanted else (DERIVED, (claim.block,))


def short(row: Judged) -> str:
    """The verdict in a few words: holds (small) [erratum]."""
    return verdict_text(row.best)


def verdict_text(verdict: Verdict) -> str:
    """A verdict with its size and its flags."""
    if verdict.state == "not run":
        return "not run"
    flags = f" [{', '.join(verdict.flags)}]" if verdict.flags else ""
    return f"{verdict.state} ({verdict.size}){flags}"


def place_of(claim: Claim) -> str:
    """Where it is in the paper; a bare number is a section."""
    return f"Sec. {claim.place}" if claim.place[:1].isdigit() else claim.place


def counterexample(outcome: Outcome, records: Mapping[str, Record], default: str | None) -> str:
    """The first draw that violates the check of a part; empty if there is none."""
    name = outcome.part.experiment or default
    if outcome.part.kind != "check" or name is None or name not in records:
        return ""
    check = records[name].checks.get(outcome.part.name)
    if check is None or not check.counterexample:
        return ""
    return "first counterexample: " + ", ".join(f"{key} {_value(value)}" for key, value in check.counterexample.items())


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def about_record(record: Record) -> str:
    """With what and when a record was made."""
    commit = f", commit {record.commit}" if record.commit else ""
    return f"{record.machine}, {record.date}, {record.seconds:.3g} s{commit}"
