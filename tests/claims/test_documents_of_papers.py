"""The document of each paper, and its pictures."""

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.claims.ledger import BLOCKS, NASTY, RECORDS, ledger, record
from trimtab import cli
from trimtab.claims.claim import Block
from trimtab.claims.pages import judged_blocks, markdown
from trimtab.claims.pages.documents import documents, write_documents
from trimtab.claims.pages.figures import PaperFigure, PlacedPanel, figures
from trimtab.claims.pages.markdown import bill
from trimtab.claims.pages.pictures import digest, digest_in, picture
from trimtab.claims.pages.summary import about_parts, parts
from trimtab.claims.record import Record
from trimtab.claims.store import RecordStore
from trimtab.report.line_figures import LinePanel


def document(paper: str, *records: Record) -> str:
    return documents(ledger(*records))[f"{paper}.md"]


def entry(name: str, text: str) -> list[str]:
    """The entry of a claim in a list, and the lines below it."""
    lines = text.splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.startswith("- ") and f"`{name}`" in line]
    below = next((i for i, line in enumerate(lines[start + 1 :]) if not line.startswith("  ")), 0)
    return lines[start : start + 1 + below]


def test_each_claim_is_in_the_document_of_its_paper_once() -> None:
    text = documents(ledger(*RECORDS))
    assert list(text) == ["README.md", "bnp.md", "landscape.md", "trimtab.md"]
    for block in BLOCKS:
        for one in block.claims:
            for name, written in text.items():
                entries = [line for line in written.splitlines() if line.startswith("- ") and f"`{one.id}`" in line]
                assert len(entries) == (name == f"{one.paper}.md")


def test_counts_and_chance_are_on_every_one() -> None:
    blocks = ledger(*RECORDS)
    rows = [row for block in blocks for row in block.rows]
    for name, text in documents(blocks).items():
        own = rows if name == "README.md" else [row for row in rows if f"{row.claim.paper}.md" == name]
        assert about_parts(parts(own)) in text
        assert "\n".join(bill(own, total=name == "README.md")) in text


def test_the_figure_comes_first_then_what_holds_and_what_does_not() -> None:
    text = document("bnp", *RECORDS)
    order = ["## 1.2", "![Beside: runs](runs.png)", "**Holds** (2)", "**Holds in part** (1)", "**Does not hold** (1)"]
    places = [text.index(words) for words in [*order, "**Not run** (3)", "<details>"]]
    assert places == sorted(places)
    assert "Undecided" not in text


def test_an_entry_has_numbers_and_the_likely_reason() -> None:
    text = document("bnp", *RECORDS)
    first, *below = entry("worse", text)
    assert first == "- What worse says. (Fig. 3; `worse`; small; neighbour)"
    assert below[0].startswith("  - not met: ln 97.1, against 98.1 (bn)")
    assert below[1] == "  - Likely reason: since ln is `worse`"
    assert entry("partly", text)[-1] == "  - On the criterion: the words are vague"
    assert entry("nowhere", text) == [
        "- What nowhere says. (Fig. 3; `nowhere`)",
        "  - CIFAR-100 is not at hand",
    ]
    assert "erratum; corrected form: holds" in entry("false", document("landscape", *RECORDS))[0]


def test_conditions_criteria_and_experiments_are_folded_away() -> None:
    text = document("bnp", *RECORDS)
    folded = text.partition("<details>")[2].partition("</details>")[0]
    assert "with `--rates 3`" in folded and "bn better than ln" in folded and "(a) `acc: bn > ln`" in folded
    assert "--experiment runs --size small`: a machine, 2026-11-18, 12 s, commit 0123456789" in folded
    assert "  - a note & more" in folded and "  - bn M=1 was refused: one row" in folded
    assert "<script>" not in text


def figure(**lines: list[list[float]]) -> PaperFigure:
    return PaperFigure("one", "Fig. 1", (PlacedPanel(LinePanel("left", lines, "steps", "loss"), RECORDS[0]),))


def test_a_picture_is_small_the_same_every_time_and_knows_what_it_shows() -> None:
    one = figure(bn=[[1, 2], [2, 3]], ln=[[1, 1], [2, 2]])
    content = picture(one)
    assert content == picture(one) and len(content) < 30_000
    assert digest_in(content) == digest(one)
    image = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    for color in ((0, 114, 178), (191, 131, 0)):  # those of bn and ln
        assert (np.abs(image - color).max(axis=-1) < 24).sum() > 100


def test_another_number_another_label_another_digest() -> None:
    one = figure(bn=[[1, 2], [2, 3]])
    others = [
        figure(bn=[[1, 2], [2, 3.0001]]),
        figure(ln=[[1, 2], [2, 3]]),
        replace(one, title="Fig. 2"),
        replace(one, panels=(replace(one.panels[0], panel=replace(one.panels[0].panel, y="accuracy")),)),
    ]
    assert len({digest(each) for each in (one, *others)}) == 5
    assert digest(one) == digest(figure(bn=[[1, 2], [2, 3]]))


