"""Says what holds a training back, from measurements that change nothing of it, and what to do about it."""

from trimtab.doctor.cure import Cure
from trimtab.doctor.doctor import Doctor
from trimtab.doctor.finding import NAMES, Diagnosis, Finding, Note
from trimtab.doctor.learning_rate import SuggestedRate, suggest_lr
from trimtab.doctor.record import Record

__all__ = ["NAMES", "Cure", "Diagnosis", "Doctor", "Finding", "Note", "Record", "SuggestedRate", "suggest_lr"]
