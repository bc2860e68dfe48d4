"""The results of each paper as a document of its own, figures first, and an index of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trimtab.claims.claim import KINDS, superseded
from trimtab.claims.pages.earlier import earlier_in
from trimtab.claims.pages.figures import PaperFigure, figures
from trimtab.claims.pages.markdown import (
    HOW_TO_READ,
    SEEN_BLOCK,
    WRITTEN,
    about_experiment,
    bill,
    escaped,
    markdown_table,
    numbers_of,
)
from trimtab.claims.pages.pictures import digest, digest_in, picture
from trimtab.claims.pages.summary import PAPERS, Judged, JudgedBlock, about_parts, parts, place_of
from trimtab.claims.record import Record
from trimtab.claims.verdict import VERDICTS
from trimtab.records import whole_file

INDEX = "README.md"
HEADS = {
    "holds": "Holds",
    "holds in part": "Holds in part",
    "does not hold": "Does not hold",
    "undecided": "Undecided",
    "not applicable": "Not applicable at the size that was run",
    "not run": "Not run",
}


def documents(blocks: Sequence[JudgedBlock], table: str = "") -> dict[str, str]:
    """All documents, by the names of their files; `table` is where all claims are in one table, if there is one."""
    drawn = figures(blocks)
    everything = [row for block in blocks for row in block.rows]
    papers = sorted({row.claim.paper for row in everything}, key=list(PAPERS).index)
    index = [f"- [{paper}]({paper}.md): {PAPERS[paper]}" for paper in papers]
    lines = ["# Results", "", f"{HOW_TO_READ} {WRITTEN}", "", *index, ""]
    lines += [*bill(everything), "", about_parts(parts(everything))]
    lines += ["", f"All claims in one table: [CLAIMS.md]({table})."] if table else []
    return {INDEX: "\n".join(lines) + "\n", **{f"{paper}.md": _document(paper, blocks, drawn) for paper in papers}}


def _document(paper: str, blocks: Sequence[JudgedBlock], drawn: Mapping[str, Sequence[PaperFigure]]) -> str:
    """What came out for one paper."""
    rows = [row for block in blocks for row in block.rows if row.claim.paper == paper]
    lines = [f"# What holds: {paper}", "", f"{PAPERS[paper]}. {WRITTEN} [All papers]({INDEX}).", ""]
    lines += [*bill(rows, total=False), "", about_parts(parts(rows))]
    for block in blocks:
        own = JudgedBlock(block.block, tuple(row for row in block.rows if row.claim.paper == paper))
        if own.rows:
            known = {record.experiment for record in own.records}
            shown = [figure for figure in drawn[block.block.number] if figure.experiments & known]
            lines += ["", *_block(own, shown)]
    return "\n".join(lines) + "\n"


def _block(block: JudgedBlock, figures: Sequence[PaperFigure]) -> list[str]:
    """Figures first, then what holds and what does not, then with what it was found."""
    about = block.block
    lines = [f"## {about.number} {escaped(about.title)}"]
    for figure in figures:
        lines += ["", f"![{escaped(figure.title)}]({figure.name}.png)", "", f"*{escaped(figure.caption)}*"]
    for run in earlier_in(block):
        lines += ["", run.sentence, "", *markdown_table(run.head, run.rows), "", f"`{run.command}`: {run.about_it}."]
    for state in VERDICTS:
        rows = [row for row in block.rows if row.best.state == state]
        if rows:
            lines += ["", f"**{HEADS[state]}** ({len(rows)})", "", *(line for row in rows for line in _claim(row))]
    return [*lines, "", *_details(block)]


def _claim(row: Judged) -> list[str]:
    """A claim with its numbers, what is to be said of its criterion, and the likely reason, as an entry of a list."""
    claim, best = row.claim, row.best
    told = [place_of(claim), f"`{claim.id}`", *([] if row.not_run else [best.size]), *best.flags]
    told += [f"at size {other.size}: {other.state}" for other in row.others]
    if best.corrected_state:
        told.append(f"corrected form: {best.corrected_state}")
    entry = f"- {_text(claim.statement)} ({_text('; '.join(told))})"
    below = list(numbers_of(row))
    below += [f"On the criterion: {claim.disagrees}"] if claim.disagrees else []
    below += [f"Likely reason: {claim.why}"] if claim.why else []
    below += superseded(claim)
    return [entry, *(f"  - {_text(line)}" for line in below)]


def _text(words: str) -> str:
    return escaped(words, cell=False)


def _details(block: JudgedBlock) -> list[str]:
    """Conditions, criteria and experiments, folded away."""
    lines = ["<details><summary>Conditions, criteria, experiments</summary>", ""]
    lines += [_text(block.block.conditions), ""] if block.block.conditions else []
    lines += [SEEN_BLOCK, ""] if all(row.claim.seen for row in block.rows) else []
    criteria = [
        [f"`{row.claim.id}`", KINDS[row.claim.kind], escaped(row.claim.criterion), _computed(row)] for row in block.rows
    ]
    lines += markdown_table(["claim", "kind", "met if", "computed as"], criteria)
    if block.records:
        lines += ["", *(line for record in block.records for line in _experiment(record))]
    return [*lines, "", "</details>"]


def _computed(row: Judged) -> str:
    """The computable form of a criterion."""
    return "<br>".join(
        escaped(f"({part.label}) `{part.text}`" if part.label else f"`{part.text}`") for part in row.claim.parts
    )


def _experiment(record: Record) -> list[str]:
    notes = [*record.notes, *(f"{case} was refused: {why}" for case, why in record.refused.items())]
    return [about_experiment(record), *(f"  - {_text(note)}" for note in notes)]


def write_documents(blocks: Sequence[JudgedBlock], folder: Path, table: str = "") -> list[Path]:
    """Write all documents and their pictures into a folder; returns the files that were written.

    A picture that shows the same as before stays as it is, so that the letters of another machine are no change.
    Pictures of figures that are there no more are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{figure.name}.png": figure for found in figures(blocks).values() for figure in found}
    contents = {folder / name: text.encode() for name, text in documents(blocks, table).items()}
    for path, figure in wanted.items():
        if not path.is_file() or digest_in(path.read_bytes()) != digest(figure):
            contents[path] = picture(figure)
    for path, content in contents.items():
        with whole_file(path) as file:
            file.write(content)
    for path in folder.glob("*.png"):
        if path not in wanted and digest_in(path.read_bytes()) is not None:
            path.unlink()
    return list(contents)
