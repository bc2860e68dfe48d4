"""What a comparison shows, in short sentences, whatever it shows."""

import math
from collections.abc import Iterable, Mapping
from statistics import fmean

from trimtab.records import Comparison, Metric
from trimtab.report.formatting import (
    batch_label,
    format_count,
    format_metric,
    format_number,
    join_words,
    method_label,
)
from trimtab.report.ranking import (
    Row,
    Setting,
    best,
    cells_by_setting,
    diverged_count,
    is_complete,
    leaders,
    means,
    methods,
)

SUBJECT = "bnp"
SMALL = 4
NAMED = 4
"""So many distances at most are told one by one."""
ITEM = "- "
"""What a line begins with that is an item of a list."""
Contested = Mapping[Setting, Row]


def conclusion(comparison: Comparison) -> str:
    """Who is best where and how far BNP is from the others; then, as a list, what must be known before believing it.

    The first line is the verdict, each further one a reservation. Only settings in which no run is to come count.
    """
    counting = {setting: row for setting, row in cells_by_setting(comparison).items() if is_complete(row, comparison)}
    lost = [s for s, row in counting.items() if means(row) and all(_lost(row, method) for method in means(row))]
    contested = {s: row for s, row in counting.items() if len(means(row)) > 1 and s not in lost}
    reservations = []
    if contested:
        lead = [*_winners(contested, comparison), *_distances(contested, comparison)]
        reservations = _doubts(contested, comparison)
        if lost:
            reservations.append(
                f"In {format_count(len(lost), 'setting')} every run diverged: {_places(lost, comparison)}."
            )
    elif lost:
        lead = [f"No method is best: in {format_count(len(lost), 'setting')} every run diverged."]
    else:
        lead = [_alone(comparison) if comparison.finished else "There are no two methods to compare yet."]
    reservations += _reservations(comparison)
    if not comparison.finished:
        total = len(cells_by_setting(comparison))
        verb = "is" if len(counting) == 1 else "are"
        reservations.append(
            f"The comparison is not finished: {len(counting)} of {format_count(total, 'setting')} {verb} complete."
        )
    return "\n".join([" ".join(lead), *(f"{ITEM}{one}" for one in reservations)])


def _lost(row: Row, method: str) -> bool:
    return diverged_count(row[method]) == len(row[method].trials)


def _alone(comparison: Comparison) -> str:
    trained = [
        method_label(m) for m in methods(comparison) if any(c.method == m and c.trials for c in comparison.cells)
    ]
    if not trained:
        return "No method could be trained."
    if len(trained) == 1:
        return f"Only {trained[0]} has results: there is nothing to compare it with."
    return f"No setting has results of two methods: there are those of {join_words(trained)}."


def _winners(contested: Contested, comparison: Comparison) -> list[str]:
    """Who has the best mean, and where: the most successful first."""
    metric = comparison.metric
    words = "highest mean test accuracy" if metric == "accuracy" else "lowest mean test loss"
    won: dict[tuple[str, ...], list[Setting]] = {}
    for setting, row in contested.items():
        won.setdefault(tuple(_first(row, metric)), []).append(setting)
    sentences: list[str] = []
    for winners, where in sorted(won.items(), key=lambda item: -len(item[1])):
        who = f"{join_words(map(method_label, winners))} {'has' if len(winners) == 1 else 'share'}"
        if sentences:
            sentences.append(f"{who} it in {len(where)}: {_places(where, comparison)}.")
        elif len(contested) == 1:
            top = best(contested[where[0]], metric) or 0.0
            sentences.append(f"{who} the {words}, {format_metric(top, metric)}{' %' if metric == 'accuracy' else ''}.")
        elif len(where) == len(contested):
            sentences.append(f"{who} the {words} in {'both' if len(where) == 2 else f'all {len(where)}'} settings.")
        else:
            sentences.append(f"{who} the {words} in {_of(where, contested)}: {_places(where, comparison)}.")
    return sentences


def _of(some: Iterable[object], contested: Contested) -> str:
    return f"{len(list(some))} of {format_count(len(contested), 'setting')}"


def _first(row: Row, metric: Metric) -> list[str]:
    top = best(row, metric)
    return [method for method, mean in means(row).items() if mean == top]


def _places(settings: Iterable[Setting], comparison: Comparison) -> str:
    """Which networks at which batch sizes; without the network where there is only one."""
    by_network: dict[str, list[int]] = {}
    for network, size in settings:
        by_network.setdefault(network, []).append(size)
    if len({cell.network for cell in comparison.cells}) == 1:
        return _sizes(next(iter(by_network.values())))
    by_sizes: dict[str, list[str]] = {}
    for network, sizes in by_network.items():
        by_sizes.setdefault(_sizes(sizes), []).append(network)
    return "; ".join(f"{join_words(networks)} at {sizes}" for sizes, networks in by_sizes.items())


