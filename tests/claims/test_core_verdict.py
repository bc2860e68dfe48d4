"""Verdicts, by the rules of the ledger."""

import math
from typing import ClassVar

import numpy as np
import pytest

from tests.claims.helpers import Store, claim, record
from trimtab.claims.experiments.registry import experiment_named
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.intervals import Interval, chance_of_agreeing
from trimtab.claims.judging import Outcome, chance_of_failing, judge_part
from trimtab.claims.needs import duration
from trimtab.claims.part import Part
from trimtab.claims.record import Check
from trimtab.claims.verdict import judge


def states(
    text: str, left: list[float], right: list[float] | None = None, *, unit: str = "points", **more: object
) -> list[str]:
    """The states of a part about a measure m of the cases a and b."""
    numbers = {"m": {"a": left, **({} if right is None else {"b": right})}}
    return [one.state for one in judge_part(Part.parse(text), record(numbers, {"m": unit}, **more))]  # type: ignore[arg-type]


class TestIntervals:
    def test_few_values_have_their_range(self) -> None:
        assert Interval.of([1, 2, 6]) == Interval(3, 1, 6, 3)

    def test_five_are_bootstrapped(self) -> None:
        values = [1.0, 2.0, 3.0, 4.0, 10.0]
        found = Interval.of(values)
        drawn = np.random.default_rng(0).integers(5, size=(10_000, 5))
        means = np.array(values)[drawn].mean(axis=1)
        assert (found.low, found.high) == (np.quantile(means, 0.025), np.quantile(means, 0.975))
        assert 1 < found.low < found.mean == 4 < found.high < 10

    def test_a_run_that_diverged_has_an_infinite_loss(self) -> None:
        assert Interval.of([1, 2, 3, 4, math.inf]).high == math.inf

    def test_none(self) -> None:
        with pytest.raises(ValueError, match="needs a number"):
            Interval.of([])

    def test_chance(self) -> None:
        assert [chance_of_agreeing(n) for n in (1, 2, 3, 4)] == [0.0, 0.25, 0.125, 0.0625]

    @pytest.mark.parametrize("seeds", [5, 10])
    def test_chance_of_a_bootstrap(self, seeds: int) -> None:
        rng = np.random.default_rng(1)
        above = [Interval.of(rng.normal(size=seeds).tolist()).low > 0 for _ in range(1000)]
        assert np.mean(above) == pytest.approx(chance_of_agreeing(seeds), abs=0.02)


