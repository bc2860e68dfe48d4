"""Results in a file."""

import json
import math
from pathlib import Path

import pytest

from trimtab.records import RESULTS, Candidate, Cell, Comparison, Trial

CELL = Cell(
    *("small-cnn", 2, "bnp", 3, None, "sgd"),
    candidates=(Candidate(0.01, 0.5, 1.0, "a"), Candidate(0.1, None, None, "b")),
    lr=0.01,
    trials=(Trial(1, 0.5, False, "c"), Trial(2, 0.7, False, "d")),
)


def comparison(*cells: Cell) -> Comparison:
    return Comparison(
        command="trimtab compare",
        data="digits",
        parts=(1000, 397, 400),
        metric="accuracy",
        machine="none",
        versions={"torch": "2"},
        side_by_side=2,
        seeds=2,
        finished=True,
        cells=cells,
        conclusion="Nothing.",
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    impossible = Cell("small-mlp", 1, "bn", None, 100, "sgd", why_not="one row")
    infinite = Cell("dln25", 0, "vanilla", None, 9, "sgd", lr=1.0, trials=(Trial(1, math.inf, True, "e"),))
    written = comparison(CELL, impossible, infinite)
    written.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [RESULTS]
    assert Comparison.read(tmp_path) == written
    means = [cell["mean"] for cell in json.loads((tmp_path / RESULTS).read_text())["cells"]]
    assert means == [pytest.approx(0.6), None, None]


def test_edges() -> None:
    assert CELL.lr_at_edge
    assert CELL.mean == pytest.approx(0.6)
    assert not Cell("a", 1, "b", 1, None, "sgd", lr=0.1).lr_at_edge


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not JSON"), ("[]", "schema None"), ('{"schema": 1}', "schema 1"), ('{"schema": 2}', "not the result")],
)
def test_foreign_files(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(content)
    with pytest.raises(ValueError, match=message):
        Comparison.read(tmp_path)
