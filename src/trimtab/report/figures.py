"""All figures of a report: their names, and how they are written to files."""

import io
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.figure import Figure

from trimtab.records import Comparison, whole_file
from trimtab.renamed import renamed_arguments
from trimtab.report.axes import RC
from trimtab.report.drawing import draw_curves, draw_overview, draw_tuning
from trimtab.report.formatting import join_words, method_label, network_label, slug
from trimtab.report.heat_maps import heat_maps
from trimtab.report.probe_figures import probe_figures
from trimtab.report.probe_series import Table
from trimtab.report.report_data import Panel, ReportData, Subject, SweepSubject
from trimtab.report.styles import styles

KINDS = ("png", "pdf", "svg")
Part = Literal["overview", "curves", "tuning", "probes", "sweep"]


@dataclass(frozen=True, slots=True)
class NamedFigure:
    """A figure that can be drawn.

    The overview of several networks is for papers; on the page each network has its own, which fits a narrow screen.

    Attributes:
        name: Its name, for a file.
        part: Which part of the report it belongs to.
        alt: A description of what it shows.
        draw: Draws it.
        subject: The comparison, sweep or runs it belongs to.
        panel: The panel, if it shows a single one.
        network: The network, if it shows a single one.
        against: What is on the x axis of curves.
        values: For figures of probes: returns the header and the rows of a table of the numbers.
        finding: For figures of probes: what was found, in a sentence.
    """

    name: str
    part: Part
    alt: str
    draw: Callable[[], Figure]
    subject: Subject | SweepSubject
    panel: Panel | None = None
    network: str | None = None
    against: Literal["", "steps", "time"] = ""
    values: Callable[[], Table] | None = None
    finding: str = ""


@renamed_arguments(material="data")
def figures(data: ReportData) -> list[NamedFigure]:
    """All figures: overviews, curves against steps and time, what was measured along the way, what was tuned."""
    seen: Counter[str] = Counter()
    named = []
    of_sweeps = (figure for sweep in data.sweeps for figure in _of_sweep(sweep))
    for figure in (*(figure for subject in data.subjects for figure in _of(subject)), *of_sweeps):
        seen[figure.name] += 1
        # Names of networks may differ only in letters that a file's name cannot have.
        number = f"-{seen[figure.name]}" if seen[figure.name] > 1 else ""
        named.append(replace(figure, name=figure.name + number))
    return named


def _of(subject: Subject) -> list[NamedFigure]:
    drawn = _overviews(subject)
    compared = [(cell.method, method_label(cell.method)) for panel in subject.panels for cell in panel.cells]
    looks = styles([*compared, *((curve.method, curve.label) for _, curve in subject.curves)])
    for panel in subject.panels:
        if panel.curves:
            what = f"{panel.part} {panel.metric} (solid) and training loss (dashed)".capitalize()
            of = join_words(curve.label for curve in panel.curves)
            for against in ("steps", "time"):
                alt = f"{what} of {of} against training {against}: {panel.title}."
                draw = partial(draw_curves, panel, looks, against)
                name = f"{subject.name}curves-{panel.name}-{against}"
                drawn.append(NamedFigure(name, "curves", alt, draw, subject, panel, against=against))
        for one in probe_figures(panel, looks):
            name, alt = f"{subject.name}{one.name}", f"{' '.join(one.caption.split())} {panel.title}."
            figure = NamedFigure(name, "probes", alt, one.draw, subject, panel)
            drawn.append(replace(figure, values=one.values, finding=one.finding))
    for panel in subject.panels:
        if any(len(cell.candidates) > 1 for cell in panel.cells):
            of = join_words(method_label(cell.method) for cell in panel.cells if cell.candidates)
            alt = f"Validation {panel.metric} of {of} against learning rate: {panel.title}."
            draw = partial(draw_tuning, panel, looks)
            drawn.append(NamedFigure(f"{subject.name}tuning-{panel.name}", "tuning", alt, draw, subject, panel))
    return drawn


def _of_sweep(subject: SweepSubject) -> list[NamedFigure]:
    return [
        NamedFigure(f"{subject.name}{one.name}", "sweep", one.caption, one.draw, subject)
        for one in heat_maps(subject.sweep)
    ]


def _overviews(subject: Subject) -> list[NamedFigure]:
    comparison = subject.comparison
    if comparison is None or len({cell.batch_size for cell in comparison.cells if cell.trials}) < 2:
        return []
    networks = list(dict.fromkeys(cell.network for cell in comparison.cells))
    overviews = []
    for group in ([networks] if len(networks) > 1 else []) + [[network] for network in networks]:
        whole = group == networks
        note = _note(comparison) if len(group) > 1 else ""  # the page says it elsewhere
        alt = f"Test {comparison.metric} against batch size: {join_words(map(network_label, group))}."
        name = f"{subject.name}overview" + ("" if whole else f"-{slug(group[0])}")
        draw = partial(draw_overview, comparison, group, note)
        overviews.append(
            NamedFigure(name, "overview", alt, draw, subject, network=group[0] if len(group) == 1 else None)
        )
    return overviews


def check_kinds(kinds: Iterable[str]) -> None:
    """Refuse kinds of files that figures cannot be written to.

    Raises:
        ValueError: If there is one.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"figures can be had as {join_words(KINDS)}, not as {kind!r}")


def rendered(draw: Callable[[], Figure], kind: str, dpi: float = 200) -> bytes:
    """A figure as the content of a file; the same bytes every time.

    Raises:
        ValueError: If there is no such kind of file.
    """
    check_kinds([kind])
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    buffer = io.BytesIO()
    with mpl.rc_context(RC):
        draw().savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def drawn(figure: NamedFigure) -> Figure:
    """A figure as it looks in a report."""
    with mpl.rc_context(RC):
        return figure.draw()


def save(figure: NamedFigure, path: Path) -> None:
    """Write a figure to a file, whole or not at all; the ending of the name says which kind of file.

    Raises:
        ValueError: If there is no such kind of file.
    """
    content = rendered(figure.draw, path.suffix[1:])
    with whole_file(path) as file:
        file.write(content)


def _note(comparison: Comparison) -> str:
    train, validation, test = comparison.parts
    parts = f"{train} samples to train on, {validation} to choose the learning rate, {test} to test"
    return f"{comparison.data}: {parts}. {comparison.machine}."


@renamed_arguments(material="data")
def write_figures(data: ReportData, folder: Path, kinds: Iterable[str] = ("png", "pdf")) -> list[Path]:
    """Write all figures to a folder; returns the paths."""
    kinds = tuple(kinds)
    if kinds:
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in figures(data):
        for kind in kinds:
            written.append(folder / f"{figure.name}.{kind}")
            save(figure, written[-1])
    return written
