"""From measurements to findings: each rule is a function of a record that returns a finding, a note, or nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from trimtab.doctor.finding import NAMES, Diagnosis, Finding, Note
from trimtab.doctor.record import Problem, Record
from trimtab.doctor.rules import batches, notes, rates, settings, signals, starts

T = TypeVar("T")

RULES: tuple[Callable[[Record], Finding | None], ...] = (
    rates.learning_rate_too_high,
    rates.learning_rate_too_low,
    batches.batchnorm_batch_too_small,
    batches.train_eval_gap,
    signals.ill_conditioned_layer,
    settings.inputs_badly_scaled,
    signals.dead_units,
    starts.exploding_layer,
    starts.vanishing_layer,
    signals.step_out_of_proportion,
    settings.decay_too_strong,
    settings.precision_underflow,
    batches.labels_not_learnable,
)
NOTES: tuple[Callable[[Record], Note | None], ...] = (
    notes.edge_of_stability,
    notes.decay_of_scale_invariant,
    notes.batch_and_noise_scale,
    notes.few_steps,
)

LATER = 0.3
"""The certainty of what another finding would bring about by itself."""
CAUSES: dict[str, frozenset[str]] = {
    "ill-conditioned-layer": frozenset({"inputs-badly-scaled", "learning-rate-too-high", "labels-not-learnable"}),
    "dead-units": frozenset(NAMES) - {"dead-units", "learning-rate-too-low", "train-eval-gap", "labels-not-learnable"},
    "learning-rate-too-high": frozenset(
        {
            "inputs-badly-scaled",
            "exploding-layer",
            "decay-too-strong",
            "step-out-of-proportion",
            "labels-not-learnable",
        }
    ),
    "learning-rate-too-low": frozenset(
        {"inputs-badly-scaled", "vanishing-layer", "decay-too-strong", "batchnorm-batch-too-small"}
    ),
    "train-eval-gap": frozenset({"inputs-badly-scaled", "batchnorm-batch-too-small"}),
    "vanishing-layer": frozenset({"inputs-badly-scaled", "decay-too-strong"}),
    "step-out-of-proportion": frozenset(
        {"inputs-badly-scaled", "exploding-layer", "vanishing-layer", "batchnorm-batch-too-small"}
    ),
    "labels-not-learnable": frozenset(
        {
            "train-eval-gap",
            "batchnorm-batch-too-small",
            "inputs-badly-scaled",
            "dead-units",
            "exploding-layer",
            "vanishing-layer",
            "step-out-of-proportion",
            "decay-too-strong",
        }
    ),
}
"""What each finding may be the consequence of."""


def judge(record: Record) -> Diagnosis:
    """What all rules have to say of a record: findings by weight, and of equal ones in the order of their names."""
    failures: list[Problem] = []
    found = [finding for rule in RULES if (finding := _judged(rule, record, failures)) is not None]
    names = {finding.name for finding in found}
    found = [
        replace(finding, certainty=min(finding.certainty, LATER))
        if names & CAUSES.get(finding.name, set())
        else finding
        for finding in found
    ]
    found.sort(key=lambda finding: (-finding.weight, NAMES.index(finding.name)))
    noted = [note for rule in NOTES if (note := _judged(rule, record, failures)) is not None]
    return Diagnosis(
        findings=tuple(found),
        notes=(*noted, *notes.problems(replace(record, problems=[*record.problems, *failures]))),
        steps=len(record.losses),
        level=record.level,
    )


def _judged(rule: Callable[[Record], T], record: Record, failures: list[Problem]) -> T | None:
    """What a rule says; one that fails is a problem. A training of days must not end because of a rule."""
    try:
        return rule(record)
    except Exception as error:
        name = rule.__name__.replace("_", "-")
        failures.append(Problem(step=len(record.losses), what=name, sentence=f"{type(error).__name__}: {error}"))
        return None
