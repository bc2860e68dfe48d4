"""The HTML page of a report."""

from collections.abc import Sequence
from pathlib import Path

from trimtab.records import whole_file
from trimtab.renamed import renamed_arguments
from trimtab.report import probe_figures, sections, sweep_sections
from trimtab.report.endings import endings
from trimtab.report.figures import NamedFigure, figures, rendered
from trimtab.report.formatting import format_count, join_words
from trimtab.report.markup import Markup, document, element, folded, paragraphs
from trimtab.report.report_data import ReportData, Subject, SweepSubject
from trimtab.report.svg import inline
from trimtab.report.verdict import verdict


@renamed_arguments(material="data")
def write_page(data: ReportData, path: Path) -> None:
    """Write the page to a file, whole or not at all. The same records give the same page."""
    content = page(data).encode(errors="replace")  # names of files need not be characters
    with whole_file(path) as file:
        file.write(content)


def page(data: ReportData) -> str:
    """One self-contained page, without scripts and without requests to anywhere."""
    drawn = figures(data)
    several = len(data.subjects) + len(data.sweeps) > 1
    body: list[object] = []
    if several:
        compared = sum(subject.comparison is not None for subject in data.subjects)
        counted = {"comparison": compared, "sweep": len(data.sweeps)}
        kinds = [format_count(number, word) for word, number in counted.items() if number]
        name = join_words([*kinds, *(["single runs"] if compared < len(data.subjects) else [])])
        body += [element("h1", name), _contents(data)]
    elif data.subjects:
        name = sections.title(data.subjects[0])
    else:
        name = sweep_sections.title(data.sweeps[0].sweep)
    for number, subject in enumerate(data.subjects, start=1):
        own = [figure for figure in drawn if figure.subject is subject]
        body += _subject(subject, own, number, level=2 if several else 1)
    for number, one in enumerate(data.sweeps, start=len(data.subjects) + 1):
        body += _sweep(one, [figure for figure in drawn if figure.subject is one], number, level=2 if several else 1)
    if data.problems:
        body += [element("h2", "Records that cannot be read"), paragraphs(data.problems)]
    return document(name, body)


def _subject(subject: Subject, drawn: Sequence[NamedFigure], number: int, level: int) -> list[object]:
    comparison = subject.comparison
    several = len(subject.panels) > 1
    findings = [
        f"{figure.panel.title}: {figure.finding}" if several and figure.panel else figure.finding
        for figure in drawn
        if figure.finding
    ]
    parts: list[tuple[str, list[object]]] = [
        ("Verdict", verdict(subject, findings)),
        ("Results", sections.results(subject)),
    ]
    overviews = [figure for figure in drawn if figure.part == "overview" and figure.network is not None]
    if comparison is not None and overviews:
        words = "Means over the seeds; the bars are their ranges."
        cards = [_card([figure], sections.result_table(comparison, figure.network)) for figure in overviews]
        parts.append(("Overview", [element("p", words, class_="note"), _cards(cards)]))
    parts.append(("Curves", _curves(subject, [figure for figure in drawn if figure.part == "curves"], number)))
    of_probes = [figure for figure in drawn if figure.part == "probes"]
    problems = [f"{panel.title}: {sentence}" for panel in subject.panels for sentence in probe_figures.problems(panel)]
    if of_probes or problems:
        cards = [
            _card([figure], sections.probe_values(figure.values), [figure.alt]) for figure in of_probes if figure.values
        ]
        parts.append(
            ("What was measured along the way", [_cards(cards), *([paragraphs(problems)] if problems else [])])
        )
    if comparison is not None:
        content: list[object] = [element("p", sections.about_tuning(comparison))]
        tuned = [(figure, figure.panel.cells) for figure in drawn if figure.part == "tuning" and figure.panel]
        if tuned:
            cards = [_card([figure], sections.candidates(cells, comparison)) for figure, cells in tuned]
            content += [
                _cards(cards),
                folded("All learning rates of all methods", sections.candidates(comparison.cells, comparison)),
            ]
        parts.append(("How the learning rates were chosen", content))
    parts += [
        ("Settings", sections.settings(subject)),
        ("How to make it again", sections.commands(subject)),
        ("Hardware and versions", [sections.hardware(subject)]),
        ("Notes", [paragraphs(sections.notes(subject))]),
    ]
    body = [element("section", element(f"h{level + 1}", name), *content) for name, content in parts]
    heading = element(f"h{level}", _name(subject) if level > 1 else sections.title(subject), id=f"part-{number}")
    return [heading, *body]


def _sweep(subject: SweepSubject, drawn: Sequence[NamedFigure], number: int, level: int) -> list[object]:
    sweep = subject.sweep
    cards = [_card([figure], sweep_sections.values(sweep), [figure.alt]) for figure in drawn]
    parts: list[tuple[str, list[object]]] = [
        ("Verdict", [element("p", sweep_sections.verdict(sweep), class_="verdict")]),
        ("Maps", [_cards(cards)]),
        *([("Boundaries", sweep_sections.boundaries(sweep))] if sweep.rate_axis is not None else []),
        ("Settings", [sweep_sections.settings(sweep)]),
        ("How to make it again", [element("pre", sweep.command)]),
        ("Hardware and versions", [sweep_sections.hardware(sweep)]),
    ]
    body = [element("section", element(f"h{level + 1}", name), *content) for name, content in parts]
    return [element(f"h{level}", _sweep_name(subject, level), id=f"part-{number}"), *body]


def _sweep_name(subject: SweepSubject, level: int = 2) -> str:
    title = sweep_sections.title(subject.sweep)
    return f"{subject.folder}: {title}" if level > 1 and subject.folder else title


def _contents(data: ReportData) -> Markup:
    names = [*map(_name, data.subjects), *map(_sweep_name, data.sweeps)]
    entries = [element("li", element("a", name, href=f"#part-{number}")) for number, name in enumerate(names, start=1)]
    return element("nav", element("ol", *entries), aria_label="contents")


def _name(subject: Subject) -> str:
    return f"{subject.folder}: {sections.title(subject)}" if subject.folder else sections.title(subject)


def _curves(subject: Subject, drawn: Sequence[NamedFigure], number: int) -> list[object]:
    if not drawn:
        return [element("p", "There are no curves yet: no run at a chosen learning rate has been recorded.")]
    cards = []
    for panel in subject.panels:
        own = [figure for figure in drawn if figure.panel is panel]
        if own:
            cards.append(_card(own, sections.values(panel), endings(panel)))
    choices = [
        Markup(f'<label><input type="radio" name="against-{number}" class="by-{name}"{checked}>{words}</label>')
        for name, words, checked in (("steps", "steps", " checked"), ("time", "training time", ""))
    ]
    switch = element("fieldset", element("legend", "Curves against"), *choices)
    return [element("p", sections.about_curves(subject), class_="note"), switch, _cards(cards)]


def _cards(cards: Sequence[Markup]) -> Markup:
    return element("div", *cards, class_="cards")


def _card(drawn: Sequence[NamedFigure], values: Markup, sentences: Sequence[str] = ()) -> Markup:
    """A figure (or the same against steps and against time) with its values, folded away, and what is to be said."""
    images = []
    for figure in drawn:
        image = Markup(inline(rendered(figure.draw, "svg"), f"{figure.name}-", figure.alt))
        images.append(element("div", image, class_=f"against-{figure.against}") if figure.against else image)
    below = [element("figcaption", *(element("div", one) for one in sentences))] if sentences else []
    return element("figure", *images, *below, folded("Values", values), class_="card")
