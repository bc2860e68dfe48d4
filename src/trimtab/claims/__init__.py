"""The claims of the papers, each with a criterion, an experiment and a computed verdict.

Claims are data (`declarations/`), a TOML file for each block of the ledger. Experiments are code (`experiments/`): one
set of runs decides many claims. An experiment leaves a record of numbers (`results/`), and verdicts are computed from
records by `verdict.py`, so that they can be computed again at any time.
"""

from trimtab.claims.claim import Block, Claim
from trimtab.claims.declarations import blocks, claim_named, claims
from trimtab.claims.judging import Outcome
from trimtab.claims.record import SIZES, Record
from trimtab.claims.store import RecordStore
from trimtab.claims.verdict import VERDICTS, Verdict

__all__ = [
    "SIZES",
    "VERDICTS",
    "Block",
    "Claim",
    "Outcome",
    "Record",
    "RecordStore",
    "Verdict",
    "best_first",
    "blocks",
    "claim_named",
    "claims",
    "verdict_on",
    "verdicts",
]


def verdict_on(claim: Claim, size: str, store: RecordStore) -> Verdict:
    """The verdict on a claim at a size, by the records of a store."""
    from trimtab.claims.functions import FUNCTIONS
    from trimtab.claims.verdict import judge

    return judge(claim, size, store, claims(), FUNCTIONS)


def verdicts(claim: Claim, store: RecordStore) -> dict[str, Verdict]:
    """The verdicts on a claim at all sizes at which its experiments have records."""
    found = {size: verdict_on(claim, size, store) for size in SIZES}
    return {size: verdict for size, verdict in found.items() if verdict.records or verdict.state != "not run"}


def best_first(claim: Claim, store: RecordStore) -> list[Verdict]:
    """The verdicts on a claim at all sizes at which it has one, the one that counts first: that at the largest size.

    What is not run at a size, since a record lacks something there, does not come before what was decided at a smaller
    one. If there is no record at all, the verdict at size small says why.
    """
    found = list(reversed(verdicts(claim, store).values()))
    found.sort(key=lambda verdict: verdict.state == "not run")  # the order is kept otherwise
    return found or [verdict_on(claim, "small", store)]
