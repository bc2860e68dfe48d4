"""What is measured on the runs of the regularization paper's network, on runs made by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.claims.helpers import recorded
from tests.claims.invented_runs import STEPS, history
from trimtab.claims.experiments import cited_bnp, landscape_setup
from trimtab.claims.experiments.cited_bnp import at_level, good_rates
from trimtab.claims.experiments.cited_measured import stable_ranks
from trimtab.claims.experiments.cited_regularization import epoch_losses, largest_difference, unchanged_by_scale
from trimtab.claims.experiments.regcnn import enter_best, enter_gaps_at_equal_loss, lowest_and_best
from trimtab.claims.experiments.registry import Context
from trimtab.claims.experiments.regularization_dropout import alternating_seconds
from trimtab.claims.experiments.regularization_gamma import grows, rank_correlation
from trimtab.claims.experiments.regularization_parts import enter_steps, steps_to
from trimtab.claims.findings import Findings
from trimtab.claims.functions import gaps_of_parts_differ
from trimtab.claims.part import Part
from trimtab.claims.training_runs import TrainedCase
from trimtab.training.recipes import resolve
from trimtab.training.settings import Settings


def test_gaps_are_compared_at_the_lowest_loss_that_all_reach():
    slow = history(losses=[(2.0, 2.2), (1.0, 1.6)])
    fast = history(losses=[(1.5, 1.6), (0.5, 0.9)])
    lost = history(diverged=True)
    findings = Findings()
    enter_gaps_at_equal_loss(
        findings, {"slow": TrainedCase(0.1, {1: slow}), "fast": TrainedCase(0.1, {1: fast, 2: lost})}
    )
    assert findings.settings["level of equal loss"] == 1.0
    gaps = findings.numbers["gap at equal loss"]
    assert gaps["slow"]["1"] == pytest.approx(0.6)
    assert gaps["fast"]["1"] == pytest.approx((0.1 + 0.4) / 2)  # halfway from 1.5 to 0.5
    assert gaps["fast"]["2"] == math.inf


def test_a_run_that_begins_below_the_level_has_its_first_gap():
    slow, fast = history(losses=[(2.0, 2.2), (1.0, 1.6)]), history(losses=[(0.5, 0.7), (0.1, 0.9)])
    findings = Findings()
    enter_gaps_at_equal_loss(findings, {"slow": TrainedCase(0.1, {1: slow}), "fast": TrainedCase(0.1, {1: fast})})
    assert findings.numbers["gap at equal loss"]["fast"]["1"] == pytest.approx(0.2)


def test_steps_to_an_accuracy_are_on_straight_lines():
    run = history(losses=[(1.0, 1.0), (0.5, 0.5)], accuracies=[(0.5, 0.4), (1.0, 0.9)])
    assert steps_to(run, 0.3, 0.1) == pytest.approx(STEPS / 2 * (0.3 - 0.1) / (0.5 - 0.1))
    assert steps_to(run, 0.75, 0.1) == pytest.approx(STEPS * 0.75)
    assert steps_to(run, 1.1, 0.1) == math.inf


def test_steps_are_counted_to_what_the_slowest_run_reaches():
    good = history(losses=[(1.0, 1.0), (0.5, 0.5)], accuracies=[(0.5, 0.4), (1.0, 0.9)])
    poor = history(losses=[(1.0, 1.0), (0.5, 0.5)], accuracies=[(0.3, 0.4), (0.5, 0.5)])
    findings = Findings()
    enter_steps(findings, {"bn": TrainedCase(0.1, {1: good}), "wn": TrainedCase(0.1, {1: poor})}, 0.1)
    steps = findings.numbers["steps to 90 % training accuracy"]
    assert steps["bn"]["1"] == pytest.approx(STEPS / 2)
    assert steps["wn"]["1"] == pytest.approx(STEPS)


def test_lowest_and_best_along_a_run():
    run = history(losses=[(1.0, 1.0), (0.5, 0.3), (0.1, 0.6)], accuracies=[(0.5, 0.4), (0.8, 0.9), (1.0, 0.7)])
    assert lowest_and_best(run, 0.1) == (0.3, pytest.approx(90.0))
    assert lowest_and_best(history(diverged=True), 0.1) == (math.inf, 10.0)


def test_the_best_case_is_that_with_the_best_mean():
    losses = [(1.0, 1.0), (0.5, 0.5)]
    runs = {
        name: TrainedCase(0.1, {i: history(losses=losses, accuracies=[(0.5, 0.1), (0.5, a)]) for i, a in enumerate(at)})
        for name, at in {"a": (0.9, 0.1), "b": (0.6, 0.7)}.items()
    }
    findings = Findings()
    assert enter_best(findings, ("acc",), runs, ["a", "b"], "best", 0.1) == "b"
    assert findings.numbers["acc"]["best"] == {"0": pytest.approx(60.0), "1": pytest.approx(70.0)}


def test_growing_with_the_batch_size():
    assert rank_correlation((1, 2, 4), (3.0, 9.0, 81.0)) == pytest.approx(1.0)
    assert grows((16, 64, 256, 1024), (1.0, 3.0, 2.0, 4.0))  # a correlation of 0.8
    assert not grows((16, 64, 256, 1024), (2.0, 1.0, 4.0, 3.0))  # of 0.6
    assert not grows((8, 32, 128), (1.0, 2.0, math.nan))
    assert not grows((8, 32, 128), (1.0, 1.0, 1.0))
    assert grows((8, 32, 128), (1.0, 2.0, math.inf))


def test_good_rates_are_within_five_points():
    assert good_rates({0.01: 60.0, 0.1: 72.0, 1.0: 67.5, 3.0: 10.0}) == [0.1, 1.0]


def test_accuracy_at_a_level():
    points = [(0.2, 0.1), (0.6, 0.3), (0.5, 0.0), (0.8, 0.2)]
    assert at_level(points, 0.4) == pytest.approx(0.2)
    assert at_level(points, 0.7) == pytest.approx(2 / 15)
    assert at_level(points, 0.1) == 0.1
    assert math.isnan(at_level(points, 0.9))


def test_losses_are_compared_from_the_third_epoch_on():
    assert largest_difference([5.0, 1.0, 1.0, 0.5], [1.0, 5.0, 1.1, 0.4]) == pytest.approx(0.2)
    assert largest_difference([1.0, 1.0, 1.0], [1.0, 1.0]) == math.inf
    assert epoch_losses(history(trained=[3.0, 2.0])) == [3.0, 2.0]


@pytest.mark.parametrize(
    ("mean_only", "var_only", "state"),
    [
        ((0.5, 0.6), (0.3, 0.4), "met"),
        ((0.3, 0.4), (0.5, 0.6), "met"),
        ((0.5, 0.3), (0.3, 0.4), "undecided"),
        ((0.5,), (0.3,), "undecided"),
        ((0.9,), (0.3,), "met"),
        ((0.5, 0.5), (0.5, 0.5), "not met"),
    ],
)
def test_gaps_differ_in_either_direction(mean_only, var_only, state):
    findings = Findings()
    for name, values in (("wn+mean-bn", mean_only), ("wn+var-bn", var_only)):
        for seed, value in enumerate(values):
            findings.number("gap", name, value, seed=seed, unit="loss")
    part = Part.parse("function gaps_of_parts_differ")
    assert gaps_of_parts_differ(part, recorded(findings)).state == state


def test_the_scale_of_normalized_weights_does_not_matter():
    for draw in range(6):
        assert unchanged_by_scale(np.random.default_rng([101, draw])).holds(1e-9)


def test_stable_rank_of_one_random_layer():
    """1000 × 100 white inputs times a random matrix: ‖A‖_F² ≈ 1000·100 and ‖A‖₂² ≈ 1000·4, for its norm is about 2."""
    first = stable_ranks(False, 1)[0]
    assert first == pytest.approx(25, rel=0.25)
    assert stable_ranks(False, 1)[99] < 2 < 4 < stable_ranks(True, 1)[99]


def test_contenders_take_turns():
    calls: list[str] = []
    steps = {name: (lambda name=name: calls.append(name)) for name in ("bn", "wn")}
    found = alternating_seconds(steps, 2, torch.device("cpu"))
    assert {name: len(several) for name, several in found.items()} == {"bn": 2, "wn": 2}
    rounds = calls[6:]  # after the warm-up; one step that is not timed, then one that is
    assert rounds == ["bn"] * 2 + ["wn"] * 2 + ["wn"] * 2 + ["bn"] * 2


def test_what_is_cited_of_vgg_has_at_size_small_the_neighbour_of_the_landscape_claims():
    findings, beside = Findings(), Findings()
    cited = cited_bnp.vgg(findings, "small")
    context = Context(size="small", device=torch.device("cpu"), data_root=None, work=Path())
    assert cited.items() <= {**landscape_setup.setup(beside, context), "steps": 600}.items()
    assert findings.neighbour == beside.neighbour
    settings = resolve(Settings(**cited, method="bn"))
    assert (settings.norm_momentum, settings.norm_eps, settings.before_activation) == (0.1, 1e-5, True)