class TestChance:
    """What comes out for two cases that do not differ: simulated, beside what the pages say."""

    DRAWS = 2000

    def judged(self, text: str, seeds: int, draws: int = DRAWS, unit: str = "points") -> list[Outcome]:
        rng = np.random.default_rng([2, seeds])
        found = []
        for _ in range(draws):
            left, right = np.exp(0.1 * rng.normal(size=(2, seeds))) + 5
            numbers = {"m": {"a": left.tolist(), "b": right.tolist()}}
            found.append(judge_part(Part.parse(text), record(numbers, {"m": unit}))[0])
        return found

    def shares(self, outcomes: list[Outcome]) -> tuple[float, float, float]:
        """How many are met, not met, and opposed."""
        told = [(one.state == "met", one.state == "not met", one.opposed) for one in outcomes]
        met, failed, opposed = np.mean(told, axis=0)
        return met, failed, opposed

    @pytest.mark.parametrize("seeds", [1, 2, 3, 4])
    @pytest.mark.parametrize("op", ["m: a > b", "m: a < b"])
    def test_a_direction(self, op: str, seeds: int) -> None:
        outcomes = self.judged(op, seeds)
        met, failed, opposed = self.shares(outcomes)
        assert outcomes[0].chance == chance_of_agreeing(seeds)
        assert met == pytest.approx(chance_of_agreeing(seeds), abs=0.03)
        assert opposed == pytest.approx(chance_of_agreeing(seeds), abs=0.03)
        assert failed == pytest.approx(chance_of_failing(seeds), abs=0.04) == pytest.approx(0.5, abs=0.04)

    @pytest.mark.parametrize("seeds", [5, 10])
    def test_a_direction_with_a_bootstrap(self, seeds: int) -> None:
        met, failed, opposed = self.shares(self.judged("m: a > b", seeds, draws=600))
        assert met == pytest.approx(chance_of_agreeing(seeds), abs=0.035)
        assert opposed == pytest.approx(chance_of_agreeing(seeds), abs=0.035)
        assert failed == pytest.approx(chance_of_failing(seeds), abs=0.06)
        assert chance_of_failing(seeds) == (0.5 if seeds == 5 else 1 - chance_of_agreeing(10))

    @pytest.mark.parametrize(("text", "unit"), [("m: a ≫ b", "points"), ("m: a ⪡ b", "factor"), ("m: a ≪ b", "loss")])
    def test_where_a_size_is_asked_for_the_numbers_are_bounds(self, text: str, unit: str) -> None:
        met, failed, opposed = self.shares(self.judged(text, 3, draws=500, unit=unit))
        assert met <= chance_of_agreeing(3) + 0.03
        assert failed >= chance_of_failing(3) - 0.04
        assert opposed <= chance_of_agreeing(3) + 0.04

    def test_a_real_difference_is_not_opposed(self) -> None:
        assert [one.opposed for one in (*self.found([3, 4], [1, 2]), *self.found([1, 4], [2, 3]))] == [False, False]
        assert [one.opposed for one in self.found([1, 2], [3, 4])] == [True]

    def found(self, left: list[float], right: list[float]) -> list[Outcome]:
        return judge_part(Part.parse("m: a > b"), record({"m": {"a": left, "b": right}}, {"m": "points"}))


class TestRounding:
    def test_a_factor_that_is_just_reached(self) -> None:
        assert 0.3 < 3 * 0.1
        assert states("m: a ≥ 3 × b", [0.3, 0.3], [0.1, 0.1], unit="factor") == ["met"]
        assert states("m: a ≥ 3 × b", [0.2999999, 0.3], [0.1, 0.1], unit="factor") == ["not met"]


class TestDirections:
    @pytest.mark.parametrize(
        ("left", "right", "expected"),
        [
            ([3, 4, 5], [1, 2, 3], "met"),
            ([3, 4, 5], [1, 5, 3], "undecided"),
            ([1, 2, 3], [3, 4, 5], "not met"),
            ([1, 4], [2, 3], "not met"),  # a mean of 0
            ([9], [1], "undecided"),  # points: one seed is not enough
            (
                [3, 4, 5, 3, 4, 5, 3, 4, 5, 3],
                [1, 2, 3, 9, 2, 3, 1, 2, 3, 9],
                "not met",
            ),  # of ten seeds: no more are run
        ],
    )
    def test_larger(self, left: list[float], right: list[float], expected: str) -> None:
        assert states("m: a > b", left, right) == [expected]
        swapped = judge_part(Part.parse("m: b < a"), record({"m": {"a": left, "b": right}}, {"m": "points"}))
        assert [one.state for one in swapped] == [expected]

    def test_seeds_are_paired(self) -> None:
        one = record({"m": {"a": [3, 1]}}, {"m": "points"})
        one.numbers["m"]["b"] = {"102": 0.0, "103": 9.0, "101": 2.5}
        (outcome,) = judge_part(Part.parse("m: a > b"), one)
        assert outcome.interval == Interval(0.75, 0.5, 1.0, 2) and outcome.state == "met"

    def test_one_seed_shows_a_factor_of_three(self) -> None:
        assert states("m: a > b", [3.1], [1], unit="loss") == ["met"]
        assert states("m: a > b", [2.9], [1], unit="loss") == ["undecided"]
        assert states("m: a < b", [1], [3.1], unit="time") == ["met"]
        assert states("m: a > 0", [5], unit="factor") == ["undecided"]  # nothing is a factor of 0

    def test_equal_is_enough_for_or_equal(self) -> None:
        assert states("m: a ≥ b", [1, 2], [1, 2]) == ["met"]
        assert states("m: a > b", [1, 2], [1, 2]) == ["not met"]

    def test_factor_and_offset(self) -> None:
        assert states("m: a ≤ 0.7 × b", [6, 7], [10, 10], unit="loss") == ["met"]
        assert states("m: a ≤ 0.7 × b", [6, 7.1], [10, 10], unit="loss") == ["undecided"]
        assert states("m: a ≥ b − 1", [9, 9.5], [10, 10]) == ["met"]

    def test_both_diverged(self) -> None:
        assert states("m: a < b", [math.inf, 1], [math.inf, 2], unit="loss") == ["undecided"]
        assert states("m: a < b", [1, 1], [math.inf, math.inf], unit="loss") == ["met"]

    def test_chance_of_guessing(self) -> None:
        assert states("m: a ≤ chance + 2", [10, 11]) == ["met"]
        assert states("m: a ≥ chance + 15", [24, 30]) == ["undecided"]
        assert states("m: a ≤ chance + 2", [10], chance=None) == ["not run"]


