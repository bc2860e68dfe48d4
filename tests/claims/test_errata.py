"""Parts about slips of the papers."""

import pytest

from tests.claims.helpers import record
from trimtab.claims import RecordStore, claims
from trimtab.claims.errata import ERRATA, Erratum
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.part import Part
from trimtab.claims.record import Check

BLOCKS = ("1.1", "2.1", "4.1", "4.2", "4.3")
"""Those of theorems."""
LISTED = {part.name: part for claim in claims().values() if claim.id.startswith("own-errata-") for part in claim.parts}


def state(printed: int, corrected: int) -> str:
    """Of a slip whose forms hold for so many of 200 draws."""
    checks = {"old": Check("==", 200, printed, 1, 2), "new": Check("==", 200, corrected, 1, 1)}
    return Erratum(("check old",), ("check new",))(Part.parse("function erratum-x"), record(checks=checks)).state


@pytest.mark.parametrize(
    ("printed", "corrected", "expected"),
    [(0, 200, "met"), (199, 200, "met"), (200, 200, "not met"), (0, 199, "not met"), (200, 0, "not met")],
)
def test_the_printed_form_fails_and_the_corrected_one_holds(printed: int, corrected: int, expected: str) -> None:
    assert state(printed, corrected) == expected


def test_a_form_that_is_not_recorded() -> None:
    slip = Erratum(("check old",), ("check new",))
    checks = {"old": Check("==", 200, 0, 1, 2)}
    assert slip(Part.parse("function erratum-x"), record(checks=checks)).state == "not run"


def test_all_are_judged_by_records_that_have_both_forms() -> None:
    assert set(LISTED) == {f"erratum-{name}" for name in ERRATA}
    store = RecordStore()
    for name, part in LISTED.items():
        found = store.find(str(part.experiment), "small")
        assert found is not None
        assert FUNCTIONS[name](part, found).state != "not run", name


def test_no_slip_of_the_theorems_is_left_out() -> None:
    """Every claim with a printed and a corrected form has its parts in an erratum, and none was turned round."""
    printed = {text for slip in ERRATA.values() for text in slip.printed}
    corrected = {text for slip in ERRATA.values() for text in slip.corrected}
    with_both = [claim for claim in claims().values() if claim.block in BLOCKS and claim.corrected]
    assert len(with_both) >= 21
    for claim in with_both:
        old, new = ({part.text for part in parts} for parts in (claim.parts, claim.corrected))
        assert old - new <= printed and new - old <= corrected, claim.id
