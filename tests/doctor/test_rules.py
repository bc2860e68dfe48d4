"""Each rule on both sides of its threshold, on records that are written down here."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.doctor.records import EIGHT, FALLEN, FALLING, FLAT, NEARLY_DONE, STEPS, layer, look, looks_of, record, trial
from trimtab.doctor.record import InputLook, NormLook, Problem, Record
from trimtab.doctor.rules import CAUSES, batches, judge, notes, rates, settings


@pytest.mark.parametrize(
    ("losses", "changes", "found"),
    [
        (FALLING, {}, True),
        (FALLING, {"after": 0.903}, False),  # 97 % of what was promised, and twice the step is best
        (FALLING, {"after": 0.905, "others": EIGHT}, True),  # 95 %, and eight times the step
        (FALLING, {"after": 0.907, "others": EIGHT}, False),
        (FLAT, {"after": 0.905, "others": EIGHT}, False),  # it does not fall
        (FALLING, {"others": (0.999, 0.99, 0.97, 0.95, 0.96, 1.2, 9.0)}, False),  # the step itself is best
        (FALLEN, {}, False),  # little is left
        (FLAT, {}, True),  # it barely moves, and would
        (FLAT, {"others": (1.0, 1.0, 1.0, 1.0, 0.9999, 1.0, 1.0)}, False),  # nothing would move it
        ([2.3, 2.3, 5.0, *FLAT], {}, False),  # it has leapt
    ],
)
def test_learning_rate_too_low(losses: list[float], changes: Any, found: bool) -> None:
    of = record(losses, [trial(step, **changes) for step in STEPS], [look(16)])
    assert (rates.learning_rate_too_low(of) is not None) == found


def test_too_low_is_judged_at_the_peak_of_the_rate() -> None:
    warming = [trial(step, lr=0.001) for step in STEPS]
    peak = [trial(step + 200, after=0.95) for step in STEPS]
    assert rates.learning_rate_too_low(record(FALLING, warming + peak, [look(16)])) is None
    assert rates.learning_rate_too_low(record(FALLING, warming, [look(16)])) is not None


@pytest.mark.parametrize(
    ("losses", "changes", "certainty"),
    [
        ([2.3, math.nan], {}, 0.6),
        ([2.3, 2.3, 2.3, 5.0, *FLAT], {}, 0.7),
        ([2.3, 2.3, 2.3, 2.7, *FLAT], {}, None),
        ([2.3, 2.3, 2.3, 5.0, *FALLING], {}, None),  # it got over it
        (FLAT, {"after": 1.1, "others": (0.99, 0.95, 0.98, 1.1, 1.5, 9.0, 99.0)}, 0.9),
        (FLAT, {"after": 0.99, "others": (0.99, 0.95, 0.98, 1.1, 1.5, 9.0, 99.0)}, None),
        (FALLING, {"after": 1.1, "others": (0.99, 0.95, 0.98, 1.1, 1.5, 9.0, 99.0)}, None),
    ],
)
def test_learning_rate_too_high(losses: list[float], changes: Any, certainty: float | None) -> None:
    found = rates.learning_rate_too_high(record(losses, [trial(step, **changes) for step in STEPS], [look(16)]))
    assert (None if found is None else found.certainty) == certainty


@pytest.mark.parametrize(("evaluated", "found"), [(1.45, True), (1.35, False), (math.nan, False)])
def test_train_eval_gap(evaluated: float, found: bool) -> None:
    looks = [look(step, norms=(NormLook(layer="1", shift=0.5, ratio=1.0),)) for step in STEPS]
    of = record(FALLING, [trial(step, evaluated=evaluated) for step in STEPS], looks, batchnorms=("1",))
    gap = batches.train_eval_gap(of)
    assert (gap is not None) == found
    assert gap is None or gap.layer == "1"


def test_running_statistics_that_have_arrived_are_no_illness() -> None:
    looks = [look(step, norms=(NormLook(layer="1", shift=0.5, ratio=1.0),)) for step in STEPS]
    for last, found in ((1.2, True), (1.1, False)):
        values = zip(STEPS, (3.0, 3.0, 3.0, last), strict=True)
        of = record(FALLING, [trial(step, evaluated=value) for step, value in values], looks, batchnorms=("1",))
        assert (batches.train_eval_gap(of) is not None) == found


@pytest.mark.parametrize(
    ("values", "other", "found"), [(2, 1.0, True), (2, 0.985, True), (2, 0.975, False), (16, 1.0, False)]
)
def test_batchnorm_batch_too_small(values: float, other: float, found: bool) -> None:
    looks = [look(step, norms=(NormLook(layer="1", shift=0.5, ratio=1.0, values=values),)) for step in STEPS]
    tried = [trial(step, others=(1.0, 1.0, 1.0, other, 1.0, 1.0, 1.0)) for step in STEPS]
    of = record(FALLING, tried, looks, batchnorms=("1",), batch_size=2)
    assert (batches.batchnorm_batch_too_small(of) is not None) == found


@pytest.mark.parametrize(("last", "found"), [(2.5, True), (2.2, True), (2.1, False)])
def test_labels_not_learnable(last: float, found: bool) -> None:
    tried = [trial(step, validation=value) for step, value in zip((0, *STEPS), (2.3, 2.4, last, 2.6, 2.7), strict=True)]
    assert (batches.labels_not_learnable(record(FALLING, tried)) is not None) == found


@pytest.mark.parametrize(
    ("after", "losses", "found"),
    [
        (0.99, FLAT, True),  # 400 steps took 4.0 off their batches' losses, and validation gained 0.1
        (0.996, FLAT, False),  # 6 % of what they took came through
        (0.9999, FLAT, False),  # nothing is fitted
        (0.99, [2.3, 2.3, 2.3, 5.0, *FLAT], False),  # it leapt
        (0.99, [2.3, math.nan], False),
    ],
)
def test_labels_are_not_learnable_where_steps_gain_on_their_own_batches_only(
    after: float, losses: list[float], found: bool
) -> None:
    seen = zip((0, *STEPS), (2.3, 2.3, 2.25, 2.2, 2.25), strict=True)
    tried = [trial(step, after=after, validation=value) for step, value in seen]
    assert (batches.labels_not_learnable(record(losses, tried)) is not None) == found


@pytest.mark.parametrize(
    ("changes", "losses", "found"),
    [
        ({"rms": 6.0}, FLAT, True),
        ({"rms": 0.1}, FLAT, True),
        ({"offset": 5.0}, FLAT, True),
        ({}, FLAT, False),
        ({"rms": 6.0}, FALLEN, False),  # no harm
        ({"rms": 6.0}, [2.3, math.nan], True),
    ],
)
def test_inputs_badly_scaled(changes: Any, losses: list[float], found: bool) -> None:
    usual = {"layer": "0", "rms": 0.6, "offset": 1.5, "smallest": 0.1, "largest": 1.0}
    looks = [look(0, inputs=(InputLook(**{**usual, **changes}),))]
    assert (settings.inputs_badly_scaled(record(losses, (), looks)) is not None) == found


@pytest.mark.parametrize(
    ("update", "facts", "losses", "found"),
    [
        (0.3, {}, FALLING, True),
        (0.2, {}, FALLING, False),
        (0.3, {"batchnorms": ("1",)}, FALLING, False),
        (0.3, {}, NEARLY_DONE, False),
    ],
)
def test_a_first_step_that_rewrites_the_weights(update: float, facts: Any, losses: list[float], found: bool) -> None:
    of = record(losses, [trial(step) for step in STEPS], looks_of(layer(update=update), layer()), **facts)
    assert (rates.learning_rate_too_high(of) is not None) == found


def test_all_samples_at_once_judge_no_longer_step() -> None:
    same: dict[str, Any] = {"after": 0.901, "others": (0.999, 0.99, 0.97, 0.901, 0.9, 1.2, 9.0)}
    for losses, found in ((FALLING, False), ([2.3 * 0.9995**step for step in range(400)], True)):
        of = record(losses, [trial(step, **same) for step in STEPS], [look(16)])
        assert (rates.learning_rate_too_low(of) is not None) == found


@pytest.mark.parametrize(
    ("decay", "optimizer", "losses", "found"),
    [
        (0.04, "SGD", FLAT, True),
        (0.02, "SGD", FLAT, False),  # a step takes 0.2 % off
        (0.04, "AdamW", FLAT, True),
        (0.04, "Adam", FLAT, False),  # which scales decay with the gradient
        (0.04, "SGD", FALLING, False),
    ],
)
def test_decay_that_forgets(decay: float, optimizer: str, losses: list[float], found: bool) -> None:
    of = record(losses, [trial(step) for step in STEPS], [look(16)], weight_decay=decay, optimizer=optimizer)
    assert (settings.decay_too_strong(of) is not None) == found


def test_underflow_is_told_with_less_certainty_where_it_was_not_measured() -> None:
    looks = [look(step, layer(zeros=0.7), half=True) for step in STEPS]
    light = settings.precision_underflow(record(FLAT, (), looks))
    assert light is not None and light.certainty == 0.3
    measured = [trial(step, underflow=0.5) for step in STEPS]
    found = settings.precision_underflow(record(FLAT, measured, looks))
    assert found is not None and found.certainty == 0.9
    none_lost = [trial(step, underflow=0.0) for step in STEPS]
    assert settings.precision_underflow(record(FLAT, none_lost, looks)) is None
    assert settings.precision_underflow(record(FLAT, (), [replace(each, half=False) for each in looks])) is None


def test_what_another_finding_brings_about_comes_later() -> None:
    looks = [look(0, inputs=(InputLook(layer="0", rms=90.0, offset=0.0, smallest=1.0, largest=1.0),))]
    diagnosis = judge(record([2.3, math.nan], (), looks))
    assert [finding.name for finding in diagnosis.findings] == ["inputs-badly-scaled", "learning-rate-too-high"]
    assert diagnosis.findings[1].certainty == 0.3
    assert "inputs-badly-scaled" in CAUSES["learning-rate-too-high"]
    assert not diagnosis.healthy and "inputs-badly-scaled" in str(diagnosis)


def test_problems_are_told_once() -> None:
    of = record(FALLEN)
    of.problems += [Problem(step=step, what="trial", sentence="The loss is nan.") for step in range(3)]
    (note,) = notes.problems(of)
    assert note.sentence == "trial could not be measured, 3 times: The loss is nan."
    assert notes.few_steps(record([1.0] * 10)) is not None


def test_a_diagnosis_of_nothing() -> None:
    diagnosis = judge(Record())
    assert diagnosis.healthy and [note.name for note in diagnosis.notes] == ["few-steps"]
    assert diagnosis.to_dict()["findings"] == []
