"""A block of claims as a part of the page: its figures, its claims, the experiments that decide them."""

import re
from collections.abc import Sequence

from trimtab.claims.claim import KINDS, SEEN, Claim, superseded
from trimtab.claims.judging import Outcome
from trimtab.claims.pages.earlier import EarlierRun, earlier_in
from trimtab.claims.pages.figures import PaperFigure
from trimtab.claims.pages.summary import Judged, JudgedBlock, about_record, counterexample, place_of, verdict_text
from trimtab.claims.part import Part
from trimtab.claims.record import Record
from trimtab.claims.verdict import Verdict
from trimtab.report.formatting import slug
from trimtab.report.line_figures import lines_image
from trimtab.report.markup import Markup, element, folded, paragraphs, table, text

CLASSES = {"holds": "holds", "holds in part": "in-part", "does not hold": "fails", "undecided": "undecided"}
CLASSES_OF_PARTS = {"met": "holds", "not met": "fails", "undecided": "undecided"}


def block_section(block: JudgedBlock, figures: Sequence[PaperFigure]) -> Markup:
    """A block."""
    about = block.block
    records = block.records
    return element(
        "section",
        element("h3", f"{about.number} {about.title}", id=f"block-{about.number}"),
        *(_figure(figure) for figure in figures),
        *([folded("Data, settings, sizes", _conditions(about.conditions))] if about.conditions else []),
        *(_earlier(run) for run in earlier_in(block)),
        *(_claim(row) for row in block.rows),
        *([folded(f"Experiments ({len(records)})", _experiments(records))] if records else []),
        class_="block",
    )


def _conditions(words: str) -> Markup:
    return element("p", with_code(words), class_="conditions")


def with_code(words: str) -> Markup:
    """Text in which what is between backticks is code."""
    pieces = re.split(r"`([^`]*)`", words)
    return Markup("".join(element("code", piece) if i % 2 else text(piece) for i, piece in enumerate(pieces)))


def _figure(figure: PaperFigure) -> Markup:
    """A figure; its panels are cards, beside each other as far as there is room."""
    shown = [placed for placed in figure.panels if placed.is_drawn]
    captions = [" ".join(filter(None, [f"{placed.source}.", placed.shade])) for placed in shown]
    common = captions[0] if len(set(captions)) == 1 else ""
    cards = []
    for number, (placed, caption) in enumerate(zip(shown, captions, strict=True)):
        image = lines_image(f"{slug(figure.name)}-{number}", placed.panel, placed.source)
        told = [] if common else [element("figcaption", caption)]
        cards.append(element("figure", image, *told, class_="card"))
    missing = "; ".join(placed.panel.title for placed in figure.panels if not placed.is_drawn)
    notes = [common, f"Not run: {missing}." if missing else ""]
    below = [element("p", note, class_="note") for note in notes if note]
    return element("div", element("h4", figure.title), element("div", *cards, class_="cards"), *below, class_="figure")


def _earlier(run: EarlierRun) -> Markup:
    """An earlier run, beside the claims it is about."""
    return element(
        "div",
        element("p", run.sentence),
        table(run.head, run.rows, run.title),
        element("p", element("code", run.command), f"; {run.about_it}.", class_="note"),
        class_="earlier",
    )


def _claim(row: Judged) -> Markup:
    claim, best = row.claim, row.best
    above = element(
        "summary",
        element("span", verdict_text(best), class_=f"state {CLASSES.get(best.state, 'nothing')}"),
        element("span", with_code(claim.statement), " ", element("small", place_of(claim))),
    )
    verdicts = [part for verdict in (best, *row.others) for part in _verdict(claim, verdict, several=bool(row.others))]
    old = superseded(claim)
    content = element("div", _facts(claim), *verdicts, *([paragraphs(old)] if old else []))
    facts = {"verdict": best.state, "paper": claim.paper, "kind": claim.kind}
    named = {f"data_{name}": value for name, value in facts.items()}
    return element("details", above, content, id=claim.id, class_="claim", **named)


