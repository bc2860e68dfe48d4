"""What is remembered from step to step is not used once a tensor that it is about is another one.

Layers and backends remember what fits together and where tensors are, and know it by the identity of those tensors.
Here each of them is replaced in the middle of training, and the plain way, which remembers nothing, is the judge.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import trimtab
from tests.bnp.helpers import gradients, statistics
from tests.bnp.test_record import kernel_moments, layer_step
from trimtab.bnp.algorithm.averages import RunningAverage
from trimtab.bnp.algorithm.moments import Rows
from trimtab.bnp.backends.record import record

Change = Callable[[nn.Sequential, trimtab.BNP], Any]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 3)
    )


def parameter(index: int, name: str, new: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """A parameter of a layer is replaced by one that is made of it."""
    return lambda model, _: setattr(model[index], name, nn.Parameter(new(getattr(model[index], name).detach())))


def data(index: int, name: str, new: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """A parameter of a layer stays, with other data."""
    return lambda model, _: setattr(getattr(model[index], name), "data", new(getattr(model[index], name).detach()))


def average(name: str) -> Change:
    """One tensor of the averages of a layer is replaced by another one, of other values."""

    def change(_: nn.Sequential, bnp: trimtab.BNP) -> None:
        running = bnp._observed.layers["3"].running
        assert running is not None
        setattr(running, name, getattr(running, name) + 1)

    return change


def gradient(index: int, name: str, new: Callable[[torch.Tensor], torch.Tensor | None]) -> Change:
    """From now on, what is in the place of a gradient is made of it."""

    def hook(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = new(parameter.grad)

    return lambda model, _: getattr(model[index], name).register_post_accumulate_grad_hook(hook)


def other_groups(model: nn.Sequential, _: trimtab.BNP) -> None:
    """The weight keeps its shape: so does what is to be had of it, but not its layout."""
    model[0].groups = 1
    model[0].register_forward_pre_hook(lambda layer, args: (args[0][:, :2],))


def other_kernel(model: nn.Sequential, _: trimtab.BNP) -> None:
    model[0].weight.data = torch.full((4, 2, 5, 5), 0.01)
    model[0].padding, model[0].kernel_size = (2, 2), (5, 5)


def as_many_numbers(model: nn.Sequential, _: trimtab.BNP) -> None:
    """One group of four inputs and two outputs in the place of two groups of two and two."""
    model[0].weight.data = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    model[0].bias, model[0].groups = None, 1
    model[0].register_forward_hook(lambda layer, args, y: torch.cat([y, y], 1))


def averages_of_another_type(_: nn.Sequential, bnp: trimtab.BNP) -> None:
    running = bnp._observed.layers["3"].running
    assert running is not None
    running.to(torch.device("cpu"), torch.float64)


def frozen(index: int, name: str) -> Change:
    return lambda model, _: getattr(model[index], name).requires_grad_(False)


def without_bias(model: nn.Sequential, _: trimtab.BNP) -> None:
    model[3].bias = None


def loaded(_: nn.Sequential, bnp: trimtab.BNP) -> None:
    state = bnp.state_dict()
    for layer in state["layers"].values():
        layer["running"]["mean"] = layer["running"]["mean"] + 1
    bnp.load_state_dict(state)


CHANGES: dict[str, Change] = {
    "nothing": lambda model, bnp: None,
    "another weight": parameter(3, "weight", lambda x: 2 * x),
    "another bias": parameter(3, "bias", lambda x: x + 1),
    "a weight with gaps": parameter(3, "weight", lambda x: x.t().contiguous().t()),
    "a weight in channels_last": parameter(0, "weight", lambda x: x.to(memory_format=torch.channels_last)),
    "other data of a weight": data(3, "weight", lambda x: 2 * x),
    "other data of a bias": data(3, "bias", lambda x: x + 1),
    "another kernel": other_kernel,
    "other groups": other_groups,
    "as many numbers in another shape": as_many_numbers,
    "a frozen weight": frozen(3, "weight"),
    "a frozen bias": frozen(3, "bias"),
    "no bias": without_bias,
    "a gradient with gaps": gradient(3, "weight", lambda x: x.t().contiguous().t()),
    "a gradient in channels_last": gradient(0, "weight", lambda x: x.contiguous(memory_format=torch.channels_last)),
    "no gradient of the weight": gradient(3, "weight", lambda x: None),
    "no gradient of the bias": gradient(3, "bias", lambda x: None),
    "a gradient to be negated": gradient(3, "weight", torch._neg_view),
    "a bias's gradient with gaps": gradient(3, "bias", lambda x: x.repeat_interleave(2)[::2]),
    "averages that were loaded": loaded,
    "averages of another type": averages_of_another_type,
    "another type": lambda model, bnp: model.double(),
    **{f"another {name} of the averages": average(name) for name in RunningAverage.NAMES},
}


@pytest.mark.filterwarnings("ignore::trimtab.TrimtabWarning")
@pytest.mark.parametrize("options", [{}, {"debias": True}, {"statistics": "batch"}], ids=str)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_the_middle_of_training(name: str, options: dict[str, Any]) -> None:
    found = {}
    for fast in (True, False):
        model = network()
        with trimtab.BNP(model, fast=fast, **options) as bnp:
            results: list[Any] = []
            for step in range(7):
                if step == 4:
                    CHANGES[name](model, bnp)
                size = 5 if step == 6 else 8
                x = torch.randn(size, 4, 4, 4, generator=torch.Generator().manual_seed(step))
                if step == 5:
                    x[0] = torch.inf  # which is counted, too
                model.zero_grad()
                model(x.to(model[5].weight.dtype)).square().mean().backward()
                try:
                    bnp.step()
                except ValueError as error:
                    results.append(str(error))
                    bnp.discard()
                results.append((gradients(model), statistics(bnp)))
        found[fast] = results
    assert len(found[True]) == len(found[False])
    for fast, plain in zip(found[True], found[False], strict=True):
        if isinstance(fast, str):
            assert fast == plain
        else:
            torch.testing.assert_close(fast, plain, equal_nan=True)


def test_a_weight_that_gets_another_shape_after_the_backward() -> None:
    layer = nn.Linear(6, 4)
    with trimtab.BNP(layer) as bnp:
        for _ in range(3):
            layer(torch.randn(8, 6)).sum().backward()
            bnp.step()
        layer(torch.randn(8, 6)).sum().backward()
        layer.weight.data = torch.ones(4, 3)
        layer.weight.grad = torch.ones(4, 3)
        with pytest.warns(trimtab.TrimtabWarning, match="its rows have columns of shape"):
            bnp.step()
        assert (layer.weight.grad == 1).all()


def test_a_step_that_fails_keeps_no_gradient_and_knows_the_new_name_of_a_layer() -> None:
    model = nn.Sequential(nn.Linear(6, 4))
    with trimtab.BNP(model) as bnp:
        for _ in range(3):
            model(torch.randn(8, 6)).sum().backward()
            bnp.step()
        model.insert(0, nn.Identity())
        model(torch.randn(8, 6)).sum().backward()
        model[1].weight.grad = torch.ones(1, 1).expand(4, 6)
        with pytest.raises(ValueError, match="layer '1' is expanded"):
            bnp.step()
        held = weakref.ref(model[1].bias.grad)
        model.zero_grad()
        gc.collect()  # the exception's frames
        assert held() is None


def test_moments_of_other_columns_for_the_same_averages() -> None:
    """The kernels read as many numbers as there are averages."""
    step = layer_step()
    assert record(replace(step, rows=Rows(kernel_moments(6), 5, 5)))
    assert record(replace(step, rows=Rows(kernel_moments(5), 5, 5))) == b""
    assert record(replace(step, rows=Rows(kernel_moments(6, torch.float64), 5, 5))) == b""
    assert record(replace(step, rows=Rows(kernel_moments(6), 5, 5)))
