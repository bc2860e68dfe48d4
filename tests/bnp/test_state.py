"""Saving, loading and going on."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import trimtab
from tests.bnp.helpers import (
    assert_identical,
    assert_same,
    batch,
    gradients,
    loss_of,
    pending_rows,
    small_model,
    statistics,
    train,
    weights,
)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("spatial", ["channel", "site"])
def test_going_on_from_a_file_is_bit_identical(debias: bool, spatial: Any) -> None:
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    bnp = trimtab.BNP(model, debias=debias, spatial=spatial).attach(optimizer)
    train(model, optimizer, range(5))
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "bnp": bnp.state_dict()})
    train(model, optimizer, range(5, 10))

    resumed = small_model(seed=1)
    optimizer = torch.optim.Adam(resumed.parameters(), lr=0.01)
    bnp = trimtab.BNP(resumed, debias=debias, spatial=spatial).attach(optimizer)
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    bnp.load_state_dict(saved["bnp"])
    train(resumed, optimizer, range(5, 10))
    assert_identical(weights(resumed), weights(model))


@pytest.mark.parametrize("with_gradients", [True, False])
def test_pending_rows_are_saved_and_follow_their_gradient(with_gradients: bool) -> None:
    """Stopped between two micro-batches: with the gradients restored the step is the same to the bit."""
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(0)).backward()
    saved = through_a_file(bnp.state_dict())
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    loss_of(model, batch(1)).backward()

    resumed = small_model()
    other = trimtab.BNP(resumed)
    other.load_state_dict(saved)
    assert pending_rows(other) == {"0": 96, "2": 96, "5": 6, "7": 6}
    if with_gradients:
        for p, g in zip(resumed.parameters(), grads, strict=True):
            p.grad = g
    loss_of(resumed, batch(1)).backward()
    assert pending_rows(other)["7"] == (12 if with_gradients else 6)
    if with_gradients:
        bnp.step()
        other.step()
        assert_identical(
            [p.grad for p in model.parameters() if p.grad is not None],
            [p.grad for p in resumed.parameters() if p.grad is not None],
        )


def test_a_zero_gradient_is_not_a_dropped_one_after_loading() -> None:
    """The layer below a zero-initialized one has rows and a gradient of zeros."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    nn.init.zeros_(model[1].weight)
    bnp = trimtab.BNP(model)
    model(torch.randn(4, 3)).square().sum().backward()
    saved = through_a_file(bnp.state_dict())
    bnp.load_state_dict(saved)
    model(torch.randn(4, 3)).square().sum().backward()
    assert pending_rows(bnp) == {"0": 8, "1": 8}


@pytest.mark.parametrize("restored", [True, False], ids=["gradients put back", "sums kept outside"])
def test_gradients_taken_by_hand_can_be_stopped_between_micro_batches(restored: bool) -> None:
    def micro_batch(model: nn.Module, seed: int) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss_of(model, batch(seed)), list(model.parameters())))

    def finish(model: nn.Module, bnp: trimtab.BNP, first: list[torch.Tensor]) -> list[torch.Tensor]:
        for p, a, b in zip(model.parameters(), first, micro_batch(model, 1), strict=True):
            p.grad = a + b
        bnp.step()
        return [p.grad for p in model.parameters() if p.grad is not None]

    model, resumed = small_model(), small_model()
    bnp, other = trimtab.BNP(model), trimtab.BNP(resumed)
    first = micro_batch(model, 0)
    other.load_state_dict(through_a_file(bnp.state_dict()))
    if restored:
        for p, g in zip(resumed.parameters(), first, strict=True):
            p.grad = g.clone()
    assert_identical(finish(resumed, other, first), finish(model, bnp, first))


def test_layers_added_since_are_in_the_state() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    model.append(nn.Linear(3, 3).double())
    state = bnp.state_dict()
    assert "8" in state["layers"]
    trimtab.BNP(model).load_state_dict(state)


def test_the_state_is_a_copy() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(model).attach(optimizer)
    train(model, optimizer, range(1))
    state = bnp.state_dict()
    before = copy.deepcopy(state["layers"])
    train(model, optimizer, range(2))
    torch.testing.assert_close(state["layers"], before, rtol=0, atol=0)
    bnp.load_state_dict(state)
    train(model, optimizer, range(2))
    torch.testing.assert_close(state["layers"], before, rtol=0, atol=0)


