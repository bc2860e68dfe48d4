"""What the doctor says: findings, notes, and both together as a diagnosis."""

from dataclasses import dataclass, field, fields
from typing import Any

from trimtab.doctor.cure import Cure

Level = str

NAMES = (
    "learning-rate-too-high",
    "learning-rate-too-low",
    "batchnorm-batch-too-small",
    "train-eval-gap",
    "ill-conditioned-layer",
    "inputs-badly-scaled",
    "dead-units",
    "exploding-layer",
    "vanishing-layer",
    "step-out-of-proportion",
    "decay-too-strong",
    "precision-underflow",
    "labels-not-learnable",
)
"""All findings that there are, in the order in which they are told if they weigh the same."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that holds a training back, and what to do about it.

    Attributes:
        name: One of `NAMES`.
        layer: Where it is; None if it is not in one layer.
        evidence: What was measured, by name.
        sentence: What is wrong, with the numbers that show it.
        advice: What to change.
        cure: The same as a change that code can apply.
        certainty: From 0 to 1. Not a probability: 0.9 where the harm itself was measured (the cure, or a step without
            the cause, did better on a batch that it was not made from), 0.6 where the loss shows the harm and what was
            measured points to this cause, 0.3 where it is one of several causes that would look the same.
        severity: From 0 to 1, how much of the training it costs; findings are ordered by severity times certainty. 1:
            the training does not work; 0.5: it goes on, but a part of the network or most of the speed is lost.
    """

    name: str
    sentence: str
    advice: str
    cure: Cure
    certainty: float
    severity: float = 0.5
    layer: str | None = None
    evidence: dict[str, float] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """By what findings are ordered."""
        return self.severity * self.certainty

    def to_dict(self) -> dict[str, Any]:
        """All of it, in dictionaries, numbers and words."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return found | {"cure": {each.name: getattr(self.cure, each.name) for each in fields(self.cure)}}

    def __str__(self) -> str:
        """Name, place, sentence and advice."""
        where = f" ({self.layer})" if self.layer else ""
        return f"{self.name}{where}: {self.sentence} {self.advice}"


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something worth knowing that is no illness, or that could not be measured.

    Attributes:
        name: What it is about.
        sentence: What was measured, and what it means.
        evidence: The numbers.
    """

    name: str
    sentence: str
    evidence: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """The sentence."""
        return self.sentence


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What the doctor has to say of a training so far.

    Attributes:
        findings: The worst first; empty for a healthy training.
        notes: What is worth knowing and no illness.
        steps: How many steps it rests on.
        level: How closely was looked.
    """

    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    steps: int = 0
    level: str = "light"

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """All of it, in dictionaries, lists, numbers and words."""
        return {
            "steps": self.steps,
            "level": self.level,
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": [{each.name: getattr(note, each.name) for each in fields(note)} for note in self.notes],
        }

    def __str__(self) -> str:
        """The findings, numbered, and the notes."""
        looked = f"{self.steps} steps, level {self.level}"
        head = f"Nothing was found that holds this training back ({looked})."
        if len(self.findings) == 1:
            head = f"1 finding ({looked}):"
        elif self.findings:
            head = f"{len(self.findings)} findings ({looked}), the worst first:"
        lines = [head]
        for number, finding in enumerate(self.findings, start=1):
            where = f", layer {finding.layer}" if finding.layer else ""
            lines += [
                f"{number}. {finding.name}{where} (certainty {finding.certainty:.1f})",
                f"   {finding.sentence}",
                f"   {finding.advice}",
            ]
        lines += [f"Note: {note.sentence}" for note in self.notes]
        return "\n".join(lines)
