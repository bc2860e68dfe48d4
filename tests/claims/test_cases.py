"""Checks of statements about a list of cases."""

from tests.claims.helpers import recorded
from trimtab.claims.cases import check_cases, within
from trimtab.claims.findings import Findings
from trimtab.claims.judging import judge_part
from trimtab.claims.part import Part
from trimtab.theory.bounds import Sides


def test_the_first_case_that_does_not_hold_is_named() -> None:
    findings = Findings()
    check = check_cases(findings, "errors", {"M = 8": within(-0.04, 0.05), "M = 32": within(-0.06, 0.05), "all": True})
    assert (check.holds, check.draws) == (2, 3)
    assert check.counterexample is not None and check.counterexample["case"] == "M = 32"
    assert (check.left, check.right) == (0.06, 0.05)
    (outcome,) = judge_part(Part.parse("check errors"), recorded(findings))
    assert outcome.state == "not met"
    assert outcome.sentence == ("2 of 3 cases; worst: 0.06 <= 0.05; the first that does not hold: M = 32")


def test_cases_that_all_hold() -> None:
    findings = Findings()
    check_cases(findings, "all", {"one": Sides(1.0, 1.0), "two": True})
    (outcome,) = judge_part(Part.parse("check all"), recorded(findings))
    assert outcome.state == "met" and outcome.sentence == "2 of 2 cases"


def test_nothing_is_forgiven_at_the_edge_unless_told() -> None:
    edge = {"edge": Sides(1.0 + 1e-12, 1.0)}
    assert check_cases(Findings(), "edge", edge).holds == 0
    assert check_cases(Findings(), "edge", edge, tolerance=1e-9).holds == 1