def test_what_is_no_picture_of_ours_has_no_digest(tmp_path: Path) -> None:
    assert digest_in(b"no picture") is None
    Image.new("RGB", (2, 2)).save(tmp_path / "other.png")
    assert digest_in((tmp_path / "other.png").read_bytes()) is None


def test_pictures_are_drawn_anew_only_if_what_they_show_has_changed(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "another.png")
    first = write_documents(ledger(*RECORDS), tmp_path)
    assert {path.name for path in first} == {"README.md", "bnp.md", "landscape.md", "trimtab.md", "runs.png"}
    assert (tmp_path / "bnp.md").read_text(encoding="utf-8") == document("bnp", *RECORDS)
    assert "runs.png" not in {path.name for path in write_documents(ledger(*RECORDS), tmp_path)}
    changed = replace(RECORDS[0], curves={"accuracy": {"bn": [[1.0, 50.0], [2.0, 51.0]]}})
    assert tmp_path / "runs.png" in write_documents(ledger(changed, RECORDS[1]), tmp_path)
    write_documents(ledger(), tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"another.png"}  # which is not ours


def test_of_several_sizes_the_largest_that_has_a_curve_is_drawn() -> None:
    larger = record("runs", "gpu", units={"acc": "points"}, curves={"accuracy": {"bn": [[1.0, 50.0], [2.0, 51.0]]}})
    larger.numbers |= RECORDS[0].numbers
    (found,) = figures(ledger(*RECORDS, larger))["1.2"]
    assert [(placed.panel.title, placed.source.partition(";")[0]) for placed in found.panels] == [
        ("Accuracy", "runs, size gpu"),
        ("Loss over steps", "runs, size small"),
    ]
    assert found.panels[0].shade == "" and found.panels[0].panel.lines == larger.curves["accuracy"]


def test_layers_are_found_by_their_names() -> None:
    blocks = judged_blocks(RecordStore())
    drawn = {one.name: one for several in figures(blocks).values() for one in several}
    titles = [placed.panel.title for placed in drawn["landscape-fig3-linear"].panels]
    assert titles == ["layer 2", "layer 8", "layer 14", "layer 19", "layer 25"]


def test_a_figure_of_a_paper_has_its_panels_in_order() -> None:
    blocks = judged_blocks(RecordStore())
    found = {one.name: one for several in figures(blocks).values() for one in several}
    fig3, fig4 = found["bnp-fig3"], found["landscape-fig4"]
    assert [placed.panel.title for placed in fig3.panels] == ["left: MNIST", "right: CIFAR-10"]
    assert [placed.panel.y for placed in fig4.panels] == [
        "loss, and its range",
        "change of the gradient",
        "effective β",
    ]
    assert "shade is the range along the gradient" in fig4.caption and "Lines are medians" in fig4.caption
    assert "Lines are medians" not in found["bnp-scales"].caption


def test_a_map_has_its_rows_where_the_record_has_lines() -> None:
    blocks = judged_blocks(RecordStore())
    (placed,) = next(one for one in figures(blocks)["3.2"] if one.name == "meanfield-fig3").panels
    assert placed.record is not None
    lines = placed.record.curves["test loss over η"]
    assert sorted({y for _, y, _ in placed.panel.cells}) == sorted(float(name.split(" = ")[1]) for name in lines)
    assert {loss for *_, loss in placed.panel.cells} == {point[1] for points in lines.values() for point in points}
    printed = placed.record.curves["η over σ_w²"]["η* paper"]
    assert placed.panel.lines["η* paper"] == [[rate, height] for height, rate in printed]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    block = Block("1.2", "bnp", "Training", "", BLOCKS[0].claims[:2])
    monkeypatch.setattr("trimtab.claims.pages.blocks", lambda: (block,))
    RECORDS[0].write(tmp_path / "results")
    assert cli.main(["claims", "report", "--results", "results", "--docs", "docs/results"]) == 0
    written = ["docs/results/README.md", "docs/results/bnp.md", "docs/results/runs.png"]
    assert capsys.readouterr().out.split() == ["CLAIMS.md", "runs/claims/claims.html", *written]
    blocks = judged_blocks(RecordStore(tmp_path / "results"))
    assert (tmp_path / "CLAIMS.md").read_text(encoding="utf-8") == markdown(blocks, "docs/results/README.md")
    for name, text in documents(blocks, "../../CLAIMS.md").items():
        path = tmp_path / "docs" / "results" / name
        assert path.read_text(encoding="utf-8") == text
        for link in re.findall(r"\]\(([^)]*)\)", text):
            assert (path.parent / link).exists()


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trimtab.claims.pages.blocks", lambda: (Block("1.2", "bnp", "T", "", BLOCKS[0].claims[:1]),))
    (tmp_path / "docs").write_text("a file")
    assert cli.main(["claims", "report", "--docs", "docs"]) == 1
    assert "cannot write docs: File exists; name another place" in capsys.readouterr().err


def test_names_that_mean_something_in_markdown_do_not() -> None:
    text = document("bnp", *RECORDS)
    assert NASTY not in text and "&lt;script>" in text
