"""The ledger for readers: Markdown and one HTML page, made of claims, verdicts and records, and of nothing else."""

from trimtab.claims import RecordStore, best_first, blocks
from trimtab.claims.pages.markdown import markdown, readme_block, with_block
from trimtab.claims.pages.summary import Judged, JudgedBlock, judged

__all__ = ["Judged", "JudgedBlock", "judged", "judged_blocks", "markdown", "readme_block", "with_block"]


def judged_blocks(store: RecordStore) -> list[JudgedBlock]:
    """All blocks, with the verdicts by the records of a store."""
    return [judged(block, {claim.id: best_first(claim, store) for claim in block.claims}) for block in blocks()]
