"""Parts of which the criterion says several things at once: one that is not so is enough against them."""

from collections.abc import Mapping

import pytest

from tests.claims.helpers import record
from trimtab.claims import claims
from trimtab.claims.declarations import claim_named
from trimtab.claims.judging import judge_part
from trimtab.claims.part import Part

AHEAD, BEHIND = [50.0, 51.0, 52.0], [40.0, 41.0, 42.0]


def state_of(claim: str, index: int, numbers: Mapping[str, Mapping[str, list[float]]], unit: str) -> str:
    (outcome,) = judge_part(claim_named(claim).parts[index], record(numbers, dict.fromkeys(numbers, unit)))
    return outcome.state


@pytest.mark.parametrize(
    ("at_4", "at_8", "state"),
    [
        (AHEAD, AHEAD, "met"),
        (AHEAD, BEHIND, "not met"),
        (BEHIND, AHEAD, "not met"),
        ([49.5, 51.0, 52.0], AHEAD, "met"),
        ([48.0, 51.0, 53.0], AHEAD, "undecided"),
        ([48.0, 51.0, 53.0], BEHIND, "not met"),
    ],
)
def test_bn_at_two_batch_sizes(at_4: list[float], at_8: list[float], state: str) -> None:
    numbers = {f"acc at batch {n}": {"bn": bn, "vanilla": AHEAD} for n, bn in ((4, at_4), (8, at_8))}
    assert state_of("bnp-smallest-bn", 0, numbers, "points") == state


def test_a_number_that_is_not_there() -> None:
    numbers = {f"acc at batch {n}": {"brn": AHEAD, "vanilla": AHEAD} for n in (3, 4)}
    assert state_of("bnp-smallest-brn", 0, numbers, "points") == "not run"


@pytest.mark.parametrize(("index", "other"), [(0, "gn"), (1, "bnp")])
def test_before_the_decay_and_at_the_end(index: int, other: str) -> None:
    ahead, behind = {"bnp+gn": AHEAD, other: BEHIND}, {"bnp+gn": BEHIND, other: AHEAD}
    for before, acc, state in ((ahead, ahead, "met"), (ahead, behind, "not met"), (behind, ahead, "not met")):
        assert state_of("bnp-sec35-combine", index, {"before": before, "acc": acc}, "points") == state


@pytest.mark.parametrize(
    ("claim", "index", "measure", "smaller", "larger"),
    [
        ("bnp-sec35-illcond", 2, "κ in", "vanilla+bnp", "vanilla"),
        ("bnp-prop5-blocks", 0, "largest over smallest norm in", "divided", "preconditioned"),
        ("bnp-prop5-blocks", 1, "largest over smallest norm in", "divided", "hessian"),
    ],
)
def test_in_both_networks(claim: str, index: int, measure: str, smaller: str, larger: str) -> None:
    for in_cnn, state in (([20.0, 20.0, 20.0], "met"), ([11.0, 11.0, 11.0], "not met")):
        sizes = {"mlp3x100": [20.0, 30.0, 40.0], "cnn5": in_cnn}
        numbers = {f"{measure} {network}": {smaller: [10.0] * 3, larger: each} for network, each in sizes.items()}
        assert state_of(claim, index, numbers, "factor") == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("any: x: a > b; y: a > b", "met"),
        ("any: y: a > b; y: a ≫ b", "not met"),
        ("all: x: a > b; y: a > b", "not met"),
        ("all: x: a > b; z: a > b", "not run"),
        ("any: x: a > b; z: a > b", "met"),
        ("not: x: a > b", "not met"),
        ("not: y: a > b", "met"),
        ("not: z: a > b", "not run"),
    ],
)
def test_joined_comparisons(text: str, state: str) -> None:
    found = record({"x": {"a": AHEAD, "b": BEHIND}, "y": {"a": BEHIND, "b": AHEAD}}, {"x": "points", "y": "points"})
    (outcome,) = judge_part(Part.parse(text), found)
    assert (outcome.state, outcome.part.text) == (state, text)


@pytest.mark.parametrize(
    "claim", ["bnp-smallest-bn", "bnp-smallest-brn", "bnp-sec35-combine", "bnp-sec35-illcond", "bnp-prop5-blocks"]
)
def test_a_claim_has_as_many_parts_as_its_words_name(claim: str) -> None:
    declared = claim_named(claim)
    assert claim in claims()
    assert len(declared.parts) == sum(f"({letter})" in declared.criterion for letter in "abcd")
