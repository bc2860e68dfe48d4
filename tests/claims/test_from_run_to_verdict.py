"""A handful of experiments, from the command to the verdicts, which are those that are committed.

They take half a minute together on two cores; what theorems say does not depend on the machine.
"""

from pathlib import Path

import pytest

from tests.claims import verdicts
from trimtab import cli
from trimtab.claims import RecordStore, claims

EXPERIMENTS = {"bnp-norms": 3, "bnp-descent": 5, "bnp-convolutions": 5, "landscape-theorems": 14, "reg-jacobian": 6}
"""With how many claims each decides by itself at least."""


LONG = ("landscape-theorems", "reg-jacobian")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in EXPERIMENTS]
)
def test_verdicts_are_those_that_are_committed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["claims", "run", "--experiment", name, "--force", "--device", "cpu"]) == 0
    decided = [claim for claim in claims().values() if claim.experiments == (name,)]
    assert len(decided) >= EXPERIMENTS[name]
    store = RecordStore(tmp_path / "runs" / "claims" / "results", shipped=False)
    found = verdicts.lines(store, decided)
    assert len(found) == len(decided)
    assert set(found) <= set(verdicts.FILE.read_text(encoding="utf-8").splitlines())
