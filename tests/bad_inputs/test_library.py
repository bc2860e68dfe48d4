"""Calls of BNP and what belongs to it that cannot work: each is refused with one sentence that names what is wrong.

Spoiled states of BNP are in tests/bnp/test_state.py.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD

from tests.bad_inputs.calls import Row, each, parameters, refused
from trimtab import BNP, Moments, register_layer, without_batchnorm
from trimtab.bnp.layers import _TYPES

NAN, INF = math.nan, math.inf


def linear() -> nn.Linear:
    return nn.Linear(3, 2)


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.1)


def state(**changes: Any) -> dict[str, Any]:
    """That of a new BNP for a Linear layer, changed."""
    return {**BNP(linear()).state_dict(), **changes}


def load(**changes: Any) -> None:
    BNP(linear()).load_state_dict(state(**changes))


def stepped(do: Callable[[BNP, nn.Linear], object]) -> None:
    """Do something with a BNP whose layer has a gradient."""
    layer = linear()
    bnp = BNP(layer)
    layer(torch.ones(2, 3)).sum().backward()
    do(bnp, layer)


def attached_twice() -> None:
    layer = linear()
    optimizer = sgd(layer)
    first, second = BNP(layer).attach(optimizer), BNP(layer)
    assert first is not second.attach(optimizer)


def preconditioned_twice(bnp: BNP, layer: nn.Linear) -> None:
    other = BNP(layer)
    layer(torch.ones(2, 3)).sum().backward()
    bnp.step()
    other.step()


def changed_inputs(bnp: BNP, layer: nn.Linear) -> None:
    bnp.step()
    layer.weight = nn.Parameter(torch.ones(2, 4))
    layer(torch.ones(2, 4)).sum().backward()
    bnp.step()


class Several(nn.BatchNorm1d):
    """More than BatchNorm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


