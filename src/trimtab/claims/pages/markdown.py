"""The ledger as Markdown: the bill, then a row for each claim."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from trimtab.claims.claim import SEEN, superseded
from trimtab.claims.pages.earlier import earlier_in
from trimtab.claims.pages.summary import (
    PAPERS,
    Count,
    Judged,
    JudgedBlock,
    about_parts,
    about_record,
    counterexample,
    counts,
    parts,
    place_of,
    reasons,
    verdict_text,
)
from trimtab.claims.record import Record
from trimtab.claims.verdict import VERDICTS, Verdict

BEGIN = "<!-- trimtab claims report: from here -->"
WRITTEN = "This file is written by `trimtab claims report`."
END = "<!-- trimtab claims report: to here -->"
SEEN_BLOCK = f"Of all claims of this block: {SEEN}."
HOW_TO_READ = (
    "Every figure, table, theorem and experimental statement of four papers, as a claim that can fail. Its criterion "
    "was written before its run; the verdict is computed from the numbers of a recorded experiment. A verdict belongs "
    "to a size: `small` (two cores, minutes), `gpu` (one GPU, minutes) or `paper` (as in the paper). Where several "
    "sizes were run, the largest one counts."
)


def markdown(blocks: Sequence[JudgedBlock], documents: str = "") -> str:
    """The whole document; `documents` is where the index of those with figures is, if there is one."""
    rows = [row for block in blocks for row in block.rows]
    lines = ["# Claims and verdicts", "", f"{HOW_TO_READ} {WRITTEN}", ""]
    if documents:
        lines += [f"With the figures, a page for each paper: [{documents}]({documents}).", ""]
    lines += [*bill(rows), "", about_parts(parts(rows)), "", *_not_run(rows)]
    for paper, several in groupby(blocks, key=lambda block: block.block.paper):
        lines += ["", f"## {paper}", "", f"{PAPERS[paper]}."]
        for block in several:
            lines += ["", *_block(block)]
    return "\n".join(lines) + "\n"


def readme_block(rows: Sequence[Judged]) -> str:
    """What stands in the README: the bill, between two marks."""
    return "\n".join([BEGIN, "", *bill(rows), "", about_parts(parts(rows)), "", END])


def with_block(text: str, block: str) -> str:
    """A text with what is between its marks replaced.

    Raises:
        ValueError: If the marks are not there, each once and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"it has no place for the table; write {BEGIN!r} and below it {END!r}, each once")
    return f"{before}{block}{after}"


def bill(rows: Sequence[Judged], *, total: bool = True) -> list[str]:
    """The table of claims by paper, size and verdict; with the sum of all papers."""
    told = [_bill_row(count) for count in counts(rows) if total or count.paper != "all"]
    return markdown_table(["paper", "size", "claims", *VERDICTS], told)


def _bill_row(count: Count) -> list[str]:
    numbers = [str(number) if number else "" for number in (count.claims, *count.states)]
    if count.size:
        return ["", f"of these {count.size}", *numbers]
    return [f"**{count.paper}**", "", *(f"**{number}**" if number else "" for number in numbers)]


def _not_run(rows: Sequence[Judged]) -> list[str]:
    found = reasons(rows)
    if not found:
        return ["Every claim has been run."]
    told = [
        [escaped(reason), str(number), escaped(", ".join(f"{name} ({times})" for name, times in where.items()))]
        for reason, number, where in found
    ]
    head = ["why", "claims", "experiments or blocks, with how many claims of each"]
    return ["What is not run, and why:", "", *markdown_table(head, told)]


def _block(block: JudgedBlock) -> list[str]:
    rows = [[_name(row), escaped(row.claim.statement), _verdict(row), _numbers(row)] for row in block.rows]
    lines = [f"### {block.block.number} {escaped(block.block.title)}", ""]
    if all(row.claim.seen for row in block.rows):
        lines += [SEEN_BLOCK, ""]
    lines += markdown_table(["claim", "what it says", "verdict", "numbers"], rows)
    records = block.records
    lines += ["", *(about_experiment(record) for record in records)] if records else []
    for run in earlier_in(block):
        lines += ["", run.sentence, "", *markdown_table(run.head, run.rows), "", f"`{run.command}`: {run.about_it}."]
    return lines


def _name(row: Judged) -> str:
    return f"`{row.claim.id}`<br>{escaped(place_of(row.claim))}"


def _verdict(row: Judged) -> str:
    lines = [_bold(row.best)]
    if row.best.corrected_state:
        lines.append(f"corrected form: {row.best.corrected_state}")
    lines += [f"at size {other.size}: {other.state}" for other in row.others]
    return "<br>".join(lines)


def _bold(verdict: Verdict) -> str:
    state, _, rest = verdict_text(verdict).partition(" (")
    return f"**{state}**" + (f" ({rest}" if rest else "")


def _numbers(row: Judged) -> str:
    """The parts with their numbers; of what was not run the reason."""
    lines = [escaped(line) for line in numbers_of(row)]
    if row.claim.disagrees:
        lines.append(f"On the criterion: {escaped(row.claim.disagrees)}")
    if row.claim.why:
        lines.append(f"Why: {escaped(row.claim.why)}")
    lines += map(escaped, superseded(row.claim))
    return "<br>".join(lines)


def numbers_of(row: Judged) -> list[str]:
    """A line for each part with its numbers; for what was not run the reason."""
    claim, verdict = row.claim, row.best
    lines = [verdict.reason] if row.not_run else []
    told: set[str] = set()
    for outcome in verdict.outcomes:
        if outcome.state == "not run" and (row.not_run or outcome.sentence in told):
            continue
        told.add(outcome.sentence)
        label = f"({outcome.part.label}) " if outcome.part.label else ""
        broken = counterexample(outcome, verdict.records, claim.experiment)
        lines.append("; ".join([f"{label}{outcome.state}: {outcome.sentence}", *([broken] if broken else [])]))
    if verdict.to_decide:
        lines.append(f"Undecided: {verdict.to_decide}")
    return lines


def about_experiment(record: Record) -> str:
    """A record as an entry of a list: command, hardware, date, time, commit."""
    neighbour = f"; {record.neighbour}" if record.neighbour else ""
    return f"- `{record.command}`: {escaped(about_record(record) + neighbour)}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_SIGNS = re.compile(r"[*~|\\]|(?<!\w)_|_(?!\w)")  # an underscore within a word means nothing in Markdown


def escaped(text: str, *, cell: bool = True) -> str:
    """A text as one cell of a table, or as a paragraph; what is between backticks stays as it is."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        (piece.replace("|", r"\|") if cell else piece)
        if number % 2
        else _SIGNS.sub(r"\\\g<0>", piece).replace("<", "&lt;")
        for number, piece in enumerate(pieces)
    )