class TestWords:
    @pytest.mark.parametrize(
        ("unit", "left", "right", "expected"),
        [
            ("points", [5, 6], [3, 4], "met"),
            ("points", [4.9, 5.9], [3, 4], "not met"),
            ("points", [9, 5], [3, 6], "undecided"),
            ("loss", [1.11, 1.2], [1, 1], "met"),
            ("loss", [1.05, 1.1], [1, 1], "not met"),
            ("factor", [2, 2.1], [1, 1], "met"),
            ("factor", [1.9, 1.9], [1, 1], "not met"),
        ],
    )
    def test_significantly(self, unit: str, left: list[float], right: list[float], expected: str) -> None:
        assert states("m: a ≫ b", left, right, unit=unit) == [expected]

    def test_much_smaller(self) -> None:
        assert states("m: a ≪ b", [0.85, 0.9], [1, 1], unit="loss") == ["met"]
        assert states("m: a ≪ b", [0.95, 0.9], [1, 1], unit="loss") == ["not met"]
        assert states("m: a ≪ b", [0.5, 0.4], [1, 1], unit="factor") == ["met"]

    def test_slightly_is_two_parts(self) -> None:
        assert states("m: a ≳ b", [4, 5], [3, 4]) == ["met", "met"]
        assert states("m: a ≳ b", [6, 7], [3, 4]) == ["met", "not met"]
        assert states("m: a ≳ b", [1, 2], [3, 4]) == ["not met"]  # the size counts with the direction only
        assert states("m: a ≲ b", [2, 3], [3, 4]) == ["met", "met"]

    def test_comparable(self) -> None:
        assert states("m: a ≈ b", [10, 11.9], [10.5, 10]) == ["met"]
        assert states("m: a ≈ b", [10, 13], [11, 10.5]) == ["undecided"]  # one difference is beyond two points
        assert states("m: a ≈ b", [10, 13], [8, 10.5]) == ["not met"]
        assert states("m: a ≈ b", [10], [10]) == ["undecided"]
        assert states("m: a ≈ b ± 2", [10, 13], [8, 11.5]) == ["met"]
        assert states("m: a ≈ b", [1.0, 1.19], [1, 1], unit="loss") == ["met"]
        assert states("m: a ≈ b", [1.0, 1.21], [1, 1], unit="time") == ["not met"]

    def test_clear_improvement(self) -> None:
        assert states("m: a ⪡ b", [1, 2], [1.6, 3.2], unit="factor") == ["met"]
        assert states("m: a ⪡ b", [1, 2], [1.6, 2.8], unit="factor") == ["not met"]  # medians 1.5 and 2.2: 1.47
        assert states("m: a ⪡ b", [1, 2], [2.5, 2.8], unit="factor") == ["undecided"]
        assert states("m: a ⪡ b", [1], [2.9], unit="factor") == ["undecided"]
        assert states("m: a ⪡ b", [1], [3], unit="factor") == ["met"]


