"""`trimtab claims list` and `show`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.claims.ledger import BLOCKS, RECORDS
from tests.claims.ledger import claim as ledger_claim
from tests.claims.ledger import record as ledger_record
from trimtab import cli
from trimtab.claims import Block, Claim, RecordStore
from trimtab.claims.pages import judged, markdown
from trimtab.claims.pages.documents import documents
from trimtab.claims.pages.html import page
from trimtab.claims.verdict import judge

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
    ("words", "lacks"),
    [
        (["list"], "rich, pyyaml"),
        (["list", "--json"], "pyyaml"),
        (["show", "better"], "pyyaml"),
        (["run", "better"], "scikit-learn, pyyaml"),
        (["report"], "matplotlib, pyyaml"),
    ],
)
def test_without_the_lab_each_says_what_it_needs(
    words: list[str], lacks: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.cli.common.find_spec", lambda name: None)
    assert cli.main(["claims", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("trimtab: this needs ") and "pip install '.[lab]'" in told
    assert set(told.removeprefix("trimtab: this needs ").partition(";")[0].split(", ")) == set(lacks.split(", "))


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


def test_what_was_seen_before_and_what_was_replaced_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    seen = "Seen before: an earlier run had been seen when the criterion was written; new seeds decide."
    assert seen in printed(capsys, "show", "better").splitlines()
    assert "Seen before" not in printed(capsys, "show", "worse")
    assert "Until 2026-11-01 the criterion was: what was asked before (acc: bn > ln)." in printed(
        capsys, "show", "nasty"
    )
    ((better,), (nasty,)) = parsed(capsys, "show", "better", "nasty")
    assert (better["seen"], better["supersedes"]) == (True, [])
    assert (nasty["seen"], nasty["supersedes"][0]["verdict"]) == (False, "does not hold")
    assert printed(capsys, "show", "partly").count("the words are vague") == 1


def test_what_is_undecided_says_what_would_decide_it(capsys: pytest.CaptureFixture[str]) -> None:
    command = "`trimtab claims run --experiment fc-60-mnist --size small --force --more-seeds 2`, about "
    acc = {"bn": {"101": 98.0, "102": 97.0}, "ln": {"101": 97.5, "102": 97.2}}
    of_runs = ledger_record("fc-60-mnist", "small", units={"acc": "points"}, numbers={"acc": acc})
    of_runs.write(Path("runs/claims/results"))
    CLAIMS["open"] = ledger_claim("open", ["acc: bn > ln"], experiment="fc-60-mnist")
    try:
        assert f"  undecided: more seeds may decide it: {command}" in printed(capsys, "show", "open")
        ((found,),) = parsed(capsys, "show", "open")
        assert found["verdict"] == "undecided" and command in found["to_decide"]
        store = RecordStore(Path("runs/claims/results"))
        about = Block("1.2", "bnp", "Training", "", (CLAIMS["open"],))
        blocks = [judged(about, {"open": [judge(CLAIMS["open"], "small", store, CLAIMS, {})]})]
    finally:
        del CLAIMS["open"]
    assert f"Undecided: more seeds may decide it: {command}" in markdown(blocks)
    assert f"Undecided: more seeds may decide it: {command}" in documents(blocks)["bnp.md"]
    assert "Undecided: more seeds may decide it: <code>trimtab claims run" in page(blocks)
    seen = Block("1.2", "bnp", "Training", "", (CLAIMS["better"],))
    blocks = [judged(seen, {"better": [judge(CLAIMS["better"], "small", store, CLAIMS, {})]})]
    told = "Of all claims of this block: an earlier run had been seen"
    assert told in markdown(blocks) and told in documents(blocks)["bnp.md"]


def test_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    ((found,), (nothing,)) = parsed(capsys, "show", "partly", "later")
    assert (found["verdict"], found["size"], found["flags"]) == ("holds in part", "small", ["neighbour"])
    assert [part["state"] for part in found["parts"]] == ["met", "not met"]
    assert found["parts"][0]["interval"]["seeds"] == 3
    assert list(found["records"]) == ["runs"]
    assert (nothing["verdict"], nothing["reason"]) == ("not run", "experiment never-run was not run at size small")
