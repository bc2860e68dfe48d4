"""What a comparison consists of."""

from dataclasses import replace
from itertools import pairwise

import pytest

from trimtab.data import load
from trimtab.training.demo import DEMO
from trimtab.training.grid import Grid, PlannedRun, around, setups
from trimtab.training.recipes import CNN_RATES, MLP_RATES, resolve
from trimtab.training.settings import Settings

DIGITS = load("digits")


def test_the_demo_is_what_is_promised() -> None:
    found = setups(DEMO, DIGITS)
    assert len(found) == 2 * 4 * 4
    assert {place.settings.network for place in found} == {"small-cnn", "small-mlp"}
    assert {place.settings.batch_size for place in found} == {64, 4, 2, 1}
    assert {place.settings.method for place in found} == {"vanilla", "bn", "ln", "bnp"}
    assert {place.steps for place in found} == {150, 500, 1000}
    assert {len(place.rates) for place in found} == {8}


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("lr", [0.1, 0.5, 0.0005])
def test_candidates_are_so_many_rising_and_the_papers_is_among_them(number: int, lr: float) -> None:
    rates = around(lr, number)
    assert len(rates) == number
    assert lr in rates
    assert all(2.9 < after / before < 3.5 for before, after in pairwise(rates))


def test_the_rates_of_the_papers_tables_are_among_the_candidates() -> None:
    tables = [("mlp3x100", data, size, rates) for (data, size), rates in MLP_RATES.items()]
    tables += [("cnn5", "cifar10", size, rates) for size, rates in CNN_RATES.items()]
    for network, data, size, rates in tables:
        for method, lr in rates.items():
            settings = resolve(Settings(network=network, data=data, batch_size=size, method=method))
            assert settings.lr == lr or (network, size, method) == ("cnn5", 128, "vanilla")  # Adam, see the recipe
            assert settings.lr in around(settings.lr or 0.0, 5)


def test_tuning_never_sees_test_data_and_final_runs_have_other_seeds() -> None:
    (place,) = setups(Grid(methods=("bnp",), lrs=(0.3, 0.1), seeds=2), DIGITS)
    tuning, final = place.tuning(), place.final(0.3)
    assert [run.settings.lr for run in tuning] == [0.1, 0.3]
    assert {run.settings.evaluate_on for run in tuning} == {"validation"}
    assert {run.settings.evaluate_on for run in final} == {"test"}
    assert {run.settings.lr for run in final} == {0.3}
    assert {run.settings.seed for run in tuning}.isdisjoint({run.settings.seed for run in final})
    assert {run.settings.validation for run in tuning + final} == {139}
    assert len({run.name for run in tuning + final}) == 4


def test_without_a_choice_all_data_are_trained_on() -> None:
    (place,) = setups(Grid(methods=("bnp",), rates=1), DIGITS)
    assert place.settings.validation == 0
    assert place.tuning() == []
    assert place.rates == (0.1,)
    with pytest.raises(ValueError, match="chosen on validation data"):
        setups(Grid(methods=("bnp",), validation=0), DIGITS)


def test_lengths() -> None:
    grid = Grid(methods=("bnp",), batch_sizes=(100, 10, 0), epochs={100: 3}, shared={"epochs": 2}, validation=397)
    assert [place.steps for place in setups(grid, DIGITS)] == [30, 200, 2]
    grid = replace(grid, shared={"steps": 7}, epochs={})
    assert [place.steps for place in setups(grid, DIGITS)] == [7, 7, 7]
    with pytest.raises(ValueError, match="a batch of 2000 is more than the 1000 samples"):
        setups(replace(grid, batch_sizes=(2000,)), DIGITS)


def test_one_method_under_two_names_is_refused() -> None:
    with pytest.raises(ValueError, match="vanilla and none are the same method"):
        setups(Grid(methods=("vanilla", "none")), DIGITS)


def test_a_rate_for_adam_is_not_taken_for_another_optimizer() -> None:
    told = {"data": "cifar10", "network": "cnn5", "method": "vanilla", "batch_size": 128}
    assert resolve(Settings(**told)).optimizer == "adam"
    assert resolve(Settings(**told, optimizer="adam")).lr == 0.001
    assert resolve(Settings(**told, optimizer="sgd")).lr == 0.1


def test_a_name_changes_with_any_setting() -> None:
    settings = resolve(Settings(method="bnp+gn", lr=0.1))
    names = {
        PlannedRun(changed, 10).name
        for changed in (
            settings,
            replace(settings, rho=0.9),
            replace(settings, milestones=(1,)),
            replace(settings, seed=1),
        )
    }
    assert len(names) == 4
    assert PlannedRun(settings, 10).name == PlannedRun(replace(settings), 99).name
    assert all(name.startswith("small-cnn-bnp+gn-b64-lr0.1-s") for name in names)