class TestNumbers:
    def test_exact_ones_need_one(self) -> None:
        assert states("m: a ≥ 0.8", [0.8], unit="exact") == ["met"]
        assert states("m: a > 0.8", [0.8], unit="exact") == ["not met"]
        assert states("m: a < b", [1], [2], unit="exact") == ["met"]
        assert states("m: a > 1", [2, 0], unit="exact") == ["not met"]  # one of several does not
        assert states("m: a ≫ b", [2], [1], unit="exact") == ["met"]

    def test_ranges(self) -> None:
        assert states("m: a in [1, 2]", [1], unit="exact") == ["met"]
        assert states("m: a in [1, 2]", [1, 2.1], unit="exact") == ["not met"]
        assert states("m: a in [1, 2]", [1, 2], unit="factor") == ["met"]
        assert states("m: a in [1, 2]", [1, 2.1], unit="factor") == ["undecided"]
        assert states("m: a in [1, 2]", [1.5], unit="factor") == ["undecided"]
        assert states("m: a in [1, 2]", [3, 4], unit="factor") == ["not met"]

    def test_nothing_is_met_by_what_is_no_number(self) -> None:
        nan = math.nan
        for text in ("m: a > b", "m: a < b", "m: a ≈ b", "m: a ≫ b", "m: a ⪡ b", "m: a in [0, 9]", "m: a ≥ 0"):
            for unit in ("factor", "exact"):
                assert "met" not in states(text, [nan, nan], [1, 1], unit=unit), (text, unit)
                assert "met" not in states(text, [1, 1], [nan, nan], unit=unit) or text in (
                    "m: a in [0, 9]",
                    "m: a ≥ 0",
                )

    def test_what_a_record_lacks_is_not_run(self) -> None:
        assert states("n: a > b", [1], [1]) == ["not run"]
        assert states("m: a > c", [1], [1]) == ["not run"]
        (outcome,) = judge_part(Part.parse("check x"), record())
        assert outcome.state == "not run"

    def test_a_tolerance_that_is_part_of_the_criterion_is_told(self) -> None:
        def sentence(tolerance: float) -> str:
            check = Check("<=", 200, 200, 0.8747, 0.874, {"tolerance": tolerance})
            return judge_part(Part.parse("check x"), record(checks={"x": check}))[0].sentence

        assert sentence(0.01) == "200 of 200 draws; nearest: 0.8747 <= 0.874 within 1 %"
        assert "within" not in sentence(1e-9)


class TestNeighbours:
    """With other data or another network, directions are judged and numbers of points are not."""

    @pytest.mark.parametrize("text", ["m: a ≥ 80", "m: a in [1, 9]", "m: a ≈ b", "m: a ≥ b − 1", "m: a ≥ chance + 15"])
    def test_points_are_not_applicable(self, text: str) -> None:
        assert states(text, [90, 91], [89, 88], neighbour="digits") == ["not applicable"]

    def test_directions_are(self) -> None:
        assert states("m: a ≫ b", [5, 6], [4.5, 5.5], neighbour="digits") == ["met"]
        assert states("m: a ≳ b", [9, 9], [1, 1], neighbour="digits") == ["met", "not applicable"]
        assert states("m: a ≤ 0.7 × b", [6, 7], [10, 10], unit="loss", neighbour="digits") == ["met"]


