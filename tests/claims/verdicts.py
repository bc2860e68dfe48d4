"""All verdicts by the records that come with trimtab, a line each; `python -m tests.claims.verdicts` writes them."""

from pathlib import Path

from trimtab.claims import RecordStore, claims, verdicts

FILE = Path(__file__).parent / "verdicts.txt"
HOW = "PYTHONPATH=src python -m tests.claims.verdicts"


def lines() -> list[str]:
    """Claim, size, verdict and flags of each claim at each size at which there are records for it."""
    store, found = RecordStore(), []
    for claim in claims().values():
        for size, verdict in verdicts(claim, store).items():
            flags = f" [{', '.join(verdict.flags)}]" if verdict.flags else ""
            corrected = f"; corrected form: {verdict.corrected_state}" if verdict.corrected_state else ""
            found.append(f"{claim.id} {size}: {verdict.state}{flags}{corrected}")
    return found


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
