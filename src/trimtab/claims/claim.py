"""A statement of a paper as a claim that can be run and can fail."""

import hashlib
from dataclasses import dataclass
from typing import Literal

from trimtab.claims.part import Part

Paper = Literal["bnp", "landscape", "meanfield", "regularization", "trimtab"]
ClaimKind = Literal["T", "M", "C", "S"]
KINDS: dict[str, str] = {
    "T": "theorem or formula, computed",
    "M": "measured on a network",
    "C": "training curves compared",
    "S": "timed",
}


@dataclass(frozen=True, slots=True)
class Superseded:
    """A criterion that was replaced after a run.

    Attributes:
        criterion: In words.
        parts: Its computable form.
        digest: Of both.
        verdict: What had come out.
        date: When it was replaced.
        reason: Why.
    """

    criterion: str
    parts: tuple[str, ...]
    digest: str
    verdict: str
    date: str
    reason: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, with the criterion that was written before its run.

    Attributes:
        id: Its name.
        paper: One of the four papers; `trimtab` for claims of our own.
        block: The number of the block of claims that it is in.
        place: In the paper.
        kind: One of `KINDS`.
        statement: What is claimed, in our words.
        criterion: When it is met, in words.
        digest: Of the criterion in words and in its computable form.
        parts: The computable form; empty if it cannot be run.
        corrected: Parts of a corrected form, where the printed one is a slip.
        experiment: Whose record it is judged by, unless a part names another.
        other_inputs: The same experiment with standardized inputs: whether that would turn the verdict.
        needs: Why it cannot be run at size small, or not at all, in a sentence.
        why: The likely reason for what came out, where it does not hold.
        seen: Whether an earlier run had been seen when the criterion was written. Then new seeds decide.
        disagrees: Why the criterion here is not the ledger's own, decided before the run; or what is wrong with the
            ledger's where that was seen after it, so that it is judged all the same.
        supersedes: Earlier criteria.
    """

    id: str
    paper: Paper
    block: str
    place: str
    kind: ClaimKind
    statement: str
    criterion: str
    digest: str
    parts: tuple[Part, ...]
    corrected: tuple[Part, ...]
    experiment: str | None
    other_inputs: str | None
    needs: str
    why: str
    seen: bool
    disagrees: str
    supersedes: tuple[Superseded, ...]

    @property
    def deciding(self) -> tuple[str, ...]:
        """The names of the experiments that its verdict is computed from; derived claims may have none."""
        named = [part.experiment or self.experiment for part in (*self.parts, *self.corrected) if part.kind != "claim"]
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @property
    def experiments(self) -> tuple[str, ...]:
        """The names of all its experiments: also that with standardized inputs, which stands beside."""
        return tuple(dict.fromkeys(name for name in [*self.deciding, self.other_inputs] if name is not None))


@dataclass(frozen=True, slots=True)
class Block:
    """Claims that share data, sizes and conditions.

    Attributes:
        number: As in `Claim.block`.
        paper: The paper, or `cited` for what the papers report of others' work.
        title: What the block is about.
        conditions: Data, the paper's settings and the sizes, in words.
        claims: In the order of the ledger.
    """

    number: str
    paper: str
    title: str
    conditions: str
    claims: tuple[Claim, ...]


SEEN = "an earlier run had been seen when the criterion was written; new seeds decide"
"""What is said of a claim that is marked so."""


def superseded(claim: Claim) -> list[str]:
    """A sentence or two on each criterion that was replaced after a run."""
    return [
        f"Until {old.date} the criterion was: {old.criterion} ({'; '.join(old.parts)}). It came out as: {old.verdict}. "
        f"It was replaced since {old.reason}"
        for old in claim.supersedes
    ]


def digest_of(criterion: str, parts: list[str], corrected: list[str]) -> str:
    """The digest by which a change of a criterion, in words or in its computable form, is seen."""
    return hashlib.sha256("\n".join([criterion, *parts, "--", *corrected]).encode()).hexdigest()[:12]
