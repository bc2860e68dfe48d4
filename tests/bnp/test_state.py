"""Saving, loading and going on."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
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
        (other_width, {}, "layer '5' is for columns of shape .16,., but the layer's weight has shape .5, 17."),
        (other_kernel, {}, "layer '2' is for columns of shape .4,., but the layer's weight has shape .4, 1, 2, 2."),
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
            "'pending.samples' of layer '' is 0, but rows that wait have at least 1",
        ),
        ({"version": 99, "options": {}, "layers": {}}, "version 99"),
        (
            {"version": 1, "options": {"debias": False, "spatial": "channel"}, "layers": {"": {"running": {}}}},
            "'pending' of layer '' is missing",
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
    with pytest.raises(
        ValueError, match=rf"'running\.{name}' of layer '0' has shape|state of layer '0' is for columns"
    ):
        bnp.load_state_dict(state)


def two_layers() -> tuple[trimtab.BNP, dict[str, Any]]:
    """A BNP with averages and rows that wait, and its state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    bnp = trimtab.BNP(model)
    for _ in range(2):
        model(torch.randn(5, 3)).square().sum().backward()
        bnp.step()
    model(torch.randn(5, 3)).square().sum().backward()
    return bnp, bnp.state_dict()


NAN, INF = float("nan"), float("inf")
TENSOR = [  # (what to put in the place of a tensor, what is said)
    (lambda t: torch.full_like(t, NAN), "infinite or NaN"),
    (lambda t: torch.where(torch.arange(len(t)) == 1, INF, t), "infinite or NaN"),
    (lambda t: torch.full_like(t, -INF), "infinite or NaN"),
    (lambda t: torch.full_like(t, 1e300, dtype=torch.float64), "too large for the layer's float32"),
    (lambda t: t.to(torch.int8), "is of type int8 and not a floating-point type"),
    (lambda t: t.to(torch.bool), "is of type bool and"),
    (lambda t: t.to(torch.complex64), "is of type complex64 and"),
    (lambda t: t.to(torch.int64), "is of type int64 and"),
    (lambda t: t.to("meta"), "is on the meta device"),
    (lambda t: t.to_sparse(), "is a sparse_coo tensor and not a dense one"),
    (lambda t: torch.nested.as_nested_tensor([t, t], layout=torch.jagged), "is a nested tensor"),
    (lambda t: t[:2], "shape .2,."),
    (lambda t: t[None], "shape .1, 4."),
    (lambda t: t.tolist(), "is a list and not a tensor"),
    (lambda t: t.numpy(), "and not a tensor"),
    (lambda t: None, "is None and not a tensor"),
    (lambda t: 0.5, "is 0.5 and not a tensor"),
]
NUMBER = [
    (lambda n: 0, "at least 1"),
    (lambda n: -3, "is -3"),
    (lambda n: float(n), "is 5.0 and not a whole number"),
    (lambda n: NAN, "not a whole number"),
    (lambda n: True, "is True and not a whole number"),
    (lambda n: "5", "is '5' and not a whole number"),
    (lambda n: torch.tensor(5), "is a Tensor and not a whole number"),
    (lambda n: 10**40, "not a whole number"),
    (lambda n: None, "is None and not a whole number"),
]
SPOILED = [
    *(
        (f"{part}.{name}", spoil, words)
        for part in ("running", "pending")
        for name in ("mean", "variance")
        for spoil, words in TENSOR
    ),
    *((f"{part}.variance", lambda t: -t, "has negative entries") for part in ("running", "pending")),
    *((f"pending.{name}", *spoiled) for name in ("count", "samples", "outputs") for spoiled in NUMBER),
    ("pending.zeros", lambda n: 0.0, "is 0.0 and not a whole number"),
    *((f"running.{name}", lambda t: t - 9, "is -7, but|is -9, but") for name in ("steps", "skipped")),
    *((f"running.{name}", lambda t: t.float(), "is of type float32 and not int64") for name in ("steps", "skipped")),
    *((f"running.{name}", lambda t: t.to(torch.int8), "is of type int8") for name in ("steps", "skipped")),
    ("running.steps", lambda t: int(t), "is 2 and not a tensor"),
    ("running.steps", lambda t: t.expand(3), r"has shape \(3,\) and not \(\)"),
    ("running.weight", lambda t: t + 2, "is 2.0 and not between 0 and 1"),
    ("running.weight", lambda t: t - 1, "is -1.0 and not"),
    ("running.weight", lambda t: t * NAN, "infinite or NaN"),
    ("handed_out", lambda _: "no", "is 'no' and not True or False"),
    ("handed_out", lambda _: torch.tensor(True), "is a Tensor and not True or False"),
    ("running", lambda _: [1, 2], "is a list and not a dictionary"),
    ("pending", lambda _: torch.zeros(3), "is a Tensor and not a dictionary"),
    ("running", lambda part: {**part, "median": part["mean"]}, "'running.median' of layer '2' is not a field"),
    ("running", lambda part: {"mean": part["mean"]}, "'running.variance' of layer '2' is missing"),
    ("pending", lambda part: {}, "'pending.count' of layer '2' is missing"),
]


