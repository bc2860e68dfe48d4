"""The page of a diagnosis: the bill at the top, then a panel for each finding, with its picture."""

import math
from collections.abc import Sequence
from pathlib import Path

from trimtab.doctor.figures import Draw, loss_figure, picture
from trimtab.doctor.finding import Diagnosis, Finding
from trimtab.doctor.record import Record
from trimtab.records import whole_file
from trimtab.report.figures import rendered
from trimtab.report.formatting import format_number
from trimtab.report.markup import Markup, document, element, folded, paragraphs, table
from trimtab.report.svg import inline

LOSS = (
    "The loss of each training batch, its mean over a twentieth of the steps each, and the steps that were tried out."
)


def write_page(diagnosis: Diagnosis, record: Record, path: Path) -> None:
    """Write the page to a file, whole or not at all."""
    with whole_file(path) as file:
        file.write(page(diagnosis, record).encode(errors="replace"))


def page(diagnosis: Diagnosis, record: Record) -> str:
    """One self-contained page, without scripts and without requests to anywhere."""
    head = str(diagnosis).splitlines()[0]
    body: list[object] = [element("h1", "What holds this training back"), element("p", head, class_="verdict")]
    if diagnosis.findings:
        body.append(_bill(diagnosis.findings))
    body.append(
        element(
            "section",
            element("h2", "The training"),
            element("div", _card(lambda: loss_figure(record), "loss", LOSS), class_="panel"),
        )
    )
    body += [_panel(number, finding, record) for number, finding in enumerate(diagnosis.findings, start=1)]
    if diagnosis.notes:
        body.append(element("section", element("h2", "Notes"), paragraphs([note.sentence for note in diagnosis.notes])))
    body.append(element("section", element("h2", "What was looked at"), _looked_at(record)))
    return document("trimtab: what holds this training back", body)


def _bill(findings: Sequence[Finding]) -> Markup:
    rows = [
        [
            element("a", finding.name, href=f"#finding-{number}"),
            finding.layer or "–",
            finding.cure.sentence,
            f"{finding.certainty:.1f}",
        ]
        for number, finding in enumerate(findings, start=1)
    ]
    return table(
        ["finding", "layer", "what to do", "certainty"], rows, "findings, the worst first", words=True, stack=True
    )


def _panel(number: int, finding: Finding, record: Record) -> Markup:
    where = f", layer {finding.layer}" if finding.layer else ""
    draw, words = picture(finding, record)
    measured = [[name.replace("_", " "), _number(value)] for name, value in finding.evidence.items()]
    values = table(["measured", "value"], measured, f"evidence for {finding.name}")
    return element(
        "section",
        element("h2", f"{finding.name}{where}", id=f"finding-{number}"),
        element(
            "div",
            element("div", element("p", finding.sentence), element("p", element("strong", finding.advice))),
            _card(draw, f"finding-{number}", words, values),
            class_="panel",
        ),
    )


def _card(draw: Draw, prefix: str, words: str, values: Markup | None = None) -> Markup:
    image = Markup(inline(rendered(draw, "svg"), f"{prefix}-", words))
    more = [folded("Values", values)] if values is not None else []
    return element("figure", image, element("figcaption", words), *more, class_="card")


def _looked_at(record: Record) -> Markup:
    facts = record.facts
    rates = [look.lr for look in record.looks]
    rows = [
        ["steps", str(len(record.losses))],
        ["looks without another forward", str(len(record.looks))],
        ["steps tried", str(len(record.trials))],
        ["level", record.level],
        ["optimizer", facts.optimizer + (", with BNP" if facts.bnp else "")],
        ["learning rate", " to ".join(dict.fromkeys(_number(x) for x in (rates[0], rates[-1]))) if rates else ""],
        ["weight decay", _number(facts.weight_decay)],
        ["batch size", str(facts.batch_size or "")],
        ["parameters in", facts.dtype],
    ]
    return table(["what", "value"], rows, "what was looked at", words=True)


def _number(value: float) -> str:
    return format_number(value) if math.isfinite(value) else "not measured"
