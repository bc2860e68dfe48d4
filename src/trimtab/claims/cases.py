"""Checks of statements about a list of cases: batch sizes, distributions, loads."""

from collections.abc import Mapping

from trimtab.claims.findings import Findings
from trimtab.claims.record import Check
from trimtab.theory.bounds import Sides


def check_cases(findings: Findings, name: str, cases: Mapping[str, Sides | bool], *, tolerance: float = 0.0) -> Check:
    """Enter for how many cases a statement holds; the first one that violates it is named.

    Args:
        findings: Where it is entered.
        name: Of the check.
        cases: Both sides of the statement, or whether it holds, by case.
        tolerance: Relative, for `Sides.holds`.
    """
    statements = iter(cases.values())
    about = {"cases": "; ".join(cases)}
    check = findings.check(name, lambda _: next(statements), draws=len(cases), tolerance=tolerance, about=about)
    if check.counterexample is not None:
        check.counterexample["case"] = list(cases)[check.counterexample["draw"]]
    return check


def within(error: float, allowed: float) -> Sides:
    """The statement that an error is no larger than what is allowed."""
    return Sides(abs(error), allowed)
