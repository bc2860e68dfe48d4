"""What a comparison shows, in a few sentences, whatever it shows."""

import math
from collections.abc import Mapping
from statistics import fmean

from trimtab.records import Comparison, Metric
from trimtab.report.standing import Row, Setting, best, complete, diverged, leaders, means, methods, rows
from trimtab.report.words import batch, counted, heading, listed, number

SUBJECT = "bnp"
SMALL = 4
Contested = Mapping[Setting, Row]


def conclusion(comparison: Comparison) -> str:
    """Who is best where, whether the seeds tell, and how far BNP is from the others at small batch sizes.

    Only settings in which no run is to come count.
    """
    metric = comparison.metric
    counting = {setting: row for setting, row in rows(comparison).items() if complete(row, comparison)}
    lost = {s for s, row in counting.items() if means(row) and all(_lost(row, method) for method in means(row))}
    contested = {s: row for s, row in counting.items() if len(means(row)) > 1 and s not in lost}
    sentences = []
    if contested:
        sentences += [_winners(contested, metric), *_doubts(contested, metric, comparison.seeds)]
        sentences += _distances(contested, metric, methods(comparison))
    elif not lost:
        sentences.append(_alone(comparison) if comparison.finished else "There are no two methods to compare yet.")
    if lost:
        sentences.append(f"In {counted(len(lost), 'setting')} every run diverged.")
    sentences += _reservations(comparison)
    if not comparison.finished:
        done = f"{len(counting)} of {counted(len(rows(comparison)), 'setting')}"
        sentences.append(f"The comparison is not finished: {done} complete.")
    return " ".join(sentences)


def _lost(row: Row, method: str) -> bool:
    return diverged(row[method]) == len(row[method].trials)


def _alone(comparison: Comparison) -> str:
    trained = [heading(m) for m in methods(comparison) if any(c.method == m and c.trials for c in comparison.cells)]
    if not trained:
        return "No method could be trained."
    return f"No setting has results of two methods to compare: there are those of {listed(trained)}."


def _winners(contested: Contested, metric: Metric) -> str:
    words = "highest mean test accuracy" if metric == "accuracy" else "lowest mean test loss"
    won: dict[str, dict[str, list[int]]] = {}
    for (network, size), row in contested.items():
        for method in _first(row, metric):
            won.setdefault(method, {}).setdefault(network, []).append(size)
    if len(contested) == 1:
        return f"{listed(map(heading, won))} {'has' if len(won) == 1 else 'have'} the {words}."
    parts = []
    for method in sorted(won, key=lambda method: -sum(map(len, won[method].values()))):
        where = [f"{network} at batch size {listed(map(batch, sizes))}" for network, sizes in won[method].items()]
        parts.append(f"{heading(method)} in {sum(map(len, won[method].values()))} ({'; '.join(where)})")
    ties = sum(len(_first(row, metric)) > 1 for row in contested.values())
    tied = f", {counted(ties, 'tie')} among them" if ties else ""
    return f"The {words} in {counted(len(contested), 'setting')}{tied}: {', '.join(parts)}."


def _first(row: Row, metric: Metric) -> list[str]:
    top = best(row, metric)
    return [method for method, mean in means(row).items() if mean == top]


def _doubts(contested: Contested, metric: Metric, seeds: int) -> list[str]:
    """Where the seeds do not tell the best apart."""
    if seeds == 1:
        return ["There is one seed: what another would give is not known."]
    close = [leaders(row, metric) for row in contested.values() if len(leaders(row, metric)) > 1]
    if not close:
        return []
    if len(contested) == 1:
        return [f"The ranges over the seeds of {listed(map(heading, close[0]))} overlap: they do not tell these apart."]
    sentences = [
        f"In {len(close)} of these the range of another method over the seeds overlaps that of the best: "
        "the seeds do not tell them apart."
    ]
    behind = [row for row in contested.values() if SUBJECT in means(row) and SUBJECT not in _first(row, metric)]
    if behind:
        near = sum(SUBJECT in leaders(row, metric) for row in behind)
        sentences.append(f"Of the {len(behind)} in which {heading(SUBJECT)} is not best, that is so for it in {near}.")
    return sentences


def _distances(contested: Contested, metric: Metric, order: list[str]) -> list[str]:
    """How far BNP is from the others: in the only setting, or on average over small batch sizes."""
    alone = len(contested) == 1
    if not alone:
        contested = {(network, size): row for (network, size), row in contested.items() if 0 < size <= SMALL}
    mine = [means(row) for row in contested.values() if SUBJECT in means(row)]
    parts = []
    for method in order:
        both = [row for row in mine if method in row and math.isfinite(row[method]) and math.isfinite(row[SUBJECT])]
        if both and method != SUBJECT:
            only = f" (in {len(both)} of {len(contested)} settings)" if len(both) < len(contested) else ""
            parts.append(_distance(fmean(row[SUBJECT] - row[method] for row in both), method, metric) + only)
    if not parts:
        return []
    if alone:
        return [f"{heading(SUBJECT)} is {listed(parts)}."]
    sizes = sorted({size for _, size in contested}, reverse=True)
    label = "batch size" if len(sizes) == 1 else "batch sizes"
    return [f"Over the {label} {listed(sizes)} {heading(SUBJECT)} is on average {listed(parts)}."]


def _distance(difference: float, method: str, metric: Metric) -> str:
    amount = f"{100 * abs(difference):.1f}" if metric == "accuracy" else number(abs(difference))
    name = "the plain network" if method == "vanilla" else heading(method)
    if float(amount) == 0:
        return f"level with {name}"
    return f"{amount}{' points' if metric == 'accuracy' else ''} {'above' if difference > 0 else 'below'} {name}"


def _reservations(comparison: Comparison) -> list[str]:
    """What a reader of the verdict must know: runs that diverged, methods that cannot train, rates at the edge."""
    found = []
    broken = dict.fromkeys(methods(comparison), 0)
    unable = dict(broken)
    for cell in comparison.cells:
        broken[cell.method] += diverged(cell)
        unable[cell.method] += cell.why_not is not None
    if any(broken.values()):
        told = [f"{count} of {heading(method)}" for method, count in broken.items() if count]
        found.append(f"Runs that diverged: {', '.join(told)}.")
    if any(unable.values()):
        told = [f"{heading(method)} in {counted(count, 'setting')}" for method, count in unable.items() if count]
        found.append(f"Cannot train: {', '.join(told)}.")
    chosen = [cell for cell in comparison.cells if cell.lr is not None and cell.candidates]
    edge = sum(cell.lr_at_edge for cell in chosen)
    if edge:
        verb = "is" if edge == 1 else "are"
        found.append(
            f"{edge} of {len(chosen)} learning rates {verb} at the edge of those tried: a better one may lie outside."
        )
    return found
