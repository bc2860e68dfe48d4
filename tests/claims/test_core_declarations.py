"""The declarations: they are those of the ledger, and name what there is."""

import hashlib
import tomllib
from pathlib import Path

import pytest

from tests.claims.digests import DECLARATIONS, with_digests
from trimtab.claims import blocks, claim_named, claims
from trimtab.claims.claim import digest_of
from trimtab.claims.declarations import _block
from trimtab.claims.experiments.registry import experiments
from trimtab.claims.functions import FUNCTIONS

CRITERIA = Path(__file__).parent / "criteria.txt"
"""The digests of the criteria, in words, as they were written before any run: an id and a digest on each line."""
COUNTS = {"bnp": 123, "landscape": 76, "meanfield": 44, "regularization": 79}


def test_ids_and_criteria_are_those_of_the_ledger() -> None:
    written = dict(line.split() for line in CRITERIA.read_text().splitlines())
    ours = {claim.id: claim for claim in claims().values() if claim.paper != "trimtab"}
    assert list(ours) and set(ours) == set(written)
    for name, claim in ours.items():
        first = claim.supersedes[0].criterion if claim.supersedes else claim.criterion
        assert hashlib.sha256(first.encode()).hexdigest()[:12] == written[name], f"the criterion of {name} was changed"


def test_counts() -> None:
    assert {paper: sum(claim.paper == paper for claim in claims().values()) for paper in COUNTS} == COUNTS
    assert sum(len(block.claims) for block in blocks()) == len(claims())


def test_what_they_name_is_there() -> None:
    named = experiments()
    for claim in claims().values():
        for part in (*claim.parts, *claim.corrected):
            assert part.kind != "claim" or part.name in claims(), f"{claim.id}: {part.text}"
            assert part.kind != "function" or part.name in FUNCTIONS, f"{claim.id}: {part.text}"
            assert part.kind == "claim" or part.experiment or claim.experiment, f"{claim.id}: {part.text}"
        assert set(claim.experiments) <= named.keys(), claim.id
        assert claim.disagrees == "" or claim.disagrees.endswith("."), claim.id


def test_each_experiment_decides_something_and_has_a_size() -> None:
    wanted = {name for claim in claims().values() for name in claim.experiments}
    assert set(experiments()) <= wanted
    for one in experiments().values():
        assert one.minutes and set(one.needs) <= set(one.minutes) and min(one.minutes.values()) > 0


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(ValueError, match=r"there is no claim 'bnp-fig3-lft-ln'; did you mean 'bnp-fig3-left-ln'\?"):
        claim_named("bnp-fig3-lft-ln")


DECLARED = {
    "id": "x",
    "place": "1",
    "kind": "T",
    "statement": "S.",
    "criterion": "c",
    "parts": ["check a"],
    "experiment": "e",
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parts": []}, "x has no parts; declare them, or say under needs"),
        ({"parts": ["acc bn"]}, "x: part 'acc bn' is none of the forms"),
        ({"kind": "X"}, "x: kind is 'X', not one of T, M, C, S"),
        ({"digest": "000000000000"}, "the criterion has changed"),
        ({"wrong": 1}, "x has 'wrong', which is not known"),
    ],
)
def test_wrong_declarations(change: dict[str, object], sentence: str) -> None:
    block = {"block": "1.1", "paper": "bnp", "title": "t", "conditions": "", "seen": False}
    with pytest.raises(ValueError, match=sentence):
        _block({**block, "claim": [{**DECLARED, **change}]})


@pytest.mark.parametrize("path", sorted(DECLARATIONS.glob("*.toml")), ids=lambda path: path.stem)
def test_all_have_a_digest(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert with_digests(text) == text, "enter them with: python -m tests.claims.digests"


def test_digests_are_entered_once() -> None:
    lines = ["[[claim]]", 'id = "a"', 'criterion = "c"', 'parts = ["check a"]', "", "[[claim]]", 'id = "b"']
    text = "\n".join([*lines, 'criterion = "c"', 'parts = ["check b"]', ""])
    found = with_digests(text)
    assert found.count("digest = ") == 2 and with_digests(found) == found
    assert [line for line in found.splitlines() if not line.startswith("digest")] == text.splitlines()
    first, second = tomllib.loads(found)["claim"]
    assert first["digest"] == digest_of("c", ["check a"], []) != second["digest"]


def test_superseded_criteria_stay() -> None:
    old = {"criterion": "b", "parts": ["check b"], "digest": "d", "verdict": "holds", "date": "d", "reason": "r"}
    block = {"block": "1.1", "paper": "bnp", "title": "t", "conditions": "", "seen": True}
    (claim,) = _block({**block, "claim": [{**DECLARED, "supersedes": [old]}]}).claims
    assert claim.supersedes[0].parts == ("check b",) and claim.seen
