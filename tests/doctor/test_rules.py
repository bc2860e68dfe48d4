"""Each rule on both sides of its threshold, on records that are written down here."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.doctor.records import (
    BACK,
    EIGHT,
    FALLEN,
    FALLING,
    FLAT,
    LITTLE,
    NEARLY_DONE,
    ONCE,
    ONWARD,
    STEPS,
    layer,
    look,
    looks_of,
    record,
    trial,
)
from trimtab.doctor.record import InputLook, NormLook, Problem, Record
from trimtab.doctor.rules import CAUSES, batches, judge, notes, rates, settings, signals


@pytest.mark.parametrize(
    ("losses", "changes", "found"),
    [
        (FALLING, {}, True),
        (FALLING, {"path": ()}, False),  # level light, or too few steps between trials
        (FALLING, {"path": BACK}, False),  # to go on would raise the loss
        (FALLING, {"path": ONCE}, True),  # once more would do, in all trials
        (FALLING, {"path": (0.9495, 0.94, 0.96, 1.5), "after": 0.96}, False),  # by 0.05 %
        (FALLING, {"after": 0.96}, True),  # whatever the step does on its own batch
        (FALLEN, {}, False),  # little is left
        (FLAT, {}, True),
        ([2.3, 2.3, 5.0, *FLAT], {}, False),  # it has leapt
    ],
)
def test_learning_rate_too_low(losses: list[float], changes: Any, found: bool) -> None:
    of = record(losses, [trial(step, **changes) for step in STEPS], [look(16)])
    finding = rates.learning_rate_too_low(of)
    assert (finding is not None) == found
    assert finding is None or finding.certainty == 0.9


@pytest.mark.parametrize(
    ("path", "changes", "certainty"),
    [
        (ONWARD, {}, 0.9),  # it helps in three of four trials, and twice as far too
        (ONCE, {"after": 0.909}, 0.9),  # once only, but steps do 91 % of what was promised
        (ONCE, {"after": 0.911}, None),
        (LITTLE, {"after": 0.901}, 0.6),  # they do 99 %, and twice the step is best
        (LITTLE, {"after": 0.903}, None),  # 97 %
        (LITTLE, {"after": 0.905, "others": EIGHT}, 0.6),  # 95 %, and eight times the step
        (LITTLE, {"after": 0.907, "others": EIGHT}, None),
    ],
)
def test_a_way_that_helps_in_most_trials(path: Any, changes: Any, certainty: float | None) -> None:
    tried = [trial(step, **{"path": path, **changes}) for step in STEPS]
    tried[1] = replace(tried[1], path=BACK)
    finding = rates.learning_rate_too_low(record(FALLING, tried, [look(16)]))
    assert (None if finding is None else finding.certainty) == certainty


def test_the_rate_is_multiplied_by_how_far_it_would_help_to_go() -> None:
    for path, factor in ((ONCE, 3.0), ((0.94, 0.93, 0.92, 1.5), 5.0), ((0.94, 0.93, 0.92, 0.9), 9.0)):
        finding = rates.learning_rate_too_low(record(FALLING, [trial(step, path=path) for step in STEPS], [look(16)]))
        assert finding is not None and finding.cure.factor == factor


def test_too_low_is_judged_at_the_peak_of_the_rate() -> None:
    warming = [trial(step, lr=0.001) for step in STEPS]
    peak = [trial(step + 200, path=BACK) for step in STEPS]
    assert rates.learning_rate_too_low(record(FALLING, warming + peak, [look(16)])) is None
    assert rates.learning_rate_too_low(record(FALLING, warming, [look(16)])) is not None


@pytest.mark.parametrize(
    ("losses", "changes", "certainty"),
    [
        ([2.3, math.nan], {}, 0.6),
        ([2.3, 2.3, 2.3, 5.0, *FLAT], {}, 0.7),
        ([2.3, 2.3, 2.3, 2.7, *FLAT], {}, None),
        ([2.3, 2.3, 2.3, 5.0, *FALLING], {}, None),  # it got over it
        (FLAT, {"after": 1.1, "others": (0.95, 0.98, 1.1, 1.5, 9.0)}, 0.9),
        (FLAT, {"after": 0.99, "others": (0.95, 0.98, 1.1, 1.5, 9.0)}, None),
        (FALLING, {"after": 1.1, "others": (0.95, 0.98, 1.1, 1.5, 9.0)}, None),
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
    ("evaluated", "last", "found"), [(0.61, 0.61, True), (0.6, 0.6, False), (0.61, 0.56, True), (0.61, 0.55, False)]
)
def test_what_is_lost_in_evaluation_mode_counts_by_what_was_learned(evaluated: float, last: float, found: bool) -> None:
    """The loss has come from 0.76 to 0.5, by 0.26, of which 0.104 are too much; and 0.052 in the last trial."""
    losses = [0.76] * 3 + [0.76 * max(0.99**step, 0.65) for step in range(400)]
    looks = [look(step, norms=(NormLook(layer="1", shift=0.5, ratio=1.0),)) for step in STEPS]
    values = (9.0, evaluated, 2 * evaluated - last, last)
    tried = [trial(step, loss=0.5, evaluated=value) for step, value in zip(STEPS, values, strict=True)]
    assert (batches.train_eval_gap(record(losses, tried, looks, batchnorms=("1",))) is not None) == found


@pytest.mark.parametrize(
    ("values", "losses", "found"),
    [(2, FALLING, True), (3, FALLING, True), (4, FALLING, False), (2, FALLEN, False), (math.nan, FALLING, False)],
)
def test_batchnorm_batch_too_small(values: float, losses: list[float], found: bool) -> None:
    looks = [look(step, norms=(NormLook(layer="1", shift=0.5, ratio=0.4, values=values),)) for step in STEPS]
    of = record(losses, (), looks, batchnorms=("1",), batch_size=2)
    finding = batches.batchnorm_batch_too_small(of)
    assert (finding is not None) == found
    assert finding is None or (finding.layer, finding.cure.setting) == ("1", "norm")


def test_labels_are_judged_after_enough_samples_of_more_than_one_batch() -> None:
    tried = [trial(step, validation=2.5) for step in (0, *STEPS)]
    assert batches.labels_not_learnable(record(FALLING, tried)) is not None
    assert batches.labels_not_learnable(record(FALLING[:120], tried)) is None
    assert batches.labels_not_learnable(record(FALLING, tried, batch_size=8)) is None
    assert batches.labels_not_learnable(record(FALLING, tried[:-1])) is None
    assert batches.labels_not_learnable(record(FALLING, tried, [look(300, layer(dead=1.0))])) is None
    same = [replace(each, after=0.95) for each in tried]  # all samples are in each batch
    assert batches.labels_not_learnable(record(FALLING, same)) is None


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


LEAPT = [2.3, 2.3, 5.0, *FALLING]


@pytest.mark.parametrize(
    ("update", "facts", "losses", "found"),
    [
        (0.3, {"optimizer": "Adam"}, FALLING, True),
        (0.2, {"optimizer": "Adam"}, FALLING, False),
        (0.3, {"optimizer": "Adam", "batchnorms": ("1",)}, FALLING, False),
        (0.6, {"optimizer": "Adam", "batchnorms": ("1",)}, FALLING, True),
        (0.3, {"optimizer": "Adam"}, NEARLY_DONE, False),
        (0.3, {}, FALLING, False),  # the first step of SGD says nothing of the others
        (0.3, {}, LEAPT, True),
        (0.2, {}, LEAPT, False),
    ],
)
def test_a_first_step_that_rewrites_the_weights(update: float, facts: Any, losses: list[float], found: bool) -> None:
    looks = looks_of(layer(update=update), layer())
    tried = [trial(step) for step in STEPS]
    assert (rates.learning_rate_too_high(record(losses, tried, looks, **facts)) is not None) == found
    looks[-1] = replace(looks[-1], lr=0.09)  # a schedule lowers the rate
    assert rates.learning_rate_too_high(record(losses, tried, looks, **facts)) is None


def test_all_samples_at_once_judge_no_longer_step() -> None:
    same: dict[str, Any] = {"after": 0.9, "others": (0.99, 0.97, 0.9, 0.89, 1.2), "path": [0.8] * 4}
    assert rates.learning_rate_too_low(record(FALLING, [trial(step, **same) for step in STEPS], [look(16)])) is None
    other = {**same, "after": 0.901}
    assert (
        rates.learning_rate_too_low(record(FALLING, [trial(step, **other) for step in STEPS], [look(16)])) is not None
    )


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


def test_a_rule_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(of: Record) -> None:
        raise ZeroDivisionError("float division by zero")

    of = record(FALLING, [trial(step) for step in STEPS], [look(16)])
    expected = judge(of).findings
    monkeypatch.setattr("trimtab.doctor.rules.RULES", (fails, rates.learning_rate_too_low))
    diagnosis = judge(of)
    assert diagnosis.findings == expected and expected
    (note,) = [note for note in diagnosis.notes if note.name == "not-measured"]
    assert note.sentence == "fails could not be measured: ZeroDivisionError: float division by zero"
    assert not of.problems


def test_a_layer_that_moves_in_few_steps_only_is_out_of_proportion_in_these() -> None:
    trials = [trial(step, without={"0": 0.5}) for step in STEPS]
    layers = layer(layer="0", update=0.0), layer(layer="1"), layer(layer="2")
    still = [look(step, *layers) for step in range(0, 96, 16)]
    finding = signals.step_out_of_proportion(record(FLAT, trials, still))
    assert finding is not None
    assert finding.evidence["times"] == 10 and finding.cure.factor == 0.1
