"""Axes of a sweep, from text."""

import pytest

from trimtab.training.settings import setting_infos
from trimtab.training.sweep.axes import Axis, numeric_settings


def test_a_geometric_range_has_equal_ratios_and_its_ends() -> None:
    axis = Axis.parse("lr=1e-4..10:6")
    assert axis.values == (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
    assert axis.geometric is True


def test_a_linear_range_has_equal_steps() -> None:
    assert Axis.parse("sigma-w2=lin:0.5..2:4") == Axis("sigma_w2", (0.5, 1.0, 1.5, 2.0), geometric=False)


def test_a_list_is_put_in_order() -> None:
    assert Axis.parse("batch_size=60,2,16").values == (2, 16, 60)


def test_every_numeric_setting_that_results_depend_on_can_be_an_axis() -> None:
    numbers = {s.name for s in setting_infos() if s.hint in (int, float)}
    records = {"log_every", "evaluate_every", "evaluations", "probe_every", "train_subset", "seed"}
    assert set(numeric_settings()) == numbers - records


BAD = [
    ("lr", "an axis is NAME="),
    ("lr=", "an axis is NAME="),
    ("lr=1..10", "number of its values"),
    ("lr=1..10:1", "number of its values"),
    ("lr=10..1:3", "from a smaller to a larger"),
    ("lr=0..1:3", "must begin above 0"),
    ("lr=a..1:3", "'a', which is no number"),
    ("lr=1,nan", "'nan', which is no number"),
    ("lr=1,1", "a value twice"),
    ("batch_size=1..10:3", "no whole numbers"),
    ("batch_size=1.5,2", "must be a whole number"),
    ("gama=1,2", "did you mean 'gamma'"),
    ("method=1,2", "method cannot be an axis"),
    ("milestones=1,2", "milestones cannot be an axis"),
    ("log_every=1,2", "log_every cannot be an axis"),
    ("train_subset=0,10", "train_subset cannot be an axis: it is for records"),
    ("lr=1e-310..1:3", "0 or from 1e-30 to 1e"),
    ("lr=1..1.0000001:5", "equal in 6 digits"),
    ("seed=1,2", "give --restarts"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_what_is_no_axis_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Axis.parse(text)
    assert "\n" not in str(caught.value)
