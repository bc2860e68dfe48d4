"""What is written of the ledger: Markdown and the page."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.claims.ledger import BLOCKS, NASTY, RECORDS, Store, claim, ledger, numbers, record
from trimtab import cli
from trimtab.claims import RecordStore, best_first
from trimtab.claims.claim import Block
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.intervals import chance_of_agreeing
from trimtab.claims.pages import Judged, JudgedBlock, judged_blocks, markdown, readme_block, with_block
from trimtab.claims.pages.html import page
from trimtab.claims.pages.markdown import BEGIN, END, bill, numbers_of
from trimtab.claims.pages.summary import (
    DERIVED,
    NO_NUMBER,
    NOT_TO_RUN,
    Parts,
    about_parts,
    counts,
    parts,
    place_of,
    reasons,
)
from trimtab.claims.record import Record
from trimtab.claims.verdict import VERDICTS, judge

IDS = [one.id for block in BLOCKS for one in block.claims]


def rows_of(blocks: list[JudgedBlock]) -> list[Judged]:
    return [row for block in blocks for row in block.rows]


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def row_of(name: str, *records: Record) -> list[str]:
    """The row of a claim in Markdown."""
    (line,) = [line for line in markdown(ledger(*records)).splitlines() if line.startswith(f"| `{name}`")]
    return cells(line)


def details_of(name: str, *records: Record) -> str:
    """What the page has on a claim."""
    (found,) = re.findall(rf'<details id="{name}".*?</details>', page(ledger(*records)), re.DOTALL)
    return str(found)


@pytest.mark.parametrize("records", [(), RECORDS], ids=["empty", "full"])
def test_each_claim_has_one_row(records: tuple[Record, ...]) -> None:
    lines = markdown(ledger(*records)).splitlines()
    assert [re.findall("`(.*?)`", line)[0] for line in lines if re.match(r"\| `[a-z]+`<br>", line)] == IDS
    assert re.findall(r'<details id="([^"]*)" class="claim"', page(ledger(*records))) == IDS


@pytest.mark.parametrize("records", [(), RECORDS], ids=["empty", "full"])
def test_all_rows_of_a_table_have_as_many_cells(records: tuple[Record, ...]) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", markdown(ledger(*records)), re.MULTILINE)
    assert len(tables) == 4
    for one in tables:
        assert len({len(cells(line)) for line in one.splitlines()}) == 1


@pytest.mark.parametrize("records", [(), RECORDS], ids=["empty", "full"])
def test_counts_add_up(records: tuple[Record, ...]) -> None:
    rows = rows_of(ledger(*records))
    found = counts(rows)
    papers = [count for count in found if not count.size and count.paper != "all"]
    assert sum(count.claims for count in papers) == len(IDS)
    for count in found:
        assert sum(count.states) == count.claims
    total = next(count for count in found if count.paper == "all" and not count.size)
    assert total.states == tuple(sum(column) for column in zip(*(count.states for count in papers), strict=True))
    of_sizes = [count for count in found if count.paper == "all" and count.size]
    assert sum(count.claims for count in of_sizes) == total.claims - total.states[VERDICTS.index("not run")]


def test_the_bill_says_what_came_out() -> None:
    table = [cells(line) for line in bill(rows_of(ledger(*RECORDS)))]
    assert table[0] == ["paper", "size", "claims", *VERDICTS]
    assert table[2] == ["**bnp**", "", "**7**", "**2**", "**1**", "**1**", "", "", "**3**"]
    assert table[3] == ["", "of these small", "4", "2", "1", "1", "", "", ""]
    assert [row[0] for row in table[2:]] == ["**bnp**", "", "**landscape**", "", "**trimtab**", "**all**", ""]


def test_a_claim_counts_for_its_own_paper() -> None:
    assert next(count for count in counts(rows_of(ledger())) if count.paper == "trimtab").claims == 1


def test_parts_met_and_failed_by_chance() -> None:
    # better: two directions met, its size not applicable; worse: one not met; partly: one met, one not; nasty: one met.
    # All with three seeds, so that each would be met with probability 1/8. Checks are no directions.
    found = parts(rows_of(ledger(*RECORDS)))
    # The two that are not met have all seeds on the other side.
    states = {"met": 5, "not met": 3, "not applicable": 1}
    assert found == Parts(states, 6, 4, 2, 2, pytest.approx(6 / 8), pytest.approx(6 / 2))
    told = about_parts(found)
    assert "4 are met; if no case differed from another, 0.8 at most would be expected to be." in told
    assert "2 are not met, 2 of them with the whole interval on the other side; by chance alone 3.0 at least" in told
    assert "not to be met, 0.8 at most of them so clearly." in told
    more = replace(
        RECORDS[0], numbers={"acc": numbers(bn=[98.0, 98.1, 98.2, 98.1, 98.0], ln=[97.0, 97.2, 97.1, 97.0, 97.1])}
    )
    assert parts(rows_of(ledger(more))).met_by_chance == pytest.approx(6 * chance_of_agreeing(5))


def test_without_records_nothing_is_run() -> None:
    blocks = ledger()
    assert {row.best.state for row in rows_of(blocks)} == {"not run"}
    assert "no part of a criterion has been judged" in markdown(blocks)
    assert "no part of a criterion has been judged" in page(blocks)
    assert "<svg" not in page(blocks)


def test_why_claims_are_not_run() -> None:
    found = {reason: (number, where) for reason, number, where in reasons(rows_of(ledger(*RECORDS)))}
    assert found == {
        "CIFAR-100 is not at hand": (1, {"1.2": 1}),
        NOT_TO_RUN: (1, {"never-run": 1}),
        NO_NUMBER: (1, {"runs": 1}),
        DERIVED: (1, {"1.2": 1}),
    }
    without = reasons(rows_of(ledger()))
    assert without[0] == (NOT_TO_RUN, 8, {"runs": 5, "never-run": 1, "draws": 2})
    assert sum(number for _, number, _ in without) == len(IDS)


def test_a_row_says_all_in_short() -> None:
    name, statement, verdict, said = row_of("better", *RECORDS)
    assert name == "`better`<br>Fig. 3" and statement == "What better says."
    assert verdict == "**holds** (small) [neighbour]"
    assert said.startswith("(a) met: bn 98.1, against 97.1 (ln): +1 (0.9 to 1.1), 3 seeds<br>(b) met: ")
    assert row_of("worse", *RECORDS)[3].endswith("<br>Why: since ln is `worse`")
    assert row_of("nowhere")[2:] == ["**not run**", "CIFAR-100 is not at hand"]


def test_why_something_is_not_run_is_said_once() -> None:
    twice = claim("twice", ["acc: bn > ln", "acc: ln > bn", "acc @ runs: bn > ln"], experiment="never-run")
    needing = claim("needing", ["acc: bn > ln", "acc @ runs: bn > ln"], experiment="never-run", needs="data")
    for one, reason in ((twice, "experiment never-run was not run at size small"), (needing, "data")):
        found = numbers_of(Judged(one, judge(one, "small", Store(*RECORDS), {}, FUNCTIONS)))
        assert found[0] == reason and len(found) == 2 and "met: bn 98.1, against 97.1 (ln)" in found[1]


def test_a_bare_number_is_a_section() -> None:
    places = {"5": "Sec. 5", "3.1, eq. 5": "Sec. 3.1, eq. 5", "Fig. 3": "Fig. 3", "": ""}
    assert {place: place_of(claim("one", [], place=place)) for place in places} == places


def test_a_counterexample_is_shown() -> None:
    told = "first counterexample: draw 7, left 1.25, right 1"
    verdict, said = row_of("false", *RECORDS)[2:]
    assert verdict == "**does not hold** (small) [erratum]<br>corrected form: holds"
    assert said == f"not met: 198 of 200 draws; worst: 1.25 &lt;= 1; {told}"
    assert told in details_of("false", *RECORDS)
    assert "counterexample" not in row_of("true", *RECORDS)[3] + details_of("true", *RECORDS)


def test_experiments_stand_below_their_block() -> None:
    text = markdown(ledger(*RECORDS))
    assert "On the criterion: the words are vague" in text
    training = text.partition("### 1.2")[2].partition("### 2.1")[0]
    assert (
        "- `trimtab claims run --experiment runs --size small`: a machine, 2026-11-18, 12 s, commit 0123456789; digits"
        in (training)
    )
    assert "--experiment draws" not in training


def test_several_sizes() -> None:
    gpu = record("runs", "gpu", units={"acc": "points"}, numbers={"acc": numbers(bn=[90.0, 90.0], ln=[91.0, 92.0])})
    assert row_of("worse", *RECORDS, gpu)[2] == "**holds** (gpu)<br>at size small: does not hold"
    found = details_of("worse", *RECORDS, gpu)
    assert "At size gpu: holds" in found and "At size small: does not hold" in found
    bnp = [count for count in counts(rows_of(ledger(*RECORDS, gpu))) if count.paper == "bnp"]
    assert [(count.size, count.claims) for count in bnp] == [("", 7), ("gpu", 4)]
    assert [(one.experiment, one.size) for one in ledger(*RECORDS, gpu)[0].records] == [
        ("runs", "gpu"),
        ("runs", "small"),
    ]


def test_the_page_has_all_of_a_claim() -> None:
    found = details_of("partly", *RECORDS)
    for words in ("What partly says.", "Fig. 3", "<code>acc</code>: bn better than ln", "the words are vague"):
        assert words in found
    for words in ("(a) acc: bn &gt; ln", "(b) acc: ln &gt; bn", "digits instead of &lt;CIFAR-10&gt;", "a machine"):
        assert words in found
    assert "an earlier run had been seen" in details_of("better", *RECORDS)
    assert "what was asked before (acc: bn &gt; ln). It came out as: does not hold." in details_of("nasty", *RECORDS)
    assert "The corrected form: holds." in details_of("false", *RECORDS)
    whole = page(ledger(*RECORDS))
    assert "a note &amp; more" in whole and "bn M=1 was refused: one row" in whole
    assert whole.count("<svg") == 2


class Balance(HTMLParser):
    """Sees to it that each element is closed, and collects what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "action"):
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"


