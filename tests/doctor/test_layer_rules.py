"""The rules that judge single layers, on both sides of their thresholds."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.doctor.records import FALLEN, FALLING, FLAT, LAST, NEARLY_DONE, STEPS, layer, look, looks_of, record, trial
from trimtab.doctor.rules import judge, rates, signals, starts


def test_dead_units_matter_where_the_loss_stands_still() -> None:
    many, whole = [look(300, layer(dead=0.72))], [look(300, layer(dead=1.0))]
    assert signals.dead_units(record(FLAT, (), many)) is not None
    assert signals.dead_units(record(FALLING, (), many)) is None
    assert signals.dead_units(record(FALLEN, (), many)) is None
    assert signals.dead_units(record(FLAT, (), [look(300, layer(dead=0.68))])) is None
    assert signals.dead_units(record(FLAT, (), [look(300, layer(dead=0.75, rows=4))])) is None  # one output is used
    found = signals.dead_units(record(FLAT, (), whole))
    assert found is not None and found.severity == 1.0
    converged = [replace(whole[0], gradient=0.0)]
    assert signals.dead_units(record(FLAT, (), converged)) is None


@pytest.mark.parametrize(
    ("first", "later", "losses", "found"),
    [
        ({"zeros": 0.8}, {"dead": 0.8}, FALLING, True),
        ({"zeros": 0.7}, {"dead": 0.72}, FALLING, True),
        ({"zeros": 0.68}, {"dead": 0.68}, FALLING, False),
        ({"zeros": 0.6}, {"dead": 0.8}, FALLING, False),  # they died on the way
        ({"zeros": 0.8}, {"dead": 0.8}, NEARLY_DONE, False),  # no harm
        ({"zeros": 0.8, "rows": 4}, {"dead": 0.8, "rows": 4}, FALLING, False),
    ],
)
def test_units_that_were_never_alive(first: Any, later: Any, losses: list[float], found: bool) -> None:
    of = record(losses, (), looks_of(layer(**first), layer(**later), LAST))
    assert (signals.dead_units(of) is not None) == found


def test_units_dead_from_the_start_are_not_the_learning_rate_s_doing() -> None:
    leapt = [2.3, 2.3, 2.3, 5.0, *FALLING]
    since = record(leapt, (), looks_of(layer(zeros=0.1), layer(dead=0.8), LAST))
    assert rates.learning_rate_too_high(since) is not None
    ever = record(leapt, (), looks_of(layer(zeros=0.8), layer(dead=0.8), LAST))
    assert rates.learning_rate_too_high(ever) is None
    assert [finding.name for finding in judge(ever).findings] == ["dead-units"]


@pytest.mark.parametrize(
    ("zeros", "dead", "losses", "found"),
    [
        (0.2, 0.72, FLAT, True),
        (0.2, 0.68, FLAT, False),
        (0.5, 0.72, FLAT, False),  # half was dead at the first step
        (0.2, 0.72, FALLING, False),
    ],
)
def test_units_that_die_on_the_way_are_the_learning_rate_s_doing(
    zeros: float, dead: float, losses: list[float], found: bool
) -> None:
    of = record(losses, (), looks_of(layer(zeros=zeros), layer(dead=dead), LAST))
    assert (rates.learning_rate_too_high(of) is not None) == found


@pytest.mark.parametrize(
    ("columns", "losses", "found"),
    [
        ((11.0, 12.0), FALLING, True),
        ((9.0, 12.0), FALLING, False),
        ((11.0, 9.0), FALLING, False),
        ((11.0, math.nan), FALLING, True),
        ((11.0, 12.0), [2.3] * 3 + [0.01] * 400, False),
    ],
)
def test_ill_conditioned_layer(columns: tuple[float, float], losses: list[float], found: bool) -> None:
    first, later = (layer(columns=value) for value in columns)
    finding = signals.ill_conditioned_layer(record(losses, (), looks_of(first, later, LAST)))
    assert (finding is not None) == found
    assert finding is None or finding.cure.setting == "bnp"


SPREADS = {"input_spread": 1.0, "output_spread": 0.5}


@pytest.mark.parametrize(
    ("spread", "update", "losses", "found"),
    [
        (7.0, 0.003, FALLING, True),
        (5.0, 0.003, FALLING, False),
        (7.0, 0.004, FALLING, False),  # it moves 0.4 times as far as others
        (7.0, 0.003, NEARLY_DONE, False),
    ],
)
def test_a_large_layer_that_a_norm_makes_up_for(spread: float, update: float, losses: list[float], found: bool) -> None:
    large = layer(input_spread=1.0, output_spread=spread, update=update)
    others = [layer(layer=name, **SPREADS) for name in ("4", "7")]
    finding = starts.exploding_layer(record(losses, (), looks_of(large, large, *others)))
    assert (finding is not None) == found
    assert finding is None or finding.cure.factor == pytest.approx(1 / spread)


@pytest.mark.parametrize(
    ("spread", "end", "first_update", "later_update", "found"),
    [
        (0.02, 0.01, 0.01, 0.01, True),  # nothing of it is left at the end
        (0.04, 0.01, 0.01, 0.01, False),
        (0.02, 0.03, 0.01, 0.01, False),  # there is a way around it
        (0.02, 1.0, 1.1, 0.003, True),  # a norm makes up for it, and the first step throws it far
        (0.02, 1.0, 0.9, 0.003, False),
        (0.02, 1.0, 1.1, 0.004, False),  # it moves on
        (0.0, 0.01, 0.01, 0.01, False),  # begun at 0 on purpose
    ],
)
def test_a_layer_that_starts_too_small(
    spread: float, end: float, first_update: float, later_update: float, found: bool
) -> None:
    first = layer(input_spread=1.0, output_spread=spread, update=first_update)
    last = layer(layer="7", input_spread=end, output_spread=end)
    looks = looks_of(first, replace(first, update=later_update), layer(layer="4", **SPREADS), last)
    assert (starts.vanishing_layer(record(FALLING, (), looks)) is not None) == found
    assert starts.vanishing_layer(record(NEARLY_DONE, (), looks)) is None


@pytest.mark.parametrize(
    ("rate", "update", "losses", "found"),
    [
        (1.0, 0.11, FALLING, True),
        (0.9, 0.11, FALLING, False),  # 9 times the rate of the others
        (1.0, 0.09, FALLING, False),  # 9 times as far
        (1.0, 0.11, FALLEN, False),
    ],
)
def test_a_layer_with_a_rate_of_its_own(rate: float, update: float, losses: list[float], found: bool) -> None:
    own, others = layer(lr=rate, update=update), [layer(layer=name, lr=0.1) for name in ("4", "7")]
    looks = looks_of(own, layer(lr=rate), *others, steps=(0, 4, *STEPS))
    looks[1:2] = looks_of(own, own, *others, steps=(4,))
    assert (signals.step_out_of_proportion(record(losses, (), looks)) is not None) == found
    assert signals.step_out_of_proportion(record(losses, (), looks, normalized=True)) is None


@pytest.mark.parametrize(("without", "found"), [(0.885, True), (0.905, False)])
def test_a_layer_without_whose_step_the_loss_would_be_lower(without: float, found: bool) -> None:
    tried = [trial(step, without={"0": without}) for step in STEPS]  # 0.95 with it, 1.0 before
    looks = looks_of(layer(update=0.2), layer(update=0.2), LAST)
    finding = signals.step_out_of_proportion(record(FALLING, tried, looks))
    assert (finding is not None) == found
    assert finding is None or finding.evidence["better_without"] == pytest.approx(0.065)