def _sizes(sizes: Iterable[int]) -> str:
    some = [batch_label(size) for size in sizes if size]
    words = [f"batch size{'s' if len(some) > 1 else ''} {join_words(some)}"] if some else []
    return join_words([*words, *(["full batch"] if 0 in sizes else [])])


def _doubts(contested: Contested, comparison: Comparison) -> list[str]:
    """Where the seeds do not tell the best apart, and where they tell BNP apart from them."""
    metric, seeds = comparison.metric, comparison.seeds
    if seeds == 1:
        return ["There is one seed: another may give another order."]
    close = {s: leaders(row, metric) for s, row in contested.items() if len(leaders(row, metric)) > 1}
    if len(contested) == 1:
        names = [join_words(map(method_label, leading)) for leading in close.values()]
        return [f"The ranges over the {seeds} seeds of {name} overlap: their order may be chance." for name in names]
    sentences = []
    if close:
        where = f"each of the {len(contested)} settings" if len(close) == len(contested) else _of(close, contested)
        sentences.append(
            f"In {where} the range of another method over the {seeds} seeds overlaps that of the best: their order may "
            "be chance."
        )
    behind = [s for s, row in contested.items() if SUBJECT in means(row) and SUBJECT not in leaders(row, metric)]
    if behind:
        sentences.append(
            f"{method_label(SUBJECT)} is behind the best by more than the seeds vary in {_of(behind, contested)}: "
            f"{_places(behind, comparison)}."
        )
    return sentences


def _distances(contested: Contested, comparison: Comparison) -> list[str]:
    """How far BNP is from the others: in the only setting, or on average over small batch sizes."""
    metric = comparison.metric
    alone = len(contested) == 1
    if not alone:
        contested = {(network, size): row for (network, size), row in contested.items() if 0 < size <= SMALL}
    mine = [means(row) for row in contested.values() if SUBJECT in means(row)]
    distances: dict[str, float] = {}
    parts = []
    for method in methods(comparison):
        both = [row for row in mine if method in row and math.isfinite(row[method]) and math.isfinite(row[SUBJECT])]
        if both and method != SUBJECT:
            only = f" (in {_of(both, contested)})" if len(both) < len(contested) else ""
            distances[method] = fmean(row[SUBJECT] - row[method] for row in both)
            parts.append(_distance(distances[method], method, metric) + only)
    if not parts:
        return []
    if len(parts) > NAMED:
        better = {method: d if metric == "accuracy" else -d for method, d in distances.items()}
        nearest = min(better, key=lambda method: better[method])
        ahead = sum(d > 0 for d in better.values())
        words = (
            f"better than {ahead} of {len(parts)} others; {_distance(distances[nearest], nearest, metric)}, the best of"
        )
        parts = [f"{words} them"]
    if alone:
        return [f"{method_label(SUBJECT)} is {join_words(parts)}."]
    sizes = sorted({size for _, size in contested}, reverse=True)
    average = "on average " if len(contested) > 1 else ""
    return [f"At {_sizes(sizes)} {method_label(SUBJECT)} is {average}{join_words(parts)}."]


def _distance(difference: float, method: str, metric: Metric) -> str:
    amount = f"{100 * abs(difference):.1f}" if metric == "accuracy" else format_number(abs(difference))
    if amount in ("0", "0.0"):
        return f"level with {method_label(method)}"
    unit = " points" if metric == "accuracy" else ""
    return f"{amount}{unit} {'above' if difference > 0 else 'below'} {method_label(method)}"


def _reservations(comparison: Comparison) -> list[str]:
    """What a reader of the verdict must know: runs that diverged, methods that cannot train, rates at the edge."""
    sentences = []
    broken = dict.fromkeys(methods(comparison), 0)
    unable: dict[str, list[Setting]] = {}
    for cell in comparison.cells:
        broken[cell.method] += diverged_count(cell)
        if cell.why_not is not None:
            unable.setdefault(cell.method, []).append((cell.network, cell.batch_size))
    diverged_runs = [
        f"{format_count(count, 'run')} of {method_label(method)}" for method, count in broken.items() if count
    ]
    if diverged_runs:
        sentences.append(f"{join_words(diverged_runs)} diverged.")
    for method, where in unable.items():
        count = format_count(len(where), "setting")
        sentences.append(f"{method_label(method)} cannot train in {count}: {_places(where, comparison)}.")
    chosen = [cell for cell in comparison.cells if cell.lr is not None and cell.candidates]
    edge = sum(cell.lr_at_edge for cell in chosen)
    if edge:
        verb = "is" if edge == 1 else "are"
        sentences.append(
            f"{edge} of {len(chosen)} learning rates {verb} at the edge of those tried: a better one may lie outside."
        )
    return sentences
