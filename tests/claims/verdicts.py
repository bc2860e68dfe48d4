"""All verdicts by the records that come with trimtab, a line each; `python -m tests.claims.verdicts` writes them."""

from collections.abc import Iterable
from pathlib import Path

from trimtab.claims import Claim, RecordStore, claims, verdicts

FILE = Path(__file__).parent / "verdicts.txt"
HOW = "PYTHONPATH=src python -m tests.claims.verdicts"


def lines(store: RecordStore, several: Iterable[Claim]) -> list[str]:
    """Claim, size, verdict and flags of each claim at each size at which there are records for it."""
    found = []
    for claim in several:
        for size, verdict in verdicts(claim, store).items():
            flags = f" [{', '.join(verdict.flags)}]" if verdict.flags else ""
            corrected = f"; corrected form: {verdict.corrected_state}" if verdict.corrected_state else ""
            found.append(f"{claim.id} {size}: {verdict.state}{flags}{corrected}")
    return found


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines(RecordStore(), claims().values())), encoding="utf-8")
