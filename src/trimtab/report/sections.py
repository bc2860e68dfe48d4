"""What stands on the page beside the figures."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from trimtab.records import Cell, Comparison
from trimtab.report.endings import ending, endings, finals, last_evaluations, runs
from trimtab.report.formatting import (
    batch_label,
    format_count,
    format_exact,
    format_metric,
    format_number,
    format_range,
    join_words,
    method_label,
    natural_order,
)
from trimtab.report.markup import Markup, element, folded, table
from trimtab.report.probe_series import Table
from trimtab.report.probe_tables import SEEDS
from trimtab.report.ranking import cells_by_setting, diverged_count, leaders, methods
from trimtab.report.report_data import Panel, Subject
from trimtab.report.run_settings import PANEL_SETTINGS, WITHOUT_EFFECT, differing_settings, format_setting
from trimtab.report.table import notes as table_notes
from trimtab.report.table import rates, table_title

ESSENTIAL = (*PANEL_SETTINGS, "method", "epochs", "steps", "optimizer", "lr", "seed")
"""Settings that a reader looks for, default or not."""


def title(subject: Subject) -> str:
    """The title of a subject: what is compared, on which data."""
    comparison = subject.comparison
    if comparison is not None:
        networks = join_words(dict.fromkeys(cell.network for cell in comparison.cells))
        return f"{join_words(map(method_label, methods(comparison)))}: {networks} on {comparison.data}"
    data = dict.fromkeys(str(run.started.settings["data"]) for run in runs(subject))
    labels = [curve.label for _, curve in subject.curves]
    if len(subject.panels) == 1 and len(labels) <= 4:
        return f"{join_words(labels)}: {subject.panels[0].title}, on {join_words(data)}"
    return f"{format_count(len(runs(subject)), 'run')} on {join_words(data)}"


def results(subject: Subject) -> list[object]:
    """The table of results, with what must be known to read it."""
    if subject.comparison is None:
        return [_loose_results(subject)]
    comparison = subject.comparison
    notes = table_notes(comparison).split("\n")
    return [result_table(comparison), element("p", *_broken_lines(notes), class_="note")]


def result_table(comparison: Comparison, network: str | None = None) -> Markup:
    """Means, ranges and learning rates; of one network or of all."""
    order = methods(comparison)
    lines = []
    for (name, size), row in cells_by_setting(comparison).items():
        if network in (None, name):
            bold = leaders(row, comparison.metric)
            cells = [_result(row.get(method), comparison, bold=method in bold) for method in order]
            lines.append([name, batch_label(size), *cells])
    head = ["network", "batch", *map(method_label, order)]
    return table(head, lines, "results", headers=2, caption=table_title(comparison, "then"), stack=True)


def _result(cell: Cell | None, comparison: Comparison, *, bold: bool) -> object:
    if cell is None:
        return ""
    if cell.why_not or cell.mean is None:
        return "–" if cell.why_not or comparison.finished else "…"
    mean = element("b" if bold else "span", format_metric(cell.mean, comparison.metric))
    spread = f" {format_range(cell.values, comparison.metric)}" if len(cell.trials) > 1 else ""
    below = [f"{format_exact(cell.lr)}{'*' if cell.lr_at_edge else ''}"] if cell.lr is not None else []
    if diverged_count(cell):
        below.append(f"{diverged_count(cell)} of {len(cell.trials)} diverged")
    if len(cell.trials) < comparison.seeds:
        below.append(f"{len(cell.trials)} of {comparison.seeds} done")
    return Markup(element("span", mean, spread) + "".join(element("small", line) for line in below))


def _loose_results(subject: Subject) -> Markup:
    lines = []
    for panel, curve in subject.curves:
        last, values = last_evaluations(curve), finals(curve, panel.metric)
        value = format_metric(fmean(values), panel.metric) if values else "–"
        if len(values) > 1:
            value += f" {format_range(values, panel.metric)}"
        unit = "accuracy in %" if panel.metric == "accuracy" else "loss"
        kind = f"{last[-1].part} {unit}" if last else "–"
        words = [ending(run) for run in curve.runs]
        states = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        lines.append([panel.title, curve.label, states, kind, element("span", value)])
    head = ["network and batch size", "runs of", "how they ended", "measured", "at the end"]
    return table(head, lines, "results", headers=2, words=True, caption="Means over finished runs [range]", stack=True)


def about_curves(subject: Subject) -> str:
    """How to read the curves."""
    measured = dict.fromkeys(f"{panel.part} {panel.metric}" for panel in subject.panels if panel.curves)
    sentences = [
        f"Solid: {join_words(measured)}; dashed: training loss, in means over stretches of its steps.",
        "Lines are means over the seeds, shades their ranges.",
        "A mean ends where its first run ends; what other runs have beyond that is drawn thin, run by run.",
        "× is where a run diverged. Time is training time without evaluation, the mean over the seeds at each step.",
    ]
    if subject.comparison is not None and subject.comparison.side_by_side > 1:
        sentences.append(f"{subject.comparison.side_by_side} runs shared the machine at a time.")
    return " ".join(sentences)


def about_tuning(comparison: Comparison) -> str:
    """How learning rates were chosen."""
    if not any(cell.candidates for cell in comparison.cells):
        return f"{rates(comparison)}."
    _, validation, test = comparison.parts
    better = "highest accuracy" if comparison.metric == "accuracy" else "lowest loss"
    counts = {len(cell.candidates) for cell in comparison.cells if cell.candidates}
    fair = ", the same number for each method" if len(counts) == 1 else ""
    return (
        f"{rates(comparison)}{fair}: that with the {better} on {validation} validation samples was taken "
        f"(a ring in the figures); the {test} test samples had no part in it. × diverged."
    )


def candidates(cells: Sequence[Cell], comparison: Comparison) -> Markup:
    """What each learning rate gave on validation data."""
    tried = sorted({candidate.lr for cell in cells for candidate in cell.candidates})
    lines = []
    for cell in cells:
        if cell.candidates:
            values = {candidate.lr: candidate for candidate in cell.candidates}
            entries: list[object] = []
            for lr in tried:
                value = values[lr].value if lr in values else None
                word = (
                    "" if lr not in values else "diverged" if value is None else format_metric(value, comparison.metric)
                )
                entries.append(element("b", word) if lr == cell.lr else word)
            lines.append([cell.network, batch_label(cell.batch_size), method_label(cell.method), *entries])
    kind = "Validation accuracy in %" if comparison.metric == "accuracy" else "Validation loss"
    head = ["network", "batch", "method", *map(format_exact, tried)]
    caption = f"{kind} by learning rate; bold: chosen"
    return table(head, lines, "candidates", headers=3, caption=caption)


def settings(subject: Subject) -> list[object]:
    """Settings: those that all runs share, then those in which they differ; what is left at its default is folded."""
    all_runs = runs(subject)
    if not all_runs:
        return [element("p", "No run at a chosen learning rate has been recorded yet.")]
    settings_of_runs: list[Mapping[str, Any]] = [run.started.settings for run in all_runs]
    apart = [name for name in differing_settings(settings_of_runs) if name not in WITHOUT_EFFECT]
    shared = {
        name: format_setting(value)
        for name, value in settings_of_runs[0].items()
        if name not in apart and value is not None
    }
    for name in WITHOUT_EFFECT:
        values = sorted(
            {format_setting(one[name]) for one in settings_of_runs if one.get(name) is not None}, key=natural_order
        )
        if values:
            shared[name] = join_words(values)
    usual = [name for name in shared if name not in ESSENTIAL and all(name in run.started.defaults for run in all_runs)]
    lines = [(name.replace("_", " "), value) for name, value in shared.items() if name not in usual]
    tables = [table(["setting", "value"], lines, "settings of all runs", words=True, caption="Of all runs")]
    named = [name for name in (*PANEL_SETTINGS, "method") if name in apart]
    apart = [*named, *(name for name in apart if name not in named)]
    if len(apart) > len(named):
        single = dict.fromkeys(tuple(format_setting(one.get(name)) for name in apart) for one in settings_of_runs)
        head = [name.replace("_", " ") for name in apart]
        caption = "Of single runs"
        tables.append(table(head, list(single), caption, headers=len(named), words=True, caption=caption))
    beside = element("div", *tables, class_="beside")
    if not usual:
        return [beside]
    lines = [(name.replace("_", " "), shared[name]) for name in usual]
    defaults = table(["setting", "value"], lines, "settings left at their defaults", words=True)
    return [beside, folded(f"{format_count(len(usual), 'setting')} left at the default", defaults)]


def commands(subject: Subject) -> list[object]:
    """The commands that were typed."""
    typed = [subject.comparison.command] if subject.comparison else [run.started.command for run in runs(subject)]
    return [element("pre", element("code", "\n".join(dict.fromkeys(typed))), tabindex="0")]


def hardware(subject: Subject) -> Markup:
    """The machines, devices and versions."""
    comparison = subject.comparison
    machines = dict.fromkeys([comparison.machine] if comparison else [run.started.machine for run in runs(subject)])
    lines: list[tuple[str, object]] = [("hardware", "; ".join(machines))]
    if comparison:
        lines.append(("runs at a time", comparison.side_by_side))
    versions: dict[str, dict[str, None]] = {}
    for of_one in [comparison.versions] if comparison else [run.started.versions for run in runs(subject)]:
        for name, version in of_one.items():
            versions.setdefault(name, {})[version] = None
    lines += [(name, join_words(several)) for name, several in versions.items()]
    sizes = [run.started.parameters for run in runs(subject)]
    if sizes:
        smallest, largest = min(sizes), max(sizes)
        lines.append(
            ("parameters of the networks", f"{smallest:,}" if smallest == largest else f"{smallest:,} to {largest:,}")
        )
    return table(["what", "which"], lines, "hardware and versions", words=True)


def notes(subject: Subject) -> list[str]:
    """What did not go as planned."""
    sentences = [f"{panel.title}: {sentence}" for panel in subject.panels for sentence in endings(panel)]
    if subject.comparison is not None:
        train, validation, test = subject.comparison.parts
        sentences.insert(0, f"Data: {train} samples to train on, {validation} for validation, {test} for the test.")
        sentences += [
            f"{method_label(c.method)} cannot train {c.network} at batch size {batch_label(c.batch_size)}: {c.why_not}"
            for c in subject.comparison.cells
            if c.why_not
        ]
        sentences += subject.comparison.notes
        if not subject.comparison.finished:
            sentences.append("The comparison is not finished; the same command goes on with it.")
    return sentences or ["All runs finished."]


def probe_values(values: Callable[[], Table]) -> Markup:
    """The numbers of a probe's figure."""
    header, lines = values()
    return table(header, lines, "values measured", caption="Medians over the seeds [range]" if SEEDS in header else "")


def values(panel: Panel) -> Markup:
    """The values of a panel's curves."""
    unit = "accuracy in %" if panel.metric == "accuracy" else "loss"
    head = ["curve", "step", "seconds", f"{panel.part} {unit}", "range", "training loss", "in evaluation"]
    lines = []
    for curve in panel.curves:
        measured, trained = curve.line("measured", panel.metric), curve.line("trained", panel.metric)
        evaluated = curve.line("train_evaluated", panel.metric)
        if measured.mean is None:
            continue
        steps = measured.mean.steps
        others = [one.mean.at(steps).values if one.mean else None for one in (trained, evaluated)]
        for i, (step, seconds, value) in enumerate(measured.mean.rows()):
            spread = format_range([measured.low[i], measured.high[i]], panel.metric)
            losses = ["–" if one is None else format_number(one[i]) for one in others]
            value_text = format_metric(value, panel.metric)
            lines.append([curve.label, f"{step:.0f}", format_number(seconds), value_text, spread, *losses])
    return table(head, lines, f"values: {panel.title}")


def _broken_lines(lines: Sequence[str]) -> list[object]:
    content: list[object] = []
    for line in lines:
        content += [line, Markup("<br>")]
    return content[:-1]
