"""Parts of which the criterion says several things at once: one that is not so is enough against them."""

from collections.abc import Mapping

import pytest

from tests.claims.helpers import record
from trimtab.claims import claims
from trimtab.claims.declarations import claim_named
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.part import Part

AHEAD, BEHIND = [50.0, 51.0, 52.0], [40.0, 41.0, 42.0]


def state_of(name: str, numbers: Mapping[str, Mapping[str, list[float]]], unit: str) -> str:
    found = record(numbers, dict.fromkeys(numbers, unit))
    return FUNCTIONS[name](Part.parse(f"function {name}"), found).state


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
    assert state_of("bn_works_at_4_and_8", numbers, "points") == state


def test_a_number_that_is_not_there() -> None:
    numbers = {f"acc at batch {n}": {"brn": AHEAD, "vanilla": AHEAD} for n in (3, 4)}
    assert state_of("brn_works_at_3_4_and_8", numbers, "points") == "not run"


@pytest.mark.parametrize(("name", "other"), [("both_ahead_of_gn", "gn"), ("both_ahead_of_bnp", "bnp")])
def test_before_the_decay_and_at_the_end(name: str, other: str) -> None:
    ahead, behind = {"bnp+gn": AHEAD, other: BEHIND}, {"bnp+gn": BEHIND, other: AHEAD}
    assert state_of(name, {"before": ahead, "acc": ahead}, "points") == "met"
    assert state_of(name, {"before": ahead, "acc": behind}, "points") == "not met"
    assert state_of(name, {"before": behind, "acc": ahead}, "points") == "not met"


@pytest.mark.parametrize(
    ("name", "measure", "smaller", "larger"),
    [
        ("bnp_clearly_smaller", "κ in", "vanilla+bnp", "vanilla"),
        ("divided_below_preconditioned", "largest over smallest norm in", "divided", "preconditioned"),
        ("divided_below_hessian", "largest over smallest norm in", "divided", "hessian"),
    ],
)
def test_in_both_networks(name: str, measure: str, smaller: str, larger: str) -> None:
    for in_cnn, state in (([20.0, 20.0, 20.0], "met"), ([11.0, 11.0, 11.0], "not met")):
        sizes = {"mlp3x100": [20.0, 30.0, 40.0], "cnn5": in_cnn}
        numbers = {f"{measure} {network}": {smaller: [10.0] * 3, larger: each} for network, each in sizes.items()}
        assert state_of(name, numbers, "factor") == state


@pytest.mark.parametrize(
    "claim", ["bnp-smallest-bn", "bnp-smallest-brn", "bnp-sec35-combine", "bnp-sec35-illcond", "bnp-prop5-blocks"]
)
def test_a_claim_has_as_many_parts_as_its_words_name(claim: str) -> None:
    declared = claim_named(claim)
    assert claim in claims()
    assert len(declared.parts) == sum(f"({letter})" in declared.criterion for letter in "abcd")
