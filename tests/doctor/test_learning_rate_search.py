"""The search among rates, on losses that are functions of the rate."""

import math

import pytest

from trimtab.doctor.learning_rate_search import best_of, between, climb, edge


def bowl(best: float) -> dict[float, float]:
    """Tried are the rates around the bottom of a parabola in the logarithm of both."""
    return climb(lambda rate: math.exp(math.log(rate / best) ** 2), 1.0, 2.0, 20)


@pytest.mark.parametrize("best", [1e-3, 0.4, 1.0, 1.9, 37.0])
def test_the_bottom_of_a_parabola_is_found_exactly(best: float) -> None:
    found = bowl(best)
    assert edge(found) is None
    assert between(found) == pytest.approx(best)


def test_no_rate_is_tried_twice_and_the_best_has_both_neighbours() -> None:
    asked: list[float] = []

    def loss(rate: float) -> float:
        asked.append(rate)
        return abs(math.log(rate / 30))

    found = climb(loss, 1.0, 4.0, 9)
    assert asked == [1.0, 4.0, 16.0, 64.0]  # 16 is nearer to 30 than 64 is
    assert list(found) == sorted(asked) and best_of(found) == 16.0
    assert list(climb(lambda rate: rate, 1.0, 4.0, 3)) == [1 / 4, 1.0, 4.0]


def test_it_comes_down_from_where_everything_diverges() -> None:
    found = climb(lambda rate: math.inf if rate > 0.01 else 2 - rate, 1.0, 4.0, 20)
    assert best_of(found) == 4.0**-4 and edge(found) is None
    assert min(found) == 4.0**-5 and max(found) == 1.0


def test_it_leaves_a_plateau_upwards() -> None:
    found = climb(lambda rate: 1.0 if rate < 100 else 0.5 if rate < 300 else 2.0, 1.0, 4.0, 20)
    assert best_of(found) == 256.0


def test_it_widens_so_often_and_no_more() -> None:
    assert len(climb(lambda rate: 1 / rate, 1.0, 2.0, 5)) == 5
    found = climb(lambda rate: 1 / rate, 1.0, 2.0, 5)
    assert edge(found) == "largest" and between(found) == best_of(found) == 16.0
    assert edge(climb(lambda rate: rate, 1.0, 2.0, 5)) == "smallest"
    assert edge({1.0: 3.0}) is not None


def test_a_neighbour_that_diverges_is_the_limit_of_one_that_is_very_bad() -> None:
    at_last = between({1.0: 2.0, 2.0: 1.0, 4.0: math.inf})
    assert at_last == pytest.approx(2.0 / math.sqrt(2))
    nearly = [between({1.0: 2.0, 2.0: 1.0, 4.0: huge}) for huge in (10.0, 1e10, 1e300)]
    assert nearly == sorted(nearly, reverse=True) and nearly[-1] == pytest.approx(at_last, rel=0.01)
    assert between({1.0: math.inf, 2.0: 1.0, 4.0: math.inf}) == 2.0


def test_of_rates_that_all_diverge_the_smallest_is_best() -> None:
    assert best_of({1.0: math.inf, 2.0: math.inf, 4.0: math.inf}) == 1.0
    assert best_of({1.0: 3.0, 2.0: 3.0, 4.0: math.inf}) == 2.0


def test_losses_below_zero_have_a_parabola_too() -> None:
    assert between({1.0: -1.0, 2.0: -2.0, 4.0: -1.0}) == pytest.approx(2.0)
    assert between({1.0: -1.5, 2.0: -2.0, 4.0: -1.0}) == pytest.approx(2.0 * 2 ** (0.5 * -0.5 / 1.5))