@pytest.mark.parametrize(("field", "spoil", "words"), SPOILED)
def test_a_spoiled_state_is_refused_whole(field: str, spoil: Any, words: str) -> None:
    """One field of the last layer: neither this layer nor those before it change."""
    bnp, state = two_layers()
    before = copy.deepcopy(state)
    entry = state["layers"]["2"]
    *parts, name = field.split(".")
    for part in parts:
        entry = entry[part]
    entry[name] = spoil(entry[name])
    with pytest.raises(ValueError, match=words) as raised:
        bnp.load_state_dict(state)
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert "layer '2'" in sentence
    assert field in sentence or "is it from another model?" in sentence
    torch.testing.assert_close(bnp.state_dict()["layers"], before["layers"], rtol=0, atol=0)


def test_halves_and_gradients_in_a_state_are_no_damage() -> None:
    """What a user may have done to save space, or by copying parameters."""
    bnp, state = two_layers()
    for name, value in state["layers"]["2"]["running"].items():
        if value.is_floating_point():
            state["layers"]["2"]["running"][name] = value.half().requires_grad_()
    bnp.load_state_dict(state)
    assert not statistics(bnp)["2.mean"].requires_grad
    bnp.step()


@pytest.mark.parametrize("entry", [None, [], 3, torch.zeros(2)], ids=lambda e: type(e).__name__)
def test_an_entry_that_is_no_dictionary(entry: Any) -> None:
    bnp, state = two_layers()
    state["layers"]["2"] = entry
    with pytest.raises(ValueError, match=r"the entry of layer '2' is a .* and not a dictionary"):
        bnp.load_state_dict(state)


def test_a_mean_whose_square_is_infinite_is_refused() -> None:
    """It would make the next step infinite, and the warning would blame the inputs."""
    model = small_model().float()
    with trimtab.BNP(model) as bnp:
        model(batch(0).float()).sum().backward()
        bnp.step()
        saved = bnp.state_dict()
        saved["layers"]["0"]["running"]["mean"].fill_(1e30)
        with pytest.raises(ValueError, match=r"'running\.mean' of layer '0' has entries whose squares are too large"):
            bnp.load_state_dict(saved)


def test_pending_rows_in_half_precision_are_computed_with_in_single() -> None:
    model = small_model().float()
    with trimtab.BNP(model) as bnp:
        model(batch(0).float()).sum().backward()
        saved = bnp.state_dict()
        for name in ("mean", "variance"):
            saved["layers"]["0"]["pending"][name] = saved["layers"]["0"]["pending"][name].half()
        bnp.load_state_dict(saved)
        bnp.step()
        assert bnp.state_dict()["layers"]["0"]["running"]["steps"] == 1


def test_a_tensor_that_has_no_numbers_is_refused() -> None:
    model = small_model()
    with trimtab.BNP(model) as bnp:
        model(batch(0)).sum().backward()
        bnp.step()
        saved = bnp.state_dict()
        with FakeTensorMode():
            saved["layers"]["0"]["running"]["mean"] = torch.zeros(2, dtype=torch.float64)
        with pytest.raises(ValueError, match=r"'running\.mean' of layer '0' is a FakeTensor, which has no numbers"):
            bnp.load_state_dict(saved)


def test_rows_of_a_subclass_of_tensor_can_be_taken_up() -> None:
    class Named(torch.Tensor):
        pass

    model = small_model()
    with trimtab.BNP(model) as bnp:
        model(batch(0).as_subclass(Named)).sum().backward()
        bnp.load_state_dict(bnp.state_dict())
        bnp.step()
        assert statistics(bnp)["0.steps"] == 1


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("part", ["running", "pending"])
@pytest.mark.parametrize("name", ["mean", "variance"])
def test_a_mean_and_a_variance_of_different_types(name: str, part: str, fast: bool) -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        bnp = trimtab.BNP(layer, fast=fast)
        layer(torch.randn(4, 3)).sum().backward()
        bnp.step()
        layer.zero_grad()
        layer(torch.randn(4, 3)).sum().backward()
        state = bnp.state_dict()
        state["layers"][""][part][name] = state["layers"][""][part][name].to(dtype)
        bnp.load_state_dict(state)
        bnp.step()
        results.append(gradients(layer))
        bnp.detach()
    torch.testing.assert_close(results[0], results[1])
