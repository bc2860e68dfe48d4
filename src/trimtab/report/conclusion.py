"""What a comparison shows, in one sentence, whatever it shows."""

from collections.abc import Sequence
from statistics import fmean

from trimtab.records import Cell

NAMES = {"vanilla": "the plain network", "bn": "BatchNorm", "ln": "LayerNorm", "bnp": "BNP"}


def conclusion(cells: Sequence[Cell], subject: str = "bnp", small: int = 4) -> str:
    """How often the subject is best, and how far it is from each other method at small batch sizes."""
    places = {(cell.network, cell.batch_size): {} for cell in cells}  # type: dict[tuple[str, int], dict[str, float]]
    for cell in cells:
        if cell.mean is not None:
            places[cell.network, cell.batch_size][cell.method] = cell.mean
    contested = [means for means in places.values() if subject in means]
    wins = sum(means[subject] == max(means.values()) for means in contested)
    parts = []
    for method in dict.fromkeys(cell.method for cell in cells):
        pairs = [
            (means[subject], means[method])
            for (_, size), means in places.items()
            if size <= small and subject in means and method in means
        ]
        if method != subject and pairs:
            gap = 100 * fmean(ours - theirs for ours, theirs in pairs)
            side = "above" if gap >= 0 else "below"
            parts.append(f"{abs(gap):.1f} points {side} {NAMES.get(method, method)}")
    sizes = sorted({size for _, size in places if size <= small}, reverse=True)
    listed = _and([str(size) for size in sizes])
    return (
        f"{NAMES.get(subject, subject)} has the highest mean test accuracy in {wins} of {len(contested)} settings; "
        f"over the batch sizes {listed} it is on average {_and(parts)}, where that trains."
    )


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
