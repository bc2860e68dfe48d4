"""Checks a saved state, field by field, before a run goes on from it."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from trimtab.records import Evaluated, checked, shown
from trimtab.training.session import Session
from trimtab.training.settings import Settings, as_it_was, from_mapping

ROUNDING = 1e-5
"""Means and deviations of data may be computed on another machine than they were."""
GENERATORS = ("before_epoch", "order_generator", "torch_generator")


def saved_settings(state: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a checkpoint was made with.

    Raises:
        ValueError: If there are none.
    """
    saved = _typed(state, "settings", dict, "a dictionary")
    return asdict(Settings(**as_it_was(from_mapping(saved, where="its settings"))))


def check(state: Mapping[str, Any], session: Session) -> None:
    """Refuse a state that no run of this session has saved.

    Raises:
        ValueError: With what is wrong, for the end of a sentence.
    """
    _typed(state, "seconds", float, "a time", lambda x: 0 <= x < float("inf"))
    _typed(state, "log", int, "a number of bytes")
    _typed(state, "first_loss", float, "a loss", lambda x: 0 <= x < float("inf"))  # else the run had diverged
    for evaluation in _typed(state, "evaluations", list, "a list"):
        checked(Evaluated, evaluation)
    if state.get("last_epoch") is not None:  # earlier checkpoints have none
        _check_last_epoch(state["last_epoch"])
    _same_fields(_typed(state, "interface", dict, "a dictionary"), asdict(session.interface), "interface", ROUNDING)
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
    if isinstance(own["bnp"], Mapping) and "options" in own["bnp"]:  # else BNP says what its state lacks
        _same_fields(own["bnp"]["options"], ours["bnp"]["options"], "bnp.options")
    same_tensors({name: own[name] for name in GENERATORS}, {name: ours[name] for name in GENERATORS}, "the generators")
    _check_device_generator(own["device_generator"])
    _check_sums(own["sums"], ours["sums"])
    for one in _typed(own, "processes", list, "a list of processes") if "processes" in own else []:
        if not isinstance(one, Mapping) or one.keys() != {"torch_generator", "device_generator", "sums"}:
            raise ValueError(f"of a process it has {shown(one)}, not two generators and sums")
        same_tensors({"process": one["torch_generator"]}, {"process": ours["torch_generator"]}, "the generators")
        _check_device_generator(one["device_generator"])
        _check_sums(one["sums"], ours["sums"])


def _check_last_epoch(sums: Any) -> None:
    kinds = [type(x) for x in sums] if isinstance(sums, list) else []
    if kinds != [int, *([int, float, float] * 2)] or not all(map(math.isfinite, sums)) or min(sums) < 0:
        raise ValueError(f"its last_epoch is {shown(sums)}, not sums over the steps of an epoch")


def _check_device_generator(state: Any) -> None:
    if state is not None and not (isinstance(state, Tensor) and state.dtype == torch.uint8):
        raise ValueError(f"device_generator is {shown(state)}, not a generator's state")


def _typed(
    state: Mapping[str, Any], name: str, kind: type, words: str, allowed: Callable[[Any], bool] = lambda _: True
) -> Any:
    """A field of exactly this type."""
    if name not in state:
        raise ValueError(f"it has no {name}")
    value = state[name]
    fits = type(value) is kind
    if not fits or (kind is int and value < 0) or not allowed(value):
        raise ValueError(f"its {name} is {shown(value)}, not {words}")
    return value


def _same_fields(theirs: Any, ours: Mapping[str, Any], where: str, tolerance: float = 0.0) -> None:
    """Refuse other names or values than there are now; numbers may differ by the tolerance."""
    if not isinstance(theirs, Mapping):
        raise ValueError(f"its {where} is {shown(theirs)}, not a dictionary")
    for name in theirs.keys() - ours.keys():
        raise ValueError(f"it has {where}.{name}, which is not known")
    for name, value in ours.items():
        if name not in theirs:
            raise ValueError(f"it has no {where}.{name}")
        if not _alike(theirs[name], value, tolerance):
            raise ValueError(f"its {where}.{name} is {shown(theirs[name])}, not {shown(value)}")


def _alike(theirs: Any, ours: Any, tolerance: float) -> bool:
    if type(theirs) is not type(ours):
        return False
    if isinstance(ours, tuple):
        return len(theirs) == len(ours) and all(_alike(*pair, tolerance) for pair in zip(theirs, ours, strict=True))
    if isinstance(ours, float):
        return math.isclose(theirs, ours, rel_tol=tolerance, abs_tol=tolerance)
    return bool(theirs == ours)


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
        described = [f"{one.dtype} of shape {tuple(one.shape)}" for one in (theirs, ours)]
        raise ValueError(f"{name} is {described[0]}, not {described[1]}")


def _check_optimizer(theirs: Any, ours: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check the state of an optimizer: its groups, and for each parameter tensors of its shape, or counts."""
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
    for number, saved in theirs["state"].items():
        if type(number) is not int or not 0 <= number < len(parameters) or not isinstance(saved, Mapping):
            raise ValueError(f"the optimizer has a state of {shown(number)}, which is no parameter")
        for name, value in _entries(saved):
            if name == "step":
                _same_tensor(value, torch.tensor(0.0), "step of the optimizer")
            else:
                _same_tensor(value, parameters[number], f"{name} of the optimizer")


def _entries(state: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
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
