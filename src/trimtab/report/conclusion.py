"""What a comparison shows, in a few sentences, whatever it shows."""

import math
from collections.abc import Mapping
from statistics import fmean

from trimtab.records import Comparison, Metric
from trimtab.report.standing import Row, Setting, best, complete, leaders, means, methods, rows
from trimtab.report.words import batch, counted, heading, listed, number

SUBJECT = "bnp"
SMALL = 4


def conclusion(comparison: Comparison) -> str:
    """How often BNP is best and how far it is from the others at small batch sizes; without BNP: who is best where.

    Only settings in which no run is to come count. Where the seeds do not tell the best apart, it says so.
    """
    metric = comparison.metric
    counting = {setting: row for setting, row in rows(comparison).items() if complete(row, comparison)}
    contested = {setting: row for setting, row in counting.items() if len(means(row)) > 1}
    about_bnp = SUBJECT in methods(comparison)
    if about_bnp:
        contested = {setting: row for setting, row in contested.items() if SUBJECT in means(row)}
    sentences = []
    if not contested:
        sentences.append("There are no two methods to compare yet." if not comparison.finished else _alone(comparison))
    elif about_bnp:
        sentences.append(_subject(contested, metric, methods(comparison)))
    else:
        sentences.append(_winners(contested, metric))
    if contested:
        sentences += _doubts(contested, metric, comparison.seeds)
    if not comparison.finished:
        done = f"{len(counting)} of {counted(len(rows(comparison)), 'setting')}"
        sentences.append(f"The comparison is not finished: {done} complete.")
    return " ".join(sentences)


def _alone(comparison: Comparison) -> str:
    trained = [heading(m) for m in methods(comparison) if any(c.method == m and c.trials for c in comparison.cells)]
    if not trained:
        return "No method could be trained."
    return f"No setting has results of two methods to compare: there are those of {listed(trained)}."


def _best_words(metric: Metric) -> str:
    return "highest mean test accuracy" if metric == "accuracy" else "lowest mean test loss"


def _subject(contested: Mapping[Setting, Row], metric: Metric, order: list[str]) -> str:
    won = [means(row) for row in contested.values() if means(row)[SUBJECT] == best(row, metric)]
    ties = sum(list(row.values()).count(row[SUBJECT]) > 1 for row in won)
    settings = counted(len(contested), "setting")
    sentence = f"{heading(SUBJECT)} has the {_best_words(metric)} in {len(won)} of {settings}"
    if ties:
        sentence += f" ({ties} of them a tie)"
    sizes = sorted({size for _, size in contested if 0 < size <= SMALL}, reverse=True)
    near = [means(row) for (_, size), row in contested.items() if size in sizes]
    distances = []
    for method in order:
        both = [row for row in near if method in row and math.isfinite(row[method]) and math.isfinite(row[SUBJECT])]
        if both and method != SUBJECT:
            distances.append(_distance(fmean(row[SUBJECT] - row[method] for row in both), method, metric))
    if distances:
        label = "batch size" if len(sizes) == 1 else "batch sizes"
        sentence += f"; over the {label} {listed(sizes)} it is on average {listed(distances)}"
    return sentence + "."


def _distance(difference: float, method: str, metric: Metric) -> str:
    side = "above" if difference >= 0 else "below"
    name = "the plain network" if method == "vanilla" else heading(method)
    amount = f"{100 * abs(difference):.1f} points" if metric == "accuracy" else number(abs(difference))
    return f"{amount} {side} {name}"


def _winners(contested: Mapping[Setting, Row], metric: Metric) -> str:
    won: dict[str, dict[str, list[int]]] = {}
    nobody = 0
    for (network, size), row in contested.items():
        top = best(row, metric)
        nobody += top is None
        for method, mean in means(row).items():
            if mean == top:
                won.setdefault(method, {}).setdefault(network, []).append(size)
    parts = []
    for method, networks in won.items():
        where = [f"{network} at batch size {listed(map(batch, sizes))}" for network, sizes in networks.items()]
        parts.append(f"{heading(method)} ({listed(where)})")
    if not parts:
        return "Every method diverged in every setting."
    sentence = f"The {_best_words(metric)}: {listed(parts)}"
    return sentence + (f"; every method diverged in {counted(nobody, 'setting')}." if nobody else ".")


def _doubts(contested: Mapping[Setting, Row], metric: Metric, seeds: int) -> list[str]:
    if seeds == 1:
        return ["There is one seed: what another would give is not known."]
    open_ = sum(len(leaders(row, metric)) > 1 for row in contested.values())
    if not open_:
        return []
    where = "In all of them" if open_ == len(contested) > 1 else f"In {open_} of {len(contested)}"
    return [
        f"{where} the range over the seeds of the best method overlaps another's: the seeds do not tell them apart."
    ]
