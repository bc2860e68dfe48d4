"""Calls of the doctor that cannot work: each is refused with one sentence that names what is wrong."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.bad_inputs.calls import Row, each, parameters, refused
from trimtab import Doctor, cli
from trimtab.doctor import Cure


def linear() -> nn.Linear:
    return nn.Linear(3, 2)


def square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def doctor(**changes: Any) -> Doctor:
    model = changes.pop("model", linear())
    optimizer = changes.pop("optimizer", None) or SGD(model.parameters(), lr=0.1)
    return Doctor(model, optimizer, changes.pop("loss_fn", square), **changes)


def on_two_devices() -> nn.Module:
    return nn.Sequential(linear(), nn.Linear(2, 1, device="meta"))


def stepped(loss: Callable[[nn.Module, Tensor], Any], *, backward: bool = True) -> None:
    model, batch = linear(), torch.ones(4, 3)
    looking = doctor(model=model)
    if backward:
        square(model, batch).backward()
    looking.step(batch, loss(model, batch))


def stepped_too_late() -> None:
    model, batch = linear(), torch.ones(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    looking = Doctor(model, optimizer, square)
    loss = square(model, batch)
    loss.backward()
    optimizer.step()
    looking.step(batch, loss)


ROWS: list[Row] = [
    *each((None, "vgg", linear), lambda v: Doctor(v, None, square), TypeError, r"model must be a torch\.nn\.Module"),  # type: ignore[arg-type]
    *each(
        (None, "sgd", SGD),
        lambda v: Doctor(linear(), v, square),
        TypeError,
        r"optimizer must be an optimizer of torch\.optim, not",
    ),
    (lambda: doctor(optimizer=SGD(linear().parameters(), lr=1)), ValueError, "none of the model's trained parameters"),
    (lambda: doctor(model=linear().requires_grad_(False)), ValueError, "no parameter that is trained"),
    (lambda: doctor(model=on_two_devices()), ValueError, r"on several devices \(cpu, meta\)"),
    *each((None, 3), lambda v: doctor(loss_fn=v), TypeError, r"loss_fn must be a function"),
    (lambda: doctor(loss_fn=nn.CrossEntropyLoss()), TypeError, r"takes outputs and targets"),
    *each(
        ("heavy", None, 3), lambda v: doctor(level=v), ValueError, r"level must be one of 'light', 'standard', 'full'"
    ),
    *each(
        (0, 1, 2.5, True), lambda v: doctor(every=v), ValueError, r"every must be a whole number of steps, 2 or larger"
    ),
    *each(
        (3, "data", torch.ones(3)),
        lambda v: doctor(level="full", validation=v),
        TypeError,
        r"validation must be a loader, or a list of batches",
    ),
    *each(
        ([], iter(())),
        lambda v: doctor(level="standard", validation=v),
        ValueError,
        r"validation has no batch; an iterator that was read before is at its end",
    ),
    # step()
    (
        lambda: stepped(lambda model, x: model(x)),
        TypeError,
        r"one number, the loss of the batch, not a tensor of shape",
    ),
    *each((None, 0.5, "low"), lambda v: stepped(lambda model, x: v), TypeError, r"loss must be a tensor of one number"),
    (lambda: stepped(square, backward=False), ValueError, r"No parameter has a gradient: call doctor\.step"),
    (
        stepped_too_late,
        ValueError,
        r"changed since the forward: call doctor\.step\(batch, loss\) before optimizer\.step",
    ),
    # cures
    (
        lambda: Cure(setting="inputs", sentence="standardize the inputs").apply(linear(), None),  # type: ignore[arg-type]
        ValueError,
        "This cure is for your own code to apply: standardize the inputs",
    ),
]


@parameters(ROWS)
def test_calls_of_the_doctor(call: Callable[[], object], kind: type[Exception], sentence: str) -> None:
    refused(call, kind, sentence)


COMMANDS = [
    ("", "the following arguments are required: TARGET"),
    ("nonsense", r"network must be one of|no network 'nonsense'|'nonsense'"),
    ("nowhere.make", r"nowhere\.make is no network of the lab and no folder; a function .* package\.module:make_model"),
    ("nowhere:make", r"nowhere:make: nowhere cannot be imported \(ModuleNotFoundError: No module named 'nowhere'\)"),
    ("json:nothing", "json:nothing: json has no function nothing"),
    ("json:", "'json:' is no function; name one as in package.module:make_model"),
    ("builtins:dict", r"builtins:dict returned dict, not a torch\.nn\.Module"),
    ("json:loads", r"json:loads\(\) failed \(TypeError"),
    ("small-mlp --loader json:loads", "--loader and --loss-fn go with a model of yours"),
    ("small-mlp --steps 0", "argument --steps: must be a whole number, 1 or more"),
    ("small-mlp --level heavy", "argument --level: invalid choice: 'heavy'"),
    ("small-mlp --lr x", "lr"),
    ("small-mlp --data nonsense", "nonsense"),
    ("tests.bad_inputs.test_doctor:linear --loader builtins:int", "builtins:int returned int, not a loader of batches"),
    ("tests.bad_inputs.test_doctor:linear --loader builtins:list", "the loader has no batch"),
    ("tests.bad_inputs.test_doctor:linear --loss-fn json:loads", "--loss-fn goes with --loader"),
]


@pytest.mark.parametrize(("words", "sentence"), COMMANDS)
def test_commands(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *words.split()]) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said), said
    assert said.count("\n") == 1
