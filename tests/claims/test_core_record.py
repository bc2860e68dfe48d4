"""Records, what experiments enter into them, and where they are found."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.claims.helpers import record
from trimtab.claims.findings import Findings
from trimtab.claims.record import Check, Record
from trimtab.claims.store import RecordStore
from trimtab.records import RunNumbers
from trimtab.theory.bounds import Sides

CHECK = {"relation": "<=", "draws": 1, "holds": 1, "left": 0.0, "right": 1.0}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    check = Check("<=", 200, 199, 1.5, 1.25, {"tolerance": 1e-9}, {"draw": 3})
    before = record({"acc": {"a": [1.5, math.inf]}}, checks={"x": check})
    before.curves["panel"] = {"a": [[0.0, 1.0], [1.0, math.nan]]}
    path = before.write(tmp_path / "new")
    assert path.name == "e.small.json"
    after = Record.read(path)
    assert math.isnan(after.curves["panel"]["a"][1][1])
    after.curves["panel"]["a"][1][1] = before.curves["panel"]["a"][1][1] = 0.0
    assert after == before


def test_numbers_are_rounded_where_they_are_written(tmp_path: Path) -> None:
    before = record({"acc": {"a": [1 / 3]}})
    assert Record.read(before.write(tmp_path)).numbers["acc"]["a"]["101"] == 0.3333333


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": 2}, "its schema is not 1"),
        ({"size": "large"}, "size is 'large'"),
        ({"units": {}}, "'acc' has no unit"),
        ({"numbers": {"acc": {"a": {"101": "x"}}}}, "something else than numbers"),
        ({"numbers": {"acc": {"a": {"101": True}}}}, "something else than numbers"),
        ({"numbers": {"acc": {"a": [1.0]}}}, "something else than numbers"),
        ({"numbers": {"acc": [1.0]}}, "something else than numbers"),
        ({"checks": {"x": {"draws": 1}}}, "it has no "),
        ({"checks": {"x": {**CHECK, "draws": 0, "holds": 0}}}, "check 'x' holds for 0 of 0 draws"),
        ({"checks": {"x": {**CHECK, "draws": 2, "holds": 3}}}, "check 'x' holds for 3 of 2 draws"),
        ({"curves": {"f": {"a": 3}}}, "figure 'f' has something else than points"),
        ({"curves": {"f": {"a": [[1, 2, 3]]}}}, "figure 'f' has something else than points"),
        ({"curves": {"f": [1]}}, "figure 'f' has something else than points"),
        ({"experiment": "other"}, "it is of other at size small"),
        ({"size": "gpu"}, "it is of e at size gpu"),
        ({"seconds": "long"}, "seconds is 'long'"),
        ({"more": 1}, "'more', which is not known"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    path = record({"acc": {"a": [1.0]}}).write(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=sentence) as raised:
        Record.read(path)
    assert str(path) in str(raised.value) and "remove it, then it can be run anew" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"schema": 1}'])
def test_files_that_are_no_records(tmp_path: Path, text: str) -> None:
    path = tmp_path / "e.small.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"no record of an experiment"):
        Record.read(path)


class TestFindings:
    def test_numbers(self) -> None:
        findings = Findings()
        findings.number("acc", "a", 1, seed=7, unit="points")
        with pytest.raises(ValueError, match="has the unit points already, not loss"):
            findings.number("acc", "b", 1, unit="loss")
        assert (findings.numbers, findings.units) == ({"acc": {"a": {"7": 1.0}}}, {"acc": "points"})

    def test_runs(self) -> None:
        findings = Findings()
        findings.run("bn", 5, RunNumbers(90.0, 50.0, 88.0, 1.0, 0.1, 0.2, None, None), " 6")
        assert findings.numbers == {
            f"{name} 6": {"bn": {"5": value}}
            for name, value in (("acc", 90), ("early", 50), ("late", 88), ("drop", 1), ("tloss", 0.1), ("vloss", 0.2))
        }
        assert findings.units["acc 6"] == "points" and findings.units["tloss 6"] == "loss"

    def test_checks_keep_the_nearest_draw_and_the_first_counterexample(self) -> None:
        drawn: list[float] = []

        def statement(rng: np.random.Generator) -> Sides:
            drawn.append(float(rng.normal()))
            return Sides(drawn[-1], 1.0)

        check = Findings().check("x", statement, draws=50, seed=3)
        failing = [i for i, left in enumerate(drawn) if left > 1]
        assert drawn[7] == np.random.default_rng([3, 7]).normal()
        assert (check.draws, check.holds) == (50, 50 - len(failing)) and 0 < len(failing) < 50
        assert check.left == max(drawn) and check.right == 1.0
        assert check.counterexample == {"draw": failing[0], "left": drawn[failing[0]], "right": 1.0}

    def test_equations_and_plain_truths(self) -> None:
        findings = Findings()
        check = findings.check("equal", lambda rng: Sides(np.array([1.0, 2.0]), np.array([1.0, 2.5]), "=="), draws=2)
        assert (check.holds, check.left, check.right, check.relation) == (0, 2.0, 2.5, "==")
        assert findings.check("true", lambda rng: True, draws=3).holds == 3
        check = findings.check("false", lambda rng: bool(rng.normal() > 9), draws=3)
        assert check.holds == 0 and check.counterexample is not None
        with pytest.raises(ValueError, match="one draw at least"):
            findings.check("none", lambda rng: True, draws=0)


class TestStore:
    def test_the_first_folder_is_before_the_others(self, tmp_path: Path) -> None:
        record({"acc": {"a": [1.0]}}).write(tmp_path / "one")
        record({"acc": {"a": [2.0]}}).write(tmp_path / "two")
        record(size="gpu").write(tmp_path / "two")
        store = RecordStore(tmp_path / "one", tmp_path / "two", shipped=False)
        found = store.find("e", "small")
        assert found is not None and found.numbers["acc"]["a"]["101"] == 1.0
        assert store.sizes("e") == ("small", "gpu") and store.find("f", "small") is None

    def test_those_that_come_with_trimtab(self, tmp_path: Path) -> None:
        assert RecordStore(tmp_path).find("fc-60-mnist", "small") is not None
        assert RecordStore(tmp_path, shipped=False).find("fc-60-mnist", "small") is None
