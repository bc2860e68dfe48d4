"""A monitor calls what is due, writes it down, and lets nothing into the training."""

import math
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trimtab
from trimtab.probes import CannotMeasure, Landscape, Monitor, Probe, Result
from trimtab.records import Probed, read_events


@dataclass(frozen=True, kw_only=True)
class Counted(Result):
    number: float = math.nan
    numbers: tuple[float, ...] = ()


class Counting(Probe[Counted]):
    name: ClassVar[str] = "counting"
    result: ClassVar[type[Result]] = Counted

    def __init__(self) -> None:
        self.calls = 0

    def measure(self, model: nn.Module, loss_fn: Any, batch: Any) -> Counted:
        self.calls += 1
        return Counted(number=math.inf, numbers=(1.0, math.nan, -math.inf))


class Changing(Counting):
    name: ClassVar[str] = "changing"
    successive: ClassVar[bool] = True


class Failing(Counting):
    name: ClassVar[str] = "failing"

    def measure(self, model: nn.Module, loss_fn: Any, batch: Any) -> Counted:
        raise KeyError("what a user may raise")


class Lost(Counting):
    name: ClassVar[str] = "lost"

    def measure(self, model: nn.Module, loss_fn: Any, batch: Any) -> Counted:
        raise CannotMeasure("The loss is nan.\nAnd more lines.")


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def steps_with(monitor: Monitor, steps: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for step in range(steps):
        for name in monitor(nn.Linear(2, 1), loss_fn, torch.ones(3, 2)):
            found.setdefault(name, []).append(step)
    return found


def test_what_is_due() -> None:
    assert steps_with(Monitor([Counting(), Changing()], every=4), 10) == {
        "counting": [0, 4, 8],
        "changing": [0, 1, 4, 5, 8, 9],
    }
    assert steps_with(Monitor([Counting()], every=4, at=(3, 7)), 10) == {"counting": [3, 7]}
    assert steps_with(Monitor([Changing()], every=1), 3) == {"changing": [0, 1, 2]}


def test_failures_stay_in_the_result_and_the_first_one_is_said() -> None:
    monitor = Monitor([Failing(), Lost(), Counting()], every=1)
    call = partial(monitor, nn.Linear(2, 1), loss_fn, torch.ones(3, 2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = [call() for _ in range(3)]
    for results in found:
        problem = results["failing"].problem
        assert problem is not None and problem.startswith("KeyError") and math.isnan(results["failing"].number)
    assert [str(each.message) for each in said] == [
        "The probe 'failing' measured nothing at step 0: KeyError: 'what a user may raise'. "
        "This is said once; later failures are in `problem` of its results.",
        "The probe 'lost' measured nothing at step 0: The loss is nan. "
        "This is said once; later failures are in `problem` of its results.",
    ]
    assert all(issubclass(each.category, trimtab.TrimtabWarning) for each in said)
    assert {each.filename for each in said} == {__file__}  # the line that called the monitor


def test_interruptions_pass() -> None:
    def interrupted(model: nn.Module, batch: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Monitor([Landscape(step_size=0.1)])(nn.Linear(2, 1), interrupted, torch.ones(3, 2))


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    with Monitor([Counting(), Landscape(step_size=0.1)], every=2, log=path) as monitor:
        steps_with(monitor, 3)
    events = [event for event in read_events(path) if isinstance(event, Probed)]
    assert [(event.step, event.probe) for event in events] == [
        (0, "counting"), (0, "landscape"), (2, "counting"), (2, "landscape")
    ]  # fmt: skip
    counted = events[0].result
    assert counted["number"] == math.inf and counted["problem"] is None
    assert counted["numbers"][0] == 1.0 and math.isnan(counted["numbers"][1]) and counted["numbers"][2] == -math.inf
    assert len(events[1].result["losses"]) == 8 and events[1].seconds > 0


def test_arguments() -> None:
    for every in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="every must be a whole number"):
            Monitor([], every=every)
    with pytest.raises(ValueError, match="different names"):
        Monitor([Counting(), Counting()])
    for at in (["3"], [-5], [1.5], 3, None):
        with pytest.raises(ValueError, match="at must be a list of whole numbers"):
            Monitor([], at=at)
    for probes in ([Landscape], "landscape", None, [nn.Linear(1, 1)]):
        with pytest.raises(ValueError, match="probes must be probes"):
            Monitor(probes)
    with pytest.raises(ValueError, match="log must be the path of a file, not 3"):
        Monitor([], log=3)


def test_a_log_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    for _ in range(2):
        with Monitor([Counting()], every=1, log=path) as monitor:
            steps_with(monitor, 2)
    assert len(list(read_events(path))) == 4


class Silent(Counting):
    name: ClassVar[str] = "silent"

    def measure(self, model: nn.Module, loss_fn: Any, batch: Any) -> Counted:
        return None


class Odd(Counting):
    name: ClassVar[str] = "odd"

    def measure(self, model: nn.Module, loss_fn: Any, batch: Any) -> Counted:
        return Counted(number=np.float32(0.5), numbers={1.0, 2.0})


def test_nothing_that_goes_wrong_with_records_reaches_the_training(tmp_path: Path) -> None:
    said = pytest.warns(trimtab.TrimtabWarning, match="'silent' measured nothing")
    with said, Monitor([Silent(), Odd()], every=1, log=tmp_path / "log") as monitor:
        assert monitor(nn.Linear(2, 1), loss_fn, torch.ones(3, 2))["silent"].problem is not None
    assert [event.result["number"] for event in read_events(tmp_path / "log") if event.probe == "odd"] == [0.5]
    full = Monitor([Counting()], every=1, log="/dev/full")
    with pytest.warns(trimtab.TrimtabWarning, match="no longer written down") as said:
        full(nn.Linear(2, 1), loss_fn, torch.ones(3, 2))
    assert said[0].filename == __file__
    assert full(nn.Linear(2, 1), loss_fn, torch.ones(3, 2))["counting"].problem is None