def test_the_page_is_well_formed_and_asks_for_nothing() -> None:
    text = page(ledger(*RECORDS))
    seen = Balance()
    seen.feed(text)
    assert seen.open == []
    assert len(seen.ids) == len(set(seen.ids))
    assert all(link.startswith(("#", "data:")) for link in seen.links)
    assert "http://" not in text.replace("http://www.w3.org/", "") and "https://" not in text and "@import" not in text


def test_text_is_escaped() -> None:
    text = page(ledger(*RECORDS))
    seen = Balance()
    seen.feed(text)
    assert seen.scripts == 1  # its own
    assert NASTY not in text and "&lt;script&gt;alert(" in text
    written = markdown(ledger(*RECORDS))
    assert "<script>" not in written


def test_the_same_records_give_the_same_files() -> None:
    assert page(ledger(*RECORDS)) == page(ledger(*RECORDS))
    assert markdown(ledger(*RECORDS)) == markdown(ledger(*RECORDS))


def test_the_block_in_the_readme() -> None:
    rows = rows_of(ledger(*RECORDS))
    text = with_block(f"above\n{BEGIN}\nformerly\n{END}\nbelow\n", readme_block(rows))
    assert text.startswith(f"above\n{BEGIN}\n") and text.endswith(f"{END}\nbelow\n") and "formerly" not in text
    assert "\n".join(bill(rows)) in text
    assert with_block(text, readme_block(rows)) == text
    for wrong in ("", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"):
        with pytest.raises(ValueError, match="no place for the table"):
            with_block(wrong, readme_block(rows))


def test_what_lacks_numbers_at_a_larger_size_does_not_hide_what_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = claim("better", ["acc: bn > ln"])
    monkeypatch.setattr("trimtab.claims.claims", lambda: {"better": one})
    RECORDS[0].write(tmp_path)
    record("runs", "gpu", units={"acc": "points"}, numbers={"acc": numbers(bn=[98.0])}).write(tmp_path)
    found = best_first(one, RecordStore(tmp_path, shipped=False))
    assert [(verdict.size, verdict.state) for verdict in found] == [("small", "holds"), ("gpu", "not run")]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    block = Block("1.2", "bnp", "Training", "", BLOCKS[0].claims[:2])
    monkeypatch.setattr("trimtab.claims.pages.blocks", lambda: (block,))
    RECORDS[0].write(tmp_path / "results")
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    assert cli.main(["claims", "report", "--results", "results", "--readme", "README.md"]) == 0
    assert capsys.readouterr().out.split() == ["README.md", "CLAIMS.md", "runs/claims/claims.html"]
    judged = judged_blocks(RecordStore(tmp_path / "results"))
    assert (tmp_path / "CLAIMS.md").read_text(encoding="utf-8") == markdown(judged)
    assert (tmp_path / "runs" / "claims" / "claims.html").read_text(encoding="utf-8") == page(judged)
    assert "**2**" in readme.read_text(encoding="utf-8")


def test_a_readme_without_a_place_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("no place")
    assert cli.main(["claims", "report", "--readme", "README.md"]) == 2
    assert "it has no place for the table" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_the_ledger_of_these_tests_is_judged_by_the_rules() -> None:
    known = {one.id: one for block in BLOCKS for one in block.claims}
    verdict = judge(known["better"], "small", Store(*RECORDS), known, FUNCTIONS)
    assert verdict.state == "holds"
