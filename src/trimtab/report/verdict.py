"""What a page shows, said first: the best, what was measured, and what must be known before believing it."""

import math
from collections.abc import Sequence
from statistics import fmean

from trimtab.report.conclusion import ITEM, NAMED, conclusion
from trimtab.report.endings import ending, finals, last_evaluations, last_step, runs
from trimtab.report.formatting import format_count, format_metric, join_words
from trimtab.report.markup import Markup, element
from trimtab.report.report_data import Panel, Subject


def verdict(subject: Subject, findings: Sequence[str]) -> list[object]:
    """It as a paragraph and lists.

    Args:
        subject: What it is about.
        findings: What was measured along the way, a sentence each.
    """
    comparison = subject.comparison
    if comparison is not None:
        lead, *rest = (comparison.conclusion or conclusion(comparison)).splitlines() or [""]
        reservations = [line.removeprefix(ITEM) for line in rest]
    else:
        lead, reservations = _of_runs(subject)
    content: list[object] = [element("p", lead, class_="verdict")]
    several = any(sum(bool(run.probed) for run in curve.runs) > 1 for _, curve in subject.curves)
    what = "in medians over the seeds" if several else "one run of each"
    content += _list(f"Measured along the way, {what}:", findings)
    content += _list("Reservations:", reservations)
    return content


def _list(title: str, sentences: Sequence[str]) -> list[Markup]:
    if not sentences:
        return []
    items = element("ul", *(element("li", one) for one in sentences))
    return [element("p", title, class_="above"), items]


def _of_runs(subject: Subject) -> tuple[str, list[str]]:
    """Which runs that belong to no comparison came to the best end, and how they ended."""
    words = [ending(run) for run in runs(subject)]
    counts = join_words(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    how = f"{format_count(len(words), 'run')}: {counts}."
    ends = {panel.title: sentence for panel in subject.panels if (sentence := _best(panel))}
    if len(subject.panels) > 1:
        lead = " ".join([how, *(f"{title}: {sentence}" for title, sentence in ends.items())])
    else:
        lead = " ".join([*ends.values(), *([how] if not ends or {*words} != {"finished"} else [])])
    single = any(len(finals(curve, panel.metric)) == 1 for panel, curve in subject.curves)
    several = any(len(panel.curves) > 1 for panel in subject.panels)
    return lead, ["There is one run of each: another seed may give another order."] if single and several else []


def _best(panel: Panel) -> str:
    """Who ended best in a panel; empty if nobody ended, or if they cannot be compared."""
    ended = {curve.label: values for curve in panel.curves if (values := finals(curve, panel.metric))}
    if not ended or len({one.part for curve in panel.curves for one in last_evaluations(curve)}) > 1:
        return ""
    means = {label: fmean(values) for label, values in ended.items()}
    order = sorted(means, key=lambda label: means[label], reverse=panel.metric == "accuracy")
    unit = " %" if panel.metric == "accuracy" else ""
    final = {label: f"{format_metric(means[label], panel.metric)}{unit}" for label in order}
    what = f"{'mean ' if any(len(values) > 1 for values in ended.values()) else ''}{panel.part} {panel.metric}"
    best = [label for label in order if final[label] == final[order[0]] and math.isfinite(means[label])]
    if len(order) == 1:
        steps = max(last_step(run) for curve in panel.curves for run in curve.runs)
        return f"{order[0]} ends with a {what} of {final[order[0]]}, after {format_count(steps, 'step')}."
    if not best:
        return ""
    others = [label for label in order if label not in best]
    rest = ", ".join(f"{label} {final[label]}" for label in others)
    if len(others) > NAMED:
        rest = f"the {len(others)} others from {final[others[-1]]} to {final[others[0]]}"
    superlative = "highest" if panel.metric == "accuracy" else "lowest"
    verb = "has" if len(best) == 1 else "share"
    return (
        f"{join_words(best)} {verb} the {superlative} {what} at the end, {final[best[0]]}{f'; {rest}' if rest else ''}."
    )
