"""The ledger as Markdown: the bill, then a row for each claim."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

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
    reasons,
    verdict_text,
)
from trimtab.claims.record import Record
from trimtab.claims.verdict import VERDICTS, Verdict

BEGIN = "<!-- trimtab claims report: from here -->"
END = "<!-- trimtab claims report: to here -->"
HOW_TO_READ = (
    "Every figure, table, theorem and experimental statement of four papers, as a claim that can fail. Its criterion "
    "was written before its run; the verdict is computed from the numbers of a recorded experiment. A verdict belongs "
    "to a size: `small` (two cores, minutes), `gpu` (one GPU, minutes) or `paper` (as in the paper). Where several "
    "sizes were run, the largest one counts."
)


def markdown(blocks: Sequence[JudgedBlock]) -> str:
    """The whole document."""
    rows = [row for block in blocks for row in block.rows]
    lines = ["# Claims and verdicts", "", f"{HOW_TO_READ} This file is written by `trimtab claims report`.", ""]
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


def bill(rows: Sequence[Judged]) -> list[str]:
    """The table of claims by paper, size and verdict."""
    return _table(["paper", "size", "claims", *VERDICTS], [_bill_row(count) for count in counts(rows)])


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
        [_escaped(reason), str(number), _escaped(", ".join(f"{name} ({times})" for name, times in where.items()))]
        for reason, number, where in found
    ]
    head = ["why", "claims", "experiments or blocks, with how many claims of each"]
    return ["What is not run, and why:", "", *_table(head, told)]


def _block(block: JudgedBlock) -> list[str]:
    rows = [[_name(row), _escaped(row.claim.statement), _verdict(row), _numbers(row)] for row in block.rows]
    lines = [f"### {block.block.number} {_escaped(block.block.title)}", ""]
    lines += _table(["claim", "what it says", "verdict", "numbers"], rows)
    records = block.records
    return [*lines, "", *(_about(record) for record in records)] if records else lines


def _name(row: Judged) -> str:
    return f"`{row.claim.id}`<br>{_escaped(row.claim.place)}"


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
    claim, verdict = row.claim, row.best
    lines = [_escaped(verdict.reason)] if row.not_run else []
    for outcome in verdict.outcomes:
        if outcome.state == "not run" and row.not_run:
            continue
        label = f"({outcome.part.label}) " if outcome.part.label else ""
        broken = counterexample(outcome, verdict.records, claim.experiment)
        said = [f"{label}{outcome.state}: {outcome.sentence}", *([broken] if broken else [])]
        lines.append(_escaped("; ".join(said)))
    if claim.why:
        lines.append(f"Why: {_escaped(claim.why)}")
    return "<br>".join(lines)


def _about(record: Record) -> str:
    neighbour = f"; {record.neighbour}" if record.neighbour else ""
    return f"- `{record.command}`: {_escaped(about_record(record) + neighbour)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_SIGNS = re.compile(r"[*~|\\]|(?<!\w)_|_(?!\w)")  # an underscore within a word means nothing in Markdown


def _escaped(text: str) -> str:
    """A text as one cell of a table; what is between backticks stays as it is."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        piece.replace("|", r"\|") if number % 2 else _SIGNS.sub(r"\\\g<0>", piece).replace("<", "&lt;")
        for number, piece in enumerate(pieces)
    )
