"""Computed numbers are judged one by one, and so the sentence has their range, not where the mean of seeds may be."""

import pytest

from tests.claims.helpers import record
from trimtab.claims.judging import judge_part
from trimtab.claims.part import Part

VALUES = {f"layer {i}": value for i, value in enumerate((0.9, 1.0, 1.0, 1.0, 1.0, 1.01))}


@pytest.mark.parametrize("text", ["ratio: own in [0.95, 1.05]", "ratio: own ≥ 0.95"])
def test_the_sentence_has_the_number_that_decides(text: str) -> None:
    found = record(units={"ratio": "exact"})
    found.numbers["ratio"] = {"own": VALUES}
    (outcome,) = judge_part(Part.parse(text), found)
    assert outcome.state == "not met"
    assert outcome.interval is not None
    assert outcome.interval.high - outcome.interval.low == pytest.approx(0.11)
    assert ("0.9 to 1.01" if "in" in text else "-0.05 to 0.06") in outcome.sentence