def _facts(claim: Claim) -> Markup:
    """What the claim is, and when it is met."""
    facts: list[tuple[str, object]] = [
        ("claim", element("code", claim.id)),
        ("place", f"{claim.paper}, {place_of(claim)}"),
        ("kind", KINDS[claim.kind]),
        ("met if", with_code(claim.criterion)),
    ]
    if claim.parts:
        facts.append(("computed as", _lines(claim.parts)))
    if claim.corrected:
        facts.append(("corrected form", _lines(claim.corrected)))
    if claim.seen:
        facts.append(("seen before", SEEN))
    if claim.why:
        facts.append(("why", with_code(claim.why)))
    if claim.disagrees:
        facts.append(("on the criterion", with_code(claim.disagrees)))
    return element("dl", *(Markup(element("dt", name) + element("dd", value)) for name, value in facts))


def _lines(several: Sequence[Part]) -> Markup:
    """Parts of a criterion, each on a line of its own."""
    texts = [f"({part.label}) {part.text}" if part.label else part.text for part in several]
    return Markup("<br>".join(element("code", one) for one in texts))


def _verdict(claim: Claim, verdict: Verdict, *, several: bool) -> list[Markup]:
    """The numbers, part by part, and what they were measured with."""
    found: list[Markup] = []
    if several:
        found.append(element("p", f"At size {verdict.size}: {verdict.state}", class_="above"))
    if verdict.reason:
        found.append(element("p", with_code(f"Not run: {verdict.reason}")))
    rows = [_outcome(claim, outcome, verdict, "") for outcome in verdict.outcomes]
    rows += [_outcome(claim, outcome, verdict, "corrected form ") for outcome in verdict.corrected]
    if rows and verdict.records:
        found.append(table(["part", "came out", "numbers"], rows, f"parts of {claim.id}", words=True))
    if verdict.corrected_state:
        found.append(element("p", f"The corrected form: {verdict.corrected_state}."))
    if verdict.to_decide:
        found.append(element("p", with_code(f"Undecided: {verdict.to_decide}.")))
    found += [element("p", f"{flag}: {_about_flag(flag, verdict)}.") for flag in verdict.flags]
    return found + [
        element("p", element("code", record.command), f"; {about_record(record)}", class_="note")
        for record in verdict.records.values()
    ]


def _outcome(claim: Claim, outcome: Outcome, verdict: Verdict, kind: str) -> list[object]:
    label = f"({outcome.part.label}) " if outcome.part.label else ""
    state = element("span", outcome.state, class_=f"state {CLASSES_OF_PARTS.get(outcome.state, 'nothing')}")
    broken = counterexample(outcome, verdict.records, claim.experiment)
    numbers = "; ".join([outcome.sentence, *([broken] if broken else [])])
    return [Markup(text(f"{kind}{label}") + element("code", outcome.part.text)), state, numbers]


def _about_flag(flag: str, verdict: Verdict) -> str:
    """A flag in words."""
    if flag == "neighbour":
        return "; ".join(dict.fromkeys(record.neighbour for record in verdict.records.values() if record.neighbour))
    return {
        "erratum": "the printed form does not hold, a corrected one does",
        "input scaling": "with standardized inputs the verdict would be another one",
    }[flag]


def _experiments(records: Sequence[Record]) -> Markup:
    rows = []
    for record in records:
        notes = [*record.notes, *(f"{case} was refused: {why}" for case, why in record.refused.items())]
        rows.append(
            [
                element("code", record.command),
                record.machine,
                record.date,
                f"{record.seconds:.3g} s",
                record.commit,
                " ".join([*([record.neighbour + "."] if record.neighbour else []), *notes]),
            ]
        )
    return table(["command", "hardware", "date", "time", "commit", "notes"], rows, "experiments", words=True)