class Wrapper(nn.Module):
    """As DistributedDataParallel names what it wraps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class HasOneCalledModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.other = nn.Linear(2, 2)


def test_wrappers_do_not_show_in_the_names() -> None:
    names = ["0", "2", "5", "7"]
    for wrap in (Wrapper, AveragedModel, torch.compile, lambda m: Wrapper(torch.compile(m))):
        wrapped: Any = wrap(small_model())
        assert list(trimtab.BNP(wrapped).state_dict()["layers"]) == names
    part = small_model()
    part[5] = torch.compile(part[5])
    assert list(trimtab.BNP(part).state_dict()["layers"]) == names
    assert list(trimtab.BNP(HasOneCalledModule()).state_dict()["layers"]) == ["module", "other"]
    assert list(trimtab.BNP(Wrapper(nn.Linear(2, 2))).state_dict()["layers"]) == [""]


def test_a_wrapped_models_state_loads_into_the_bare_one() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(Wrapper(model)).attach(optimizer)
    train(model, optimizer, range(2))
    bare = trimtab.BNP(small_model())
    bare.load_state_dict(bnp.state_dict())
    torch.testing.assert_close(statistics(bare), statistics(bnp), rtol=0, atol=0)


def other_width() -> nn.Module:
    model = small_model()
    model[5] = nn.Linear(17, 5).double()
    return model


def other_kernel() -> nn.Module:
    """A convolution whose columns are as many but not the same."""
    model = small_model()
    model[2] = nn.Conv2d(1, 4, 2, stride=2, bias=False).double()
    return model


def fewer_layers() -> nn.Module:
    return small_model()[:6]


def more_layers() -> nn.Module:
    return nn.Sequential(*small_model(), nn.Linear(3, 3).double())


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (other_width, {}, "layer '5' is for columns of shape .16,., but the layer has 17 inputs"),
        (other_kernel, {}, "layer '2' is for columns of shape .4,., but the layer has 1 inputs"),
        (fewer_layers, {}, "a layer '7' that this model does not have"),
        (more_layers, {}, "nothing for layer '8'"),
        (small_model, {"skip": "7"}, "a layer '7' that this model does not have or BNP skips"),
        (small_model, {"debias": True}, "debias=False, but this BNP has debias=True"),
        (small_model, {"spatial": "site"}, "spatial='channel', but this BNP has spatial='site'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed(model: Any, options: Any, message: str) -> None:
    source = small_model()
    optimizer = torch.optim.SGD(source.parameters(), lr=0.1)
    bnp = trimtab.BNP(source).attach(optimizer)
    train(source, optimizer, range(2))
    other = trimtab.BNP(model(), **options)
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(bnp.state_dict())
    assert statistics(other) == {}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "not a state of BNP"),
        (None, "not a state of BNP"),
        ({"version": 1, "options": None, "layers": {}}, "options and layers are not dictionaries"),
        (
            {
                "version": 1,
                "options": {"debias": False, "spatial": "channel"},
                "layers": {
                    "": {
                        "running": None,
                        "handed_out": False,
                        "pending": {
                            **{"count": 1, "samples": 0, "outputs": 1, "zeros": 0},
                            **{"mean": torch.zeros(2), "variance": torch.zeros(2)},
                        },
                    }
                },
            },
            "layer '' is damaged",
        ),
        ({"version": 99, "options": {}, "layers": {}}, "version 99"),
        (
            {"version": 1, "options": {"debias": False, "spatial": "channel"}, "layers": {"": {"running": {}}}},
            "layer '' is damaged",
        ),
    ],
)
def test_a_state_that_is_none(state: Any, message: str) -> None:
    bnp = trimtab.BNP(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=message):
        bnp.load_state_dict(state)


def test_averages_in_another_order_of_memory() -> None:
    """What kernels write to is dense, however the state was."""
    results = []
    for permuted in (False, True):
        model = small_model()
        bnp = trimtab.BNP(model, spatial="site")
        loss_of(model, batch(0)).backward()
        bnp.step()
        state = bnp.state_dict()
        if permuted:
            for entry in state["layers"].values():
                for name in ("mean", "variance"):
                    value = entry["running"][name]
                    order = list(reversed(range(value.ndim)))
                    entry["running"][name] = value.permute(order).contiguous().permute(order)
        bnp.load_state_dict(state)
        model.zero_grad()
        loss_of(model, batch(1)).backward()
        bnp.step()
        results.append(gradients(model))
        bnp.detach()
    assert_same(*results)


@pytest.mark.parametrize("name", ["variance", "steps", "weight"])
def test_averages_of_another_shape_are_refused(name: str) -> None:
    model = small_model()
    bnp = trimtab.BNP(model, spatial="site")
    loss_of(model, batch(0)).backward()
    bnp.step()
    state = bnp.state_dict()
    running = state["layers"]["0"]["running"]
    running[name] = running[name].flatten()[:2] if name == "variance" else running[name].expand(3)
    with pytest.raises(ValueError, match="state of layer '0' is"):
        bnp.load_state_dict(state)
