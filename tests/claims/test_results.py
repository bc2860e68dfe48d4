"""The records that come with trimtab, and what is committed of their verdicts."""

import re
from collections import Counter
from difflib import unified_diff
from importlib.resources import files
from pathlib import Path

import pytest

from tests.claims import verdicts
from trimtab.claims import RecordStore
from trimtab.claims.experiments.registry import experiments
from trimtab.claims.pages import judged_blocks, markdown, readme_block, with_block
from trimtab.claims.pages.documents import documents
from trimtab.claims.pages.figures import figures, layout
from trimtab.claims.pages.pictures import digest, digest_in
from trimtab.claims.record import Record, file_name

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "src" / "trimtab" / "claims" / "results"
LARGEST = 100_000
REPORT = (
    "PYTHONPATH=src python -m trimtab claims report --results src/trimtab/claims/results --readme README.md "
    "--docs docs/results"
)
DOCS = ROOT / "docs" / "results"
LARGEST_PICTURE, ALL_PICTURES = 100_000, 1_500_000


@pytest.mark.parametrize("path", sorted(RESULTS.iterdir()), ids=lambda path: path.name)
def test_each_record_is_of_a_known_experiment_and_small(path: Path) -> None:
    record = Record.read(path)
    assert path.name == file_name(record.experiment, record.size)
    assert record.experiment in experiments(), f"{path.name}: there is no such experiment; remove the record"
    assert record.size in experiments()[record.experiment].minutes
    assert path.stat().st_size < LARGEST, f"{path.name} is too large; keep in it only what verdicts and figures need"


def test_verdicts_are_those_that_are_committed() -> None:
    expected = verdicts.FILE.read_text(encoding="utf-8").splitlines()
    changed = list(unified_diff(expected, verdicts.lines(), "committed", "computed", lineterm="", n=0))
    told = "\n".join(changed)
    assert not changed, f"verdicts have changed; if that is meant, renew the file by `{verdicts.HOW}`:\n{told}"


@pytest.mark.parametrize("name", ["README.md", "CLAIMS.md"])
def test_documents_have_these_verdicts(name: str) -> None:
    blocks = judged_blocks(RecordStore())
    written = (ROOT / name).read_text(encoding="utf-8")
    rows = [row for block in blocks for row in block.rows]
    computed = (
        markdown(blocks, "docs/results/README.md") if name == "CLAIMS.md" else with_block(written, readme_block(rows))
    )
    assert written == computed, f"{name} is not what the records say; renew it by `{REPORT}`"


def test_the_documents_of_the_papers_say_what_the_records_do() -> None:
    computed = documents(judged_blocks(RecordStore()), "../../CLAIMS.md")
    assert {path.name for path in DOCS.glob("*.md")} == set(computed)
    for name, text in computed.items():
        written = (DOCS / name).read_text(encoding="utf-8")
        assert written == text, f"docs/results/{name} is not what the records say; renew it by `{REPORT}`"


def test_the_pictures_show_what_the_records_do() -> None:
    drawn = {f"{one.name}.png": one for found in figures(judged_blocks(RecordStore())).values() for one in found}
    pictures = {path.name: path.read_bytes() for path in DOCS.glob("*.png")}
    assert set(pictures) == set(drawn), (
        f"docs/results has other pictures than the records give; renew them by `{REPORT}`"
    )
    for name, figure in drawn.items():
        assert digest_in(pictures[name]) == digest(figure), f"{name} shows other records; renew it by `{REPORT}`"
        assert len(pictures[name]) < LARGEST_PICTURE
    assert sum(map(len, pictures.values())) < ALL_PICTURES
    embedded = {
        name for path in DOCS.glob("*.md") for name in re.findall(r"!\[[^]]*\]\(([^)]*)\)", path.read_text("utf-8"))
    }
    assert embedded == set(pictures)


def test_each_curve_of_each_record_is_drawn_once() -> None:
    store = RecordStore()
    blocks = judged_blocks(store)
    drawn = Counter(
        (placed.record.experiment, str(lines))
        for found in figures(blocks).values()
        for figure in found
        for placed in figure.panels
        if placed.record is not None and not placed.panel.cells
        for lines in [placed.panel.lines]
    )
    used = {record.experiment: record for block in blocks for record in reversed(block.records)}
    maps = {
        (panel["experiment"], name)
        for figure in layout()
        for panel in figure["panels"]
        if "over" in panel
        for name in (panel["curve"], panel["over"])
    }
    expected = Counter(
        (record.experiment, str(lines))
        for record in used.values()
        for name, lines in record.curves.items()
        if (record.experiment, name) not in maps
    )
    assert drawn == expected and len(drawn) > 50


def test_figures_are_laid_out_for_experiments_and_blocks_that_there_are() -> None:
    store, numbers = RecordStore(), {block.block.number for block in judged_blocks(RecordStore())}
    assert len({figure["name"] for figure in layout()}) == len(layout())
    for figure in layout():
        assert figure["block"] in numbers
        for panel in figure["panels"]:
            assert panel["experiment"] in experiments(), f"{figure['name']}: there is no {panel['experiment']}"
            for size in store.sizes(panel["experiment"]):
                record = store.find(panel["experiment"], size)
                assert (
                    record is not None and {panel["curve"], panel.get("over", panel["curve"])} <= record.curves.keys()
                )


@pytest.mark.parametrize("folder", ["declarations", "results", "pages", "earlier"])
def test_data_are_in_the_package(folder: str) -> None:
    inside = {path.name for path in (files("trimtab.claims") / folder).iterdir()}
    assert {path.name for path in (RESULTS.parent / folder).iterdir() if path.is_file()} <= inside