ROWS: list[Row] = [
    # BNP's arguments
    *each(
        (None, "vgg", linear, nn.Linear, [linear()]),
        lambda v: BNP(v),
        TypeError,
        r"BNP takes a torch\.nn\.Module, not ",
    ),
    (lambda: BNP(nn.Module()), ValueError, "no layer that BNP can precondition"),
    (lambda: BNP(nn.Embedding(3, 2)), ValueError, "no layer that BNP can precondition"),
    (lambda: BNP(linear(), momentum=0.9), TypeError, "unexpected keyword argument 'momentum'"),
    *each(
        (1, -0.1, NAN, "0.9", None, True, 1j, 10**400),
        lambda v: BNP(linear(), rho=v),
        ValueError,
        r"rho must be a number in \[0, 1\)",
    ),
    *each(
        (-1, NAN, INF, "a", None, [], 10**400),
        lambda v: BNP(linear(), eps1=v),
        ValueError,
        "eps1 must be a finite number, 0 or larger",
    ),
    *each(
        (-1, torch.tensor(1.0), np.ones(2)),
        lambda v: BNP(linear(), eps2=v),
        ValueError,
        "eps2 must be a finite number, 0 or larger",
    ),
    *each(
        ("mean", None, [], 3),
        lambda v: BNP(linear(), statistics=v),
        ValueError,
        "statistics must be one of 'running', 'batch', not",
    ),
    *each(
        ("pixel", {}, True),
        lambda v: BNP(linear(), spatial=v),
        ValueError,
        "spatial must be one of 'channel', 'site', not",
    ),
    (lambda: BNP(linear(), tokens="words"), ValueError, "tokens must be one of 'positions', 'samples', not 'words'"),
    (lambda: BNP(linear(), no_bias=torch.ones(2)), ValueError, "no_bias must be one of 'second_moment', 'variance'"),
    (lambda: BNP(linear(), debias=1), ValueError, "debias must be True or False, not 1"),
    (lambda: BNP(linear(), fast="yes"), ValueError, "fast must be True or False, not 'yes'"),
    *each(
        (None, 3, [3], b"0"),
        lambda v: BNP(linear(), skip=v),
        TypeError,
        "skip must be the name of a layer or a list of names",
    ),
    (lambda: BNP(nn.Sequential(linear()), skip="1"), ValueError, "no layer matches '1'; the layers are '0'"),
    (
        lambda: BNP(nn.Sequential(linear()), skip=["0"]),
        ValueError,
        "no layer that BNP can precondition .* outside those in skip",
    ),
    (
        lambda: BNP(nn.ConvTranspose1d(1, 1, 3), spatial="site"),
        ValueError,
        "spatial='site' is not defined for ConvTranspose1d",
    ),
    # attaching and stepping
    *each(
        (None, "sgd", SGD, linear(), [sgd(linear())]),
        lambda v: BNP(linear()).attach(v),
        TypeError,
        r"attach takes a torch\.optim\.Optimizer, not ",
    ),
    (lambda: BNP(linear()).attach(sgd(linear())), ValueError, "none of this model's layers; is it another model's"),
    (lambda: BNP(linear()).attach(LBFGS(linear().parameters())), ValueError, "LBFGS cannot be preconditioned"),
    (attached_twice, RuntimeError, "Another BNP is attached to this optimizer for the same layers"),
    (lambda: stepped(lambda bnp, layer: bnp.attach(sgd(layer)).attach(sgd(layer))), RuntimeError, "attached already"),
    (
        lambda: stepped(lambda bnp, layer: bnp.attach(sgd(layer)).step()),
        RuntimeError,
        "attached to an optimizer, whose step",
    ),
    (lambda: stepped(lambda bnp, _: (bnp.detach(), bnp.step())), RuntimeError, "This BNP is detached"),
    (
        lambda: stepped(lambda bnp, _: copy.deepcopy(bnp).step()),
        RuntimeError,
        "This BNP is detached, as copies of a BNP are",
    ),
    (lambda: stepped(preconditioned_twice), RuntimeError, "was preconditioned by another BNP since it arrived"),
    (lambda: stepped(changed_inputs), ValueError, "make a new BNP for the changed layer"),
    (
        lambda: stepped(lambda _, layer: torch.jit.script(layer)),
        RuntimeError,
        r"torch\.jit\.script cannot compile .* detach\(\) BNP",
    ),
    # states
    *each(
        (None, [], "state.pt", {}, linear().state_dict()),
        lambda v: BNP(linear()).load_state_dict(v),
        ValueError,
        "This is not a state of BNP",
    ),
    *each((0, 2, "1", None, 1.0, torch.ones(2)), lambda v: load(version=v), ValueError, "this trimtab reads version 1"),
    *each((None, [], 3), lambda v: load(options=v), ValueError, "options and layers are not dictionaries"),
    (lambda: load(layers=[]), ValueError, "options and layers are not dictionaries"),
    (lambda: load(options={}), ValueError, "saved with debias=None, but this BNP has debias=False"),
    (lambda: load(options={"debias": torch.ones(2), "spatial": "channel"}), ValueError, "saved with debias=a Tensor"),
    (lambda: load(layers={}), ValueError, "nothing for layer ''; is it from another model"),
    (lambda: load(layers={"": {}, "1": {}}), ValueError, "a layer '1' that this model does not have"),
    (lambda: load(layers={"": {}}), ValueError, "'running' of layer '' is missing"),
    # layers of one's own, moments, models without BatchNorm
    *each(
        (3, "Linear", linear(), torch.Tensor),
        lambda v: register_layer(v),
        TypeError,
        r"register_layer takes subclasses of torch\.nn\.Module, not ",
    ),
    (lambda: register_layer(), TypeError, "register_layer takes the classes of layers"),
    *each(
        (None, "rows", 3), lambda v: register_layer(nn.Embedding)(v), TypeError, "register_layer decorates a function"
    ),
    (lambda: register_layer(nn.Embedding, view=3), TypeError, "view must be a function"),
    *each(
        (None, "channel", ("pixel",), 3),
        lambda v: register_layer(nn.Embedding, spatial=v),
        ValueError,
        "spatial must be a list with 'channel', 'site' or both",
    ),
    (lambda: Moments.of([1.0, 2.0], columns=0), TypeError, r"Moments\.of takes a tensor, not list"),
    *each(
        (2, -3, "a", [0, 5]),
        lambda v: Moments.of(torch.ones(2, 3), columns=v),
        ValueError,
        "columns must be dimensions of a tensor that has 2",
    ),
    *each(
        (None, nn.Linear, "vgg"),
        lambda v: without_batchnorm(v),
        TypeError,
        r"without_batchnorm takes a torch\.nn\.Module",
    ),
    (lambda: without_batchnorm(nn.Sequential(nn.LazyLinear(3))), ValueError, "lazy layers without a shape yet"),
    (
        lambda: without_batchnorm(nn.Sequential(linear(), Several(2))),
        ValueError,
        "1 is a Several, which is more than BatchNorm",
    ),
]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@parameters(ROWS)
def test_a_call_that_cannot_work_gets_its_sentence(call: Any, kind: type[Exception], sentence: str) -> None:
    known = dict(_TYPES)
    refused(call, kind, sentence)
    assert known == _TYPES  # nothing was registered


def test_numbers_of_numpy_are_numbers_and_do_not_get_into_a_state() -> None:
    """torch.load(weights_only=True) would refuse them."""
    bnp = BNP(linear(), rho=np.float32(0.5), eps1=np.float64(0.1), eps2=np.int64(0))
    assert {type(value) for name, value in bnp.state_dict()["options"].items() if name in ("rho", "eps1", "eps2")} == {
        float
    }
