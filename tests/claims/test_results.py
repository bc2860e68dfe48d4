"""The records that come with trimtab, and what is committed of their verdicts."""

from difflib import unified_diff
from importlib.resources import files
from pathlib import Path

import pytest

from tests.claims import verdicts
from trimtab.claims import RecordStore, claims
from trimtab.claims.experiments.registry import experiments
from trimtab.claims.pages import judged_blocks, markdown, readme_block, with_block
from trimtab.claims.record import Record, file_name

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "src" / "trimtab" / "claims" / "results"
LARGEST = 100_000
REPORT = (
    "PYTHONPATH=src python -m trimtab claims report --results src/trimtab/claims/results --readme README.md "
    "--out runs/claims"
)


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
    computed = markdown(blocks) if name == "CLAIMS.md" else with_block(written, readme_block(rows))
    assert written == computed, f"{name} is not what the records say; renew it by `{REPORT}`"


@pytest.mark.parametrize("folder", ["declarations", "results", "pages"])
def test_data_are_in_the_package(folder: str) -> None:
    inside = {path.name for path in (files("trimtab.claims") / folder).iterdir()}
    assert {path.name for path in (RESULTS.parent / folder).iterdir() if path.is_file()} <= inside
