"""A saved state before it is taken up: whether it is one of this run, field by field."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from trimtab.records import Evaluated, checked, shown
from trimtab.training.session import Session
from trimtab.training.settings import Settings, from_mapping

GENERATORS = ("before_epoch", "order_generator", "torch_generator")


def saved_settings(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings that a checkpoint was made with; None in one of an earlier version, which does not say.

    Raises:
        ValueError: If they are not settings.
    """
    told = state.get("settings")
    if told is None:
        return None
    if not isinstance(told, Mapping):
        raise ValueError(f"its settings are {shown(told)}")
    return asdict(Settings(**from_mapping(told, where="its settings")))


def check(state: Mapping[str, Any], session: Session) -> None:
    """Refuse a state that no run of this session has saved.

    Raises:
        ValueError: With what is wrong, for the end of a sentence.
    """
    _typed(state, "seconds", float, "a time", lambda x: 0 <= x < float("inf"))
    _typed(state, "log", int, "a number of bytes")
    if state.get("first_loss") is not None:
        _typed(state, "first_loss", float, "a loss")
    for evaluation in _typed(state, "evaluations", list, "a list"):
        checked(Evaluated, evaluation)
    own = _typed(state, "session", dict, "a dictionary")
    ours = session.state()
    if missing := ours.keys() - own.keys():
        raise ValueError(f"it has no {min(missing)}")
    _typed(own, "step", int, f"a step from 0 to {session.total}", lambda n: n <= session.total)
    same_tensors(own["model"], ours["model"], "the network")
    _check_optimizer(own["optimizer"], ours["optimizer"], session.optimizer)
    if (own["bnp"] is None) != (ours["bnp"] is None):
        raise ValueError(
            "its state of BNP is missing" if own["bnp"] is None else "it has a state of BNP, which is not used"
        )
    same_tensors({name: own[name] for name in GENERATORS}, {name: ours[name] for name in GENERATORS}, "the generators")
    device = own["device_generator"]
    if device is not None and not (isinstance(device, Tensor) and device.dtype == torch.uint8):
        raise ValueError(f"device_generator is {shown(device)}, not a generator's state")
    _check_sums(own["sums"], ours["sums"])


def _typed(
    state: Mapping[str, Any], name: str, kind: type, words: str, allowed: Callable[[Any], bool] = lambda _: True
) -> Any:
    """A field of this type; whole numbers are counts, and one may stand for a fraction."""
    if name not in state:
        raise ValueError(f"it has no {name}")
    value = state[name]
    fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
    if not fits or (kind is int and value < 0) or not allowed(value):
        raise ValueError(f"its {name} is {shown(value)}, not {words}")
    return value


def same_tensors(theirs: Any, ours: Mapping[str, Tensor], whose: str) -> None:
    """Refuse other names, types or shapes than there are now."""
    if not isinstance(theirs, Mapping) or theirs.keys() != ours.keys():
        raise ValueError(f"what is saved of {whose} has other names than there are now")
    for name, tensor in ours.items():
        _same_tensor(theirs[name], tensor, name)


def _same_tensor(theirs: Any, ours: Tensor, name: str) -> None:
    if not isinstance(theirs, Tensor):
        raise ValueError(f"{name} is {shown(theirs)}, not a tensor")
    if theirs.shape != ours.shape or theirs.dtype != ours.dtype or theirs.layout != ours.layout:
        told = [f"{one.dtype} of shape {tuple(one.shape)}" for one in (theirs, ours)]
        raise ValueError(f"{name} is {told[0]}, not {told[1]}")


def _check_optimizer(theirs: Any, ours: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Its groups are known; its state comes with the steps, a tensor like the parameter or a count each."""
    if not isinstance(theirs, Mapping) or not isinstance(theirs.get("state"), Mapping):
        raise ValueError("what is saved of the optimizer is not a state")
    groups = theirs.get("param_groups")
    if not isinstance(groups, list) or len(groups) != len(ours["param_groups"]):
        raise ValueError("the optimizer has other groups of parameters")
    for group, now in zip(groups, ours["param_groups"], strict=True):
        if not isinstance(group, Mapping) or group.keys() != now.keys():
            raise ValueError("a group of the optimizer has other options than there are now")
        for name in now.keys() - {"lr"}:
            if type(group[name]) is not type(now[name]) or group[name] != now[name]:
                raise ValueError(f"{name} of the optimizer is {shown(group[name])}, not {shown(now[name])}")
        _typed(group, "lr", float, "a learning rate", lambda x: 0 <= x <= 1e30)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, kept in theirs["state"].items():
        if type(number) is not int or not 0 <= number < len(parameters) or not isinstance(kept, Mapping):
            raise ValueError(f"the optimizer has a state of {shown(number)}, which is no parameter")
        for name, value in _kept(kept):
            if name == "step":
                _same_tensor(value, torch.tensor(0.0), "step of the optimizer")
            else:
                _same_tensor(value, parameters[number], f"{name} of the optimizer")


def _kept(state: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if name not in ("step", "momentum_buffer", "exp_avg", "exp_avg_sq"):
            raise ValueError(f"the optimizer has {shown(name)}, which is not known")
        if value is not None or name != "momentum_buffer":  # there is none before the first step
            yield name, value


def _check_sums(theirs: Any, ours: tuple[Tensor, Tensor, int]) -> None:
    if not isinstance(theirs, tuple) or len(theirs) != len(ours):
        raise ValueError(f"sums are {shown(theirs)}, not a loss, the correct ones and a count")
    _same_tensor(theirs[0], ours[0], "the sum of losses")
    _same_tensor(theirs[1], ours[1], "the sum of correct ones")
    _typed({"count": theirs[2]}, "count", int, "a number of steps")
