"""From measurements to findings: each rule is a function of a record that returns a finding, a note, or nothing."""

from trimtab.doctor.finding import Diagnosis
from trimtab.doctor.record import Record


def judge(record: Record) -> Diagnosis:
    """What all rules have to say of a record."""
    return Diagnosis(steps=len(record.losses), level=record.level)
