"""Measures of probed runs against events that were made by hand."""

import math
from pathlib import Path
from typing import Any

import pytest

from trimtab.claims import probed_runs as measures
from trimtab.records import Evaluated, History, Probed, RunEnded, RunStarted


def history(
    probed: list[tuple[int, str, dict[str, Any]]],
    *,
    method: str = "vanilla",
    steps: int = 300,
    verdict: Any = "finished",
    accuracies: list[tuple[int, float, float]] | None = None,
) -> History:
    """A run of cnn5; of evaluations, the step, the training loss and the training accuracy."""
    settings = {"method": method, "network": "cnn5", "steps": steps, "depth": None}
    evaluated = tuple(
        Evaluated(step, step / 100, "test", 1.0, 0.5, 1.0, loss, accuracy) for step, loss, accuracy in accuracies or []
    )
    events = tuple(Probed(step, probe, {"problem": None, **result}, 0.1) for step, probe, result in probed)
    ended = RunEnded(verdict, steps, 1.0, 1.0)
    return History(Path("run"), RunStarted(settings, "", "", {}, 1), (), evaluated, ended, events)


def line(low: float, high: float, change: float = 1.0, smoothness: float = 2.0) -> dict[str, Any]:
    return {
        "loss_range": [low, high],
        "predictiveness_range": [0.5, change],
        "smoothness": smoothness,
        "loss": 2.0,
        "gradient_norm": 4.0,
        "multiples": [1.0, 2.0],
        "gradient_changes": [change / 2, change],
        "smoothness_at_edge": smoothness > 5,
    }


def layer(name: str, mean: float, variance: float) -> dict[str, Any]:
    return {"layer": name, "variance": variance, "examples": [{"mean": mean, "variance": variance}]}


def test_medians_over_parts_of_a_run() -> None:
    heights = {0: 1.0, 30: 5.0, 40: 2.0, 150: 8.0, 250: 4.0, 290: 6.0}
    run = history([(step, "landscape", line(1.0, 1.0 + height)) for step, height in heights.items()])
    number = measures.LINE["range"]
    assert measures.middle(run, "landscape", number, measures.FIRST_TENTH) == 3.0  # steps 0 and 30
    thirds = [measures.middle(run, "landscape", number, part) for part in measures.THIRDS.values()]
    assert thirds == [2.0, 8.0, 5.0]
    assert measures.middle(run, "landscape", number, measures.SECOND_HALF) == 6.0
    assert measures.middle(run, "landscape", measures.RELATIVE["range over loss"]) == 4.5 / 2
    assert measures.share_at_edge(run) == 0 and measures.at_multiples(run, "gradient_changes") == {1.0: 0.5, 2.0: 1.0}


def test_what_was_not_measured() -> None:
    number = measures.LINE["range"]
    cut_short = history([(0, "landscape", line(1, math.inf))], verdict="diverged")
    assert measures.middle(cut_short, "landscape", number, measures.FIRST_TENTH) == math.inf
    assert measures.middle(cut_short, "landscape", number, measures.SECOND_HALF) == math.inf
    failed = history([(0, "landscape", {"problem": "no"}), (10, "landscape", line(1, 3)), (20, "random", line(1, 9))])
    assert measures.middle(failed, "landscape", number) == 2
    with pytest.raises(ValueError, match="'landscape' from 50% to 100%"):
        measures.middle(failed, "landscape", number, measures.SECOND_HALF)
    assert math.isnan(measures.share_at_edge(history([])))


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("vanilla", ["0", "3", "6", "9"]),
        ("bn", ["1", "5", "9", "13"]),
        ("noisy-bn", ["1", "5", "9.noise", "13.noise"]),
        ("bn", ["0", "4", "8", "12"]),
    ],
)
def test_layers_have_the_same_numbers_with_and_without_a_norm(method: str, names: list[str]) -> None:
    run = history([], method=method)
    assert [measures.layer_number(run, name) for name in names] == [0, 1, 2, 3]


