"""What a comparison shows, in one sentence, whatever it shows."""

from collections.abc import Sequence
from statistics import fmean

from trimtab.records import Cell

NAMES = {"vanilla": "the plain network", "bn": "BatchNorm", "ln": "LayerNorm", "bnp": "BNP"}


def conclusion(cells: Sequence[Cell], subject: str = "bnp", small: int = 4) -> str:
    """How often the subject is best, and how far it is from each other method at small batch sizes."""
    places: dict[tuple[str, int], dict[str, float]] = {}
    for cell in cells:
        if cell.mean is not None:
            places.setdefault((cell.network, cell.batch_size), {})[cell.method] = cell.mean
    contested = {place: means for place, means in places.items() if subject in means}
    best = [means for means in contested.values() if means[subject] == max(means.values())]
    ties = sum(list(means.values()).count(means[subject]) > 1 for means in best)
    sentence = f"{_name(subject)} has the highest mean test accuracy in {len(best)} of {len(contested)} settings"
    if ties:
        sentence += f" ({ties} of them a tie)"

    sizes = sorted({size for _, size in contested if size <= small}, reverse=True)
    others = [method for method in dict.fromkeys(cell.method for cell in cells) if method != subject]
    distances = []
    for method in others:
        both = [m for (_, size), m in contested.items() if size in sizes and method in m]
        if both:
            distance = 100 * fmean(means[subject] - means[method] for means in both)
            side = "above" if distance >= 0 else "below"
            distances.append(f"{abs(distance):.1f} points {side} {_name(method)}")
    if distances:
        label = "batch size" if len(sizes) == 1 else "batch sizes"
        sentence += f"; over the {label} {_and(sizes)} it is on average {_and(distances)}"
    return sentence + "."


def _name(method: str) -> str:
    return NAMES.get(method, method)


def _and(words: Sequence[object]) -> str:
    *front, last = map(str, words)
    return f"{', '.join(front)} and {last}" if front else last
