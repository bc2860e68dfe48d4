"""Earlier runs are shown beside the claims they are about, and no verdict knows of them."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from trimtab.claims import RecordStore, claims
from trimtab.claims.pages import JudgedBlock, judged_blocks, markdown
from trimtab.claims.pages.documents import documents
from trimtab.claims.pages.earlier import EarlierRun, earlier_runs
from trimtab.claims.pages.figures import figures
from trimtab.claims.pages.html import page
from trimtab.claims.record import Record

SAID = "An earlier run, seen when the criteria were written, not counted in any verdict: ResNet-110 on CIFAR-10"


def verdicts(blocks: Sequence[JudgedBlock]) -> list[tuple[object, ...]]:
    return [(row.claim.id, one) for block in blocks for row in block.rows for one in (row.best, *row.others)]


def use(runs: tuple[EarlierRun, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("earlier", "figures"):
        monkeypatch.setattr(f"trimtab.claims.pages.{module}.earlier_runs", lambda: runs)


def test_what_it_is() -> None:
    (run,) = earlier_runs()
    assert set(run.accuracy) == {"bn", "gn", "bnp+gn"} and {len(ys) for ys in run.accuracy.values()} == {160}
    assert [run.accuracy[method][-1] for method in ("bn", "gn", "bnp+gn")] == [93.67, 92.39, 93.61]
    assert run.accuracy["bnp+gn"][4] == 77.85 and run.rows[2][2] == "77.85"  # after epoch 5
    claim = claims()["bnp-fig6-left-before"]
    assert claim.experiment == run.experiment and claim.seen


@pytest.mark.slow
def test_it_is_shown_beside_its_claims_and_nowhere_else() -> None:
    blocks = judged_blocks(RecordStore())
    text = documents(blocks)
    for written, before, after in (
        (markdown(blocks), "### 1.5", "### 1.6"),
        (text["bnp.md"], "## 1.5", "## 1.6"),
        (page(blocks), 'id="block-1.5"', 'id="block-1.6"'),
    ):
        inside = written.partition(before)[2].partition(after)[0]
        assert inside.count(SAID) == written.count(SAID) == 1
        assert "93.61" in inside and "seed 0" in inside and "44d92da" in inside and "H200" in inside
    assert not any(SAID in other for name, other in text.items() if name != "bnp.md")


def test_no_verdict_knows_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = earlier_runs()
    expected = verdicts(judged_blocks(RecordStore()))
    absurd = replace(run, accuracy={method: [100.0] * 160 for method in ("bn", "gn", "bnp", "bnp+gn")})
    for runs in ((), (absurd,)):
        use(runs, monkeypatch)
        blocks = judged_blocks(RecordStore())
        assert verdicts(blocks) == expected
        assert (SAID in markdown(blocks)) == bool(runs)


def test_without_a_record_its_claims_are_not_run() -> None:
    blocks = judged_blocks(RecordStore(shipped=False))
    (block,) = [block for block in blocks if block.block.number == "1.5"]
    assert {row.best.state for row in block.rows} == {"not run"}
    assert figures(blocks)["1.5"] == []  # it is no figure of the paper's by itself


def test_it_is_no_record(tmp_path: Path) -> None:
    source = files("trimtab.claims") / "earlier" / "resnet110.json"
    with as_file(source) as path:
        shutil.copy(path, tmp_path / "resnet110.paper.json")
    with pytest.raises(ValueError, match="is no record of an experiment"):
        Record.read(tmp_path / "resnet110.paper.json")
