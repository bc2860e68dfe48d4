"""The records that come with trimtab, and what is committed of their verdicts."""

import re
from collections import Counter
from difflib import unified_diff
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path

import pytest

from tests.claims import verdicts
from trimtab.claims import SIZES, RecordStore, claims
from trimtab.claims import blocks as claimed_blocks
from trimtab.claims.experiments.registry import Experiment, experiments
from trimtab.claims.pages import judged_blocks, markdown, readme_block, with_block
from trimtab.claims.pages.documents import documents
from trimtab.claims.pages.figures import figures, layout
from trimtab.claims.pages.pictures import digest, digest_in
from trimtab.claims.plans import FIRST_SEEDS, MORE_SEEDS, plan_first
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
    changed = list(
        unified_diff(
            expected, verdicts.lines(RecordStore(), claims().values()), "committed", "computed", lineterm="", n=0
        )
    )
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


def test_each_curve_of_each_experiment_is_drawn_once() -> None:
    blocks = judged_blocks(RecordStore())
    panels = [placed for found in figures(blocks).values() for figure in found for placed in figure.panels]
    drawn = Counter(
        (one.record.experiment, str(one.panel.lines)) for one in panels if one.record and not one.panel.cells
    )
    maps = {
        (panel["experiment"], panel[key])
        for figure in layout()
        for panel in figure["panels"]
        for key in ("curve", "over")
        if "over" in panel
    }
    largest = {
        (record.experiment, name): str(lines)
        for block in blocks
        for size in SIZES
        for record in block.records
        if record.size == size
        for name, lines in record.curves.items()
    }
    assert drawn == Counter((key[0], lines) for key, lines in largest.items() if key not in maps)
    assert len(drawn) > 50


def test_figures_are_laid_out_for_experiments_and_blocks_that_there_are() -> None:
    numbers = {block.number for block in claimed_blocks()}
    assert len({figure["name"] for figure in layout()}) == len(layout())
    for figure in layout():
        assert figure["block"] in numbers
        assert {panel["experiment"] for panel in figure["panels"]} <= experiments().keys(), figure["name"]
        assert all("title" in panel or panel["curve"].endswith("*") for panel in figure["panels"])


NOT_AT_THESE_SIZES = {
    "test loss over η with cross-entropy": "trained at sizes gpu and paper",
    "η over γ with cross-entropy": "the same",
}


def test_laid_out_curves_are_in_the_records() -> None:
    store = RecordStore()
    for figure in layout():
        for panel in figure["panels"]:
            sizes = store.sizes(panel["experiment"])
            records = [record for size in sizes if (record := store.find(panel["experiment"], size)) is not None]
            for key in ("curve", "over") if records else ():
                name = panel.get(key, panel["curve"])
                there = any(fnmatch(curve, name) for record in records for curve in record.curves)
                assert there or name in NOT_AT_THESE_SIZES, f"{figure['name']}: {panel['experiment']} has no {name!r}"


@pytest.mark.parametrize("folder", ["declarations", "results", "pages", "earlier"])
def test_data_are_in_the_package(folder: str) -> None:
    inside = {path.name for path in (files("trimtab.claims") / folder).iterdir()}
    assert {path.name for path in (RESULTS.parent / folder).iterdir() if path.is_file()} <= inside


@pytest.mark.parametrize("one", [one for one in experiments().values() if one.seeds], ids=lambda one: one.name)
def test_seeds_of_the_passes_are_those_of_the_record(one: Experiment) -> None:
    assert one.seeds is not None
    first, both = one.seeds
    assert 2 <= first < both  # one seed decides nothing
    record = RecordStore().find(one.name, "small")
    if record is None or MORE_SEEDS in record.command:
        return
    found = {seed for cases in record.numbers.values() for seeds in cases.values() for seed in seeds} - {"all"}
    assert len(found) == (first if FIRST_SEEDS in record.command else both)


def test_the_first_pass_takes_less_than_three_hours() -> None:
    """By the minutes that are declared: two cores, at size small."""
    assert plan_first(claims().values(), "small", RecordStore(shipped=False)).minutes < 180