class TestClaims:
    def check(self, holds: int) -> Check:
        return Check("<=", 200, holds, 1.0, 2.0)

    def verdict(self, one: object, *records: object) -> object:
        known = {"c": one}
        return judge(one, "small", Store(*records), known, {})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (([3, 4], [3, 4]), "holds"),
            (([3, 4], [0, 0]), "holds in part"),
            (([0, 0], [0, 0]), "does not hold"),
            (([3, 4], [3, 0]), "undecided"),
            (([0, 0], [3, 0]), "undecided"),
        ],
    )
    def test_summary(self, values: tuple[list[float], list[float]], expected: str) -> None:
        one = claim("acc: a > v", "acc: b > v")
        found = judge(
            one, "small", Store(record({"acc": {"a": values[0], "b": values[1], "v": [1, 1]}})), {"c": one}, {}
        )
        assert found.state == expected
        assert [outcome.part.label for outcome in found.outcomes] == ["a", "b"]

    def test_no_record(self) -> None:
        one = claim("acc: a > v")
        found = judge(one, "small", Store(), {"c": one}, {})
        assert (found.state, found.reason) == ("not run", "experiment e was not run at size small")
        one = claim(needs="CIFAR-100 is not at hand")
        assert judge(one, "small", Store(), {"c": one}, {}).reason == "CIFAR-100 is not at hand"

    def test_another_experiment(self) -> None:
        one = claim("acc: a > v", "acc @ f: a > v")
        both = [record({"acc": {"a": [2, 2], "v": [1, 1]}}, experiment=name) for name in ("e", "f")]
        assert one.experiments == ("e", "f")
        assert judge(one, "small", Store(*both), {"c": one}, {}).state == "holds"
        assert judge(one, "small", Store(both[0]), {"c": one}, {}).state == "not run"

    def test_erratum(self) -> None:
        one = claim("check printed", corrected=("check right",))
        found = judge(
            one, "small", Store(record(checks={"printed": self.check(199), "right": self.check(200)})), {"c": one}, {}
        )
        assert (found.state, found.corrected_state, found.flags) == ("does not hold", "holds", ("erratum",))
        found = judge(
            one, "small", Store(record(checks={"printed": self.check(200), "right": self.check(200)})), {"c": one}, {}
        )
        assert (found.state, found.flags) == ("holds", ())

    def test_input_scaling(self) -> None:
        one = claim("acc: a > v", other_inputs="s")
        here = record({"acc": {"a": [2, 2], "v": [1, 1]}})
        there = record({"acc": {"a": [0, 0], "v": [1, 1]}}, experiment="s")
        assert judge(one, "small", Store(here), {"c": one}, {}).flags == ()
        assert judge(one, "small", Store(here, there), {"c": one}, {}).flags == ("input scaling",)

    def test_derived(self) -> None:
        base, derived = claim("acc: a > v", name="base"), claim("claim base", name="derived", experiment=None)
        known = {"base": base, "derived": derived}
        for a, expected in (([2, 2], "holds"), ([0, 0], "does not hold"), ([0, 3], "undecided")):
            store = Store(record({"acc": {"a": a, "v": [1, 1]}}))
            assert judge(derived, "small", store, known, {}).state == expected
        assert judge(derived, "small", Store(), known, {}).state == "not run"

    def test_function(self) -> None:
        one = claim("function f")

        def f(part: Part, record: object) -> Outcome:
            return Outcome(part, "met", "so it is")

        assert judge(one, "small", Store(record()), {"c": one}, {"f": f}).state == "holds"

    def test_neighbour_is_said(self) -> None:
        one = claim("acc: a > v")
        found = judge(
            one, "small", Store(record({"acc": {"a": [2, 2], "v": [1, 1]}}, neighbour="digits")), {"c": one}, {}
        )
        assert found.flags == ("neighbour",)


