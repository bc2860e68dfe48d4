"""`trimtab claims list` and `show`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.claims.ledger import BLOCKS, RECORDS
from trimtab import cli
from trimtab.claims import Claim

CLAIMS: dict[str, Claim] = {claim.id: claim for block in BLOCKS for claim in block.claims}


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the small ledger and its records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("trimtab.claims.claims", lambda: CLAIMS)
    monkeypatch.setattr("trimtab.claims.claim_named", CLAIMS.__getitem__)
    for record in RECORDS:
        record.write(tmp_path / "runs" / "claims" / "results")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["claims", *arguments]) == 0
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def test_the_list_has_a_line_for_each_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.rstrip() for line in printed(capsys, "list").splitlines()]
    assert [line.split()[0] for line in lines[:-1]] == list(CLAIMS)
    assert lines[-1] == "10 claims: 3 holds, 2 does not hold, 1 holds in part, 4 not run"
    assert lines[0].split(maxsplit=1)[1] == "holds [neighbour] (small, 2026-11-18): What better says."
    assert lines[4].split(maxsplit=1)[1] == "not run: CIFAR-100 is not at hand"


def test_without_an_action_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys) == printed(capsys, "list")


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (["--paper", "landscape"], ["false", "true"]),
        (["--kind", "T"], ["false", "true"]),
        (["--block", "2.1", "--verdict", "holds"], ["true"]),
        (["--verdict", "holds in part"], ["partly"]),
        (["--paper", "meanfield"], []),
    ],
)
def test_filters(filters: list[str], left: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert [claim["id"] for claim in parsed(capsys, "list", *filters)] == left


def test_a_claim_is_shown_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "show", "worse", "false").splitlines()
    assert lines[:4] == [
        "worse (bnp, Fig. 3)",
        "What worse says.",
        "Criterion: `acc`: bn better than ln",
        "At size small: does not hold [neighbour]",
    ]
    assert "  acc: ln > bn: not met; ln 97.1, against 98.1 (bn): -1 (-1.1 to -0.9), 3 seeds" in lines
    assert "Why: since ln is `worse`" in lines
    assert "On the criterion: the words are vague" in printed(capsys, "show", "partly").splitlines()
    assert lines.count("") == 1  # between the two
    assert "  corrected form, check corrected: met; 200 of 200 draws; nearest: 0.5 <= 1" in lines


@pytest.mark.parametrize("action", [["list"], ["show", *CLAIMS]])
def test_the_likely_reason_is_in_the_json_of_each_claim(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = parsed(capsys, *action)
    claims = found if action == ["list"] else [claim for (claim,) in found]
    assert {claim["id"]: claim["why"] for claim in claims} == {name: claim.why for name, claim in CLAIMS.items()}
    assert {claim["id"] for claim in claims if claim["why"]} == {"worse"}
    assert {claim["id"] for claim in claims if claim["disagrees"]} == {"partly"}


def test_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    ((found,), (nothing,)) = parsed(capsys, "show", "partly", "later")
    assert (found["verdict"], found["size"], found["flags"]) == ("holds in part", "small", ["neighbour"])
    assert [part["state"] for part in found["parts"]] == ["met", "not met"]
    assert found["parts"][0]["interval"]["seeds"] == 3
    assert list(found["records"]) == ["runs"]
    assert (nothing["verdict"], nothing["reason"]) == ("not run", "experiment never-run was not run at size small")
