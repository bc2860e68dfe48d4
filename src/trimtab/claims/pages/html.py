"""The ledger as one HTML page: the bill, filters, and each block with its figures and its claims."""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import groupby

from trimtab.claims.claim import KINDS
from trimtab.claims.pages.figures import figures
from trimtab.claims.pages.html_blocks import block_section, with_code
from trimtab.claims.pages.markdown import HOW_TO_READ
from trimtab.claims.pages.summary import PAPERS, Judged, JudgedBlock, about_parts, counts, parts, reasons
from trimtab.claims.verdict import VERDICTS
from trimtab.report.markup import Markup, document, element, table

TITLE = "What holds of the papers' claims"


def page(blocks: Sequence[JudgedBlock]) -> str:
    """The whole page. It needs no other file and asks for nothing."""
    rows = [row for block in blocks for row in block.rows]
    body: list[object] = [
        element("h1", TITLE),
        element("p", HOW_TO_READ.replace("`", "")),
        _bill(rows),
        element("p", about_parts(parts(rows))),
        *_not_run(rows),
        _filters(rows),
    ]
    drawn = figures(blocks)
    for paper, several in groupby(blocks, key=lambda block: block.block.paper):
        sections = [block_section(block, drawn[block.block.number]) for block in several]
        body.append(
            element("section", element("h2", paper), element("p", PAPERS[paper]), *sections, class_="group", id=paper)
        )
    own = files("trimtab.claims.pages")
    style, script = ((own / name).read_text(encoding="utf-8") for name in ("page.css", "filter.js"))
    return document(TITLE, body, style=style, script=script)


def _bill(rows: Sequence[Judged]) -> Markup:
    told = [
        [
            element("span", f"of these {count.size}", class_="note") if count.size else count.paper,
            *(str(number) if number else "" for number in (count.claims, *count.states)),
        ]
        for count in counts(rows)
    ]
    return table(["paper", "claims", *VERDICTS], told, "claims by paper and verdict")


def _not_run(rows: Sequence[Judged]) -> list[Markup]:
    told = [
        [with_code(reason), str(number), ", ".join(f"{name} ({times})" for name, times in where.items())]
        for reason, number, where in reasons(rows)
    ]
    if not told:
        return [element("p", "Every claim has been run.")]
    head = ["why", "claims", "experiments or blocks, with how many claims of each"]
    return [element("h2", "What is not run, and why"), table(head, told, "what is not run", words=True)]


def _filters(rows: Sequence[Judged]) -> Markup:
    """The form of the filters; the script shows it, since it does nothing without."""
    states = {row.best.state for row in rows}
    papers = {row.claim.paper for row in rows}
    choices = [
        _choice("verdict", [(state, state) for state in VERDICTS if state in states]),
        _choice("paper", [(paper, paper) for paper in PAPERS if paper in papers]),
        _choice("kind", list(KINDS.items())),
        element("label", "text ", Markup('<input type="search" name="text">')),
        element("label", Markup('<input type="checkbox" name="open">'), " show all of each"),
    ]
    return element("form", *choices, element("output", ""), hidden="hidden", class_="filters")


def _choice(name: str, options: Iterable[tuple[str, str]]) -> Markup:
    entries = [element("option", f"any {name}", value="")]
    entries += [element("option", words, value=value) for value, words in options]
    return element("label", f"{name} ", element("select", *entries, name_=name))