class TestSeedsThatSayNothing:
    """A seed whose number is none, or whose run diverged, is no success."""

    @pytest.mark.parametrize("at", [0, 1, 2])
    @pytest.mark.parametrize("side", [0, 1])
    def test_one_that_is_no_number(self, at: int, side: int) -> None:
        values = [[1.0] * 3, [2.0] * 3]
        assert states("m: a ⪡ b", *values, unit="factor") == ["met"]
        values[side][at] = math.nan
        for text in ("m: a ⪡ b", "not: m: a ⪡ b", "not: m: b ⪡ a", "m: a < b", "not: m: a > b", "m: a ≪ b"):
            assert states(text, *values, unit="factor") == ["not met"], text

    def test_the_opposite_by_one_seed(self) -> None:
        assert states("not: m: a > b", [1.0], [2.0], unit="factor") == ["undecided"]
        assert states("not: m: a > b", [1.0], [2.0], unit="exact") == ["met"]
        assert states("not: m: a > b", [1.0, 1.0], [2.0, 2.0], unit="factor") == ["met"]

    @pytest.mark.parametrize(("diverged", "expected"), [("101", "met"), ("103", "undecided")])
    @pytest.mark.parametrize("text", ["drop 6: bn < 0.5", "drop 6: bn < bnp", "drop 6: bnp > bn"])
    def test_a_run_that_diverged_has_no_drop(self, text: str, diverged: str, expected: str) -> None:
        numbers = {
            "drop 6": {"bn": [0.1, 0.2], "bnp": [1.0, 1.1]},
            "vloss 6": {"bn": [1.0, 1.0, 1.0], "bnp": [1.0, 1.0, 1.0]},
        }
        of_runs = record(numbers, {"drop 6": "points", "vloss 6": "loss"})
        of_runs.numbers["vloss 6"]["bn"]["103"] = math.inf if diverged == "103" else 1.0
        (found,) = judge_part(Part.parse(text), of_runs)
        assert found.state == expected
        assert ("bn diverged with seed 103, and has no drop" in found.sentence) == (diverged == "103")

    def test_gaps_that_are_not_there(self) -> None:
        gaps = {"gap": {"wn+mean-bn": [0.1, 0.2]}}
        for numbers in ({}, gaps):
            found = FUNCTIONS["gaps_of_parts_differ"](Part.parse("function gaps_of_parts_differ"), record(numbers))
            assert found.state == "not run"


class TestWhatDecides:
    """What is undecided says what would decide it."""

    NUMBERS: ClassVar = {"acc": {"bnp": [50.0, 51.0, 50.0], "bn": [49.0, 51.5, 49.0]}}

    @pytest.mark.parametrize(
        ("ran", "more", "minutes"),
        [
            ("", " --force --more-seeds 2", 2),
            (" --more-seeds 2", " --force --more-seeds 4", 4),
            (" --pass first", "", 1),
        ],
    )
    def test_more_seeds_by_a_command(self, ran: str, more: str, minutes: int) -> None:
        of_runs = record(self.NUMBERS, experiment="fc-60-mnist")
        of_runs.command = f"trimtab claims run --experiment fc-60-mnist --size small{ran}"
        found = judge(claim("acc: bnp > bn", experiment="fc-60-mnist"), "small", Store(of_runs), {}, FUNCTIONS)
        took = duration(minutes * experiment_named("fc-60-mnist").minutes["small"])
        assert found.state == "undecided"
        assert found.to_decide == (
            f"more seeds may decide it: `trimtab claims run --experiment fc-60-mnist --size small{more}`, about {took} "
            "on two CPU cores, with MNIST (`trimtab data fetch mnist`)"
        )

    def test_ten_seeds_are_enough(self) -> None:
        numbers = {"acc": {"bnp": [50.0, 51.0] * 3, "bn": [49.0, 51.5] * 3}}
        of_runs = record(numbers, experiment="fc-60-mnist")
        of_runs.command = "trimtab claims run --experiment fc-60-mnist --size small --more-seeds 3"
        found = judge(claim("acc: bnp > bn", experiment="fc-60-mnist"), "small", Store(of_runs), {}, FUNCTIONS)
        assert "--more-seeds 5`" in found.to_decide  # 2 seeds, five times

    def test_of_derived_claims_too(self) -> None:
        origin = claim("acc: bnp > bn", experiment="fc-60-mnist")
        derived = claim("claim c", name="d", experiment=None)
        store = Store(record(self.NUMBERS, experiment="fc-60-mnist"))
        found = judge(derived, "small", store, {"c": origin, "d": derived}, FUNCTIONS)
        assert (found.state, "--experiment fc-60-mnist" in found.to_decide) == ("undecided", True)

    def test_nothing_where_all_is_decided(self) -> None:
        numbers = {"acc": {"bnp": [50.0, 51.0], "bn": [40.0, 41.0]}}
        store = Store(record(numbers, experiment="fc-60-mnist"))
        found = judge(claim("acc: bnp > bn", experiment="fc-60-mnist"), "small", store, {}, FUNCTIONS)
        assert (found.state, found.to_decide) == ("holds", "")