def test_stability_is_from_a_step_to_the_next() -> None:
    run = history(
        [
            (0, "activations", {"layers": [layer("0", 1.0, 4.0), layer("3", 0.0, 1.0)]}),
            (1, "activations", {"layers": [layer("0", 2.0, 4.0 * math.e), layer("3", 0.0, 1.0)]}),
            (40, "activations", {"layers": [layer("0", 50.0, 1.0), layer("3", 1.0, 0.0)]}),
            (41, "activations", {"layers": [layer("0", 53.0, math.e**-3), layer("3", 1.0, 0.0)]}),
        ]
    )
    mean, variance = measures.stability(run)
    assert mean == {0: pytest.approx((0.5 + 3.0) / 2), 1: 0.0}
    assert variance == {0: pytest.approx(2.0), 1: 0.0}
    mean, variance = measures.moment_changes(run)
    assert mean == {0: 2.0, 1: 0.0}
    assert variance[0] == pytest.approx((4 * (math.e - 1) + 1 - math.e**-3) / 2)


def test_a_constant_activation_that_moves_is_not_stable() -> None:
    run = history(
        [
            (0, "activations", {"layers": [layer("0", 1.0, 0.0)]}),
            (1, "activations", {"layers": [layer("0", 2.0, 1.0)]}),
        ]
    )
    assert measures.stability(run) == ({0: math.inf}, {0: math.inf})


def shift(loss: float, **cosines: float) -> dict[str, Any]:
    return {
        "loss": loss,
        "layers": [
            {"layer": name[1:], "cosine": cosine, "distance": 3.0, "gradient_norm": 2.0}
            for name, cosine in cosines.items()
        ],
    }


def test_covariate_shift_by_layer() -> None:
    run = history([(0, "shift", shift(2.0, _3=0.9, _6=math.nan)), (100, "shift", shift(1.0, _3=0.5, _6=-0.3))])
    assert measures.cosines(run) == {1: 0.7, 2: -0.3}
    assert measures.cosines(run, (0.0, 0.1)) == {1: 0.9}
    assert measures.relative_distances(run) == {1: 1.5, 2: 1.5}
    assert measures.share_of_layers(lambda a, b: a > b, {0: 2.0, 1: 1.0, 7: 9.0}, {0: 1.0, 1: 1.0, 3: 0.0}) == 0.5
    assert math.isnan(measures.share_of_layers(lambda a: True, {}))


def test_cosines_are_compared_at_equal_training_loss() -> None:
    """The other run is later where its loss is the same, and it goes on to losses that the first never has."""
    vanilla = history([(step, "shift", shift(loss, _3=loss)) for step, loss in ((0, 2.0), (100, 1.5), (200, 1.0))])
    bn = history(
        [(step, "shift", shift(loss, _4=loss + 0.3)) for step, loss in ((0, 2.0), (50, 1.0), (100, 0.5), (200, 0.1))],
        method="bn",
    )
    assert measures.cosines_above(bn, vanilla) == {1: pytest.approx(0.3)}
    apart = history([(0, "shift", shift(0.2, _3=0.0))])
    assert measures.cosines_above(apart, vanilla) == {} and measures.cosines_above(history([]), vanilla) == {}


def test_training_accuracy_and_loss() -> None:
    run = history([], accuracies=[(100, 2.0, 0.4), (200, 1.0, 0.6), (300, 0.5, 0.9)])
    points = measures.training_accuracy(run)
    assert measures.steps_to(points, 70) == pytest.approx(200 + 100 / 3)
    assert measures.steps_to(points, 30) == 100 and measures.steps_to(points, 95) == math.inf
    assert [measures.value_at(points, step) for step in (0, 150, 300)] == [40, 50, 90]
    assert measures.final_training_loss(run) == 0.5
    assert measures.final_training_loss(history([], verdict="diverged")) == math.inf


def test_an_advantage_is_how_many_times_larger_the_left_number_is() -> None:
    assert measures.advantage(6, 2) == 3 and measures.advantage(math.inf, math.inf) == 1
    assert measures.advantage(1, 0) == math.inf and measures.advantage(0, 0) == 1
