"""Which rows count: those whose gradient the step will use, each once."""

import dataclasses
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import trimtab
from tests.bnp.helpers import (
    assert_same,
    batch,
    gradients,
    loss_of,
    pending_rows,
    plain_step,
    small_model,
    statistics,
)


@pytest.fixture(autouse=True, params=[True, False], ids=["fast", "reference"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rows count does not depend on who computes."""
    monkeypatch.setattr(trimtab, "BNP", partial(trimtab.BNP, fast=request.param))


NOTHING = {"0": 0, "2": 0, "5": 0, "7": 0}


def test_forward_alone_leaves_no_trace() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    with torch.no_grad():
        model(batch(1))
    with torch.inference_mode():
        model(batch(1))
    model.eval()
    model(batch(1))
    model.train()
    model(batch(2))
    assert pending_rows(bnp) == NOTHING
    expected = plain_step(model, batch(3))
    loss_of(model, batch(3)).backward()
    bnp.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])


def test_output_that_never_reaches_the_loss() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    unused = model(batch(1))
    loss_of(model, batch(2)).backward()
    assert pending_rows(bnp) == {"0": 6 * 16, "2": 6 * 16, "5": 6, "7": 6}
    del unused
    bnp.step()
    assert_same(gradients(model), plain_step(model, batch(2))[0])


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("style", ["whole", "sequential"])
def test_activation_checkpointing_equals_the_plain_run(reentrant: bool, style: str) -> None:
    model = small_model()
    expected = plain_step(model, batch(1))
    with trimtab.BNP(model) as bnp:
        x = batch(1).requires_grad_()
        if style == "whole":
            y: Tensor = checkpoint(model, x, use_reentrant=reentrant)
        else:
            y = checkpoint_sequential(model, 3, x, use_reentrant=reentrant)
        (y.square().sum() / 6).backward()
        bnp.step()
        assert_same(gradients(model), expected[0])
        assert_same(statistics(bnp), expected[1])


def test_micro_batches_equal_the_whole_batch() -> None:
    model = small_model()
    expected = plain_step(model, batch(1))
    bnp = trimtab.BNP(model)
    for part in batch(1).split([1, 3, 2]):
        loss_of(model, part).backward()
    bnp.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])


def test_a_module_used_twice_pools_its_rows() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).double()
    a, b = torch.randn(4, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    with trimtab.BNP(layer) as bnp:
        (layer(a).square().sum() + layer(b).square().sum()).backward()
        bnp.step()
        twice = gradients(layer), statistics(bnp)
    layer.zero_grad()
    with trimtab.BNP(layer) as bnp:
        layer(torch.cat([a, b])).square().sum().backward()
        bnp.step()
        assert_same(gradients(layer), twice[0])
        assert_same(statistics(bnp), twice[1])


def test_weight_sharing_through_time_pools_all_positions() -> None:
    """A cell unrolled in time: one layer, five calls in one graph."""
    torch.manual_seed(0)
    cell = nn.Linear(3, 3).double()
    bnp = trimtab.BNP(cell)
    h = torch.randn(2, 3, dtype=torch.float64)
    for _ in range(5):
        h = cell(h).tanh()
    h.sum().backward()
    assert pending_rows(bnp) == {"": 10}


def test_an_empty_batch_is_ignored() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(1)[:0]).backward()
    assert pending_rows(bnp) == NOTHING
    expected = plain_step(model, batch(1))
    loss_of(model, batch(1)).backward()
    bnp.step()
    assert_same(gradients(model), expected[0])


@pytest.mark.parametrize("drop", ["none", "zero", "optimizer", "optimizer zero", "discard"])
def test_rows_are_dropped_with_their_gradient(drop: str) -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(1)).backward()
    if drop == "discard":
        model.zero_grad()
        bnp.discard()
        assert pending_rows(bnp) == NOTHING
    elif drop.startswith("optimizer"):
        torch.optim.SGD(model.parameters(), lr=1.0, foreach=True).zero_grad(set_to_none="zero" not in drop)
    else:
        model.zero_grad(set_to_none=drop == "none")
    expected = plain_step(model, batch(2))
    loss_of(model, batch(2)).backward()
    bnp.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])


def test_a_gradient_that_is_clipped_between_micro_batches_is_not_dropped() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(1)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    loss_of(model, batch(2)).backward()
    assert pending_rows(bnp)["7"] == 12


def test_a_layer_whose_gradient_was_dropped_and_not_renewed_folds_nothing() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(1)).backward()
    model.zero_grad()
    bnp.step()
    assert pending_rows(bnp) == NOTHING
    assert statistics(bnp) == {}


def test_two_backwards_through_one_forward_count_its_rows_once() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss = loss_of(model, batch(1))
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    assert pending_rows(bnp)["7"] == 6
    bnp.step()
    model.zero_grad()
    loss.backward()  # the same forward again, for another step
    assert pending_rows(bnp)["7"] == 6


def test_a_gradient_of_the_input_alone_is_not_a_step() -> None:
    """Adversarial examples and saliency: autograd.grad to the input brings no gradient to the weights."""
    model = small_model()
    bnp = trimtab.BNP(model)
    x = batch(1).requires_grad_()
    for _ in range(3):
        torch.autograd.grad(loss_of(model, x), x)
    loss = loss_of(model, x)
    torch.autograd.grad(loss, x, retain_graph=True)
    assert pending_rows(bnp) == NOTHING
    loss.backward()
    assert pending_rows(bnp)["7"] == 6


def test_gradients_taken_by_hand() -> None:
    """torch.autograd.grad to the parameters, summed over micro-batches and assigned by the user."""
    model = small_model()
    expected = plain_step(model, batch(1))
    bnp = trimtab.BNP(model)
    parameters = list(model.parameters())
    parts = [torch.autograd.grad(loss_of(model, part), parameters) for part in batch(1).split(3)]
    for parameter, grads in zip(parameters, zip(*parts, strict=True), strict=True):
        parameter.grad = sum(grads, torch.zeros_like(parameter))
    bnp.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])


def test_gradients_taken_for_another_purpose_are_not_part_of_the_step() -> None:
    """A probe that asks for the parameters' gradients between two training steps, or within one."""
    model = small_model()
    expected = plain_step(model, batch(1))
    bnp = trimtab.BNP(model)
    parameters = list(model.parameters())
    torch.autograd.grad(loss_of(model, batch(7)), parameters)
    loss = loss_of(model, batch(1))
    torch.autograd.grad(loss, parameters, retain_graph=True)
    loss.backward()
    torch.autograd.grad(loss_of(model, batch(8)), parameters)
    assert pending_rows(bnp)["7"] == 6
    bnp.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])


def test_gradients_taken_for_another_purpose_before_a_gradient_that_is_dropped() -> None:
    """A backward in between says that the loop does not work by hand; after it, it does."""
    model = small_model()
    expected = plain_step(model, batch(1))
    bnp = trimtab.BNP(model)
    parameters = list(model.parameters())
    torch.autograd.grad(loss_of(model, batch(7)), parameters)
    loss_of(model, batch(8)).backward()
    model.zero_grad()
    for parameter, grad in zip(parameters, torch.autograd.grad(loss_of(model, batch(1)), parameters), strict=True):
        parameter.grad = grad
    assert pending_rows(bnp)["7"] == 6
    bnp.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])


def test_gradients_taken_by_hand_after_training_by_backward() -> None:
    """In most loops nobody asks what a backward is for: here the answer changes."""
    by_hand, plain = small_model(), small_model()
    parameters = list(by_hand.parameters())
    with trimtab.BNP(by_hand) as bnp, trimtab.BNP(plain) as theirs:
        for seed in range(8):
            for model in (by_hand, plain):
                model.zero_grad()
            if seed in (2, 3, 4, 6):
                parts = [torch.autograd.grad(loss_of(by_hand, part), parameters) for part in batch(seed).split(2)]
                for parameter, grads in zip(parameters, zip(*parts, strict=True), strict=True):
                    parameter.grad = sum(grads, torch.zeros_like(parameter))
            else:
                loss_of(by_hand, batch(seed)).backward()
            loss_of(plain, batch(seed)).backward()
            bnp.step()
            theirs.step()
            assert_same(gradients(by_hand), gradients(plain))
            assert_same(statistics(bnp), statistics(theirs))


def test_adversarial_examples_after_training_without() -> None:
    model, plain = small_model(), small_model()
    with trimtab.BNP(model) as bnp, trimtab.BNP(plain) as theirs:
        for seed in range(6):
            x = batch(seed)
            if seed > 2:
                x.requires_grad_()
                for _ in range(2):
                    torch.autograd.grad(loss_of(model, x), x)
            for net, its in ((model, bnp), (plain, theirs)):
                net.zero_grad()
                loss_of(net, x.detach()).backward()
                its.step()
            assert_same(gradients(model), gradients(plain))
            assert_same(statistics(bnp), statistics(theirs))


def trained() -> tuple[nn.Sequential, trimtab.BNP]:
    """A model after some ordinary steps."""
    model = small_model()
    bnp = trimtab.BNP(model)
    for seed in range(3):
        model.zero_grad()
        loss_of(model, batch(seed)).backward()
        bnp.step()
    model.zero_grad()
    return model, bnp


def by_hand(model: nn.Module, x: Tensor) -> None:
    parameters = list(model.parameters())
    for parameter, grad in zip(parameters, torch.autograd.grad(loss_of(model, x), parameters), strict=True):
        parameter.grad = grad


ONE_BATCH = {"0": 6 * 16, "2": 6 * 16, "5": 6, "7": 6}


def test_other_gradients_after_training() -> None:
    """What a backward that adds to no gradient was for is known, and not guessed from those before it."""
    model, bnp = trained()
    x = batch(1).requires_grad_()
    torch.autograd.grad(loss_of(model, x), x)
    assert pending_rows(bnp) == NOTHING
    by_hand(model, batch(2))
    assert pending_rows(bnp) == ONE_BATCH

    model, bnp = trained()
    loss_of(model, batch(1)).backward()
    torch.autograd.grad(loss_of(model, x), x)
    assert pending_rows(bnp) == ONE_BATCH
    model.zero_grad()
    bnp.discard()
    by_hand(model, batch(2))
    assert pending_rows(bnp) == ONE_BATCH

    model, bnp = trained()
    before = statistics(bnp)
    loss_of(model, batch(1)).backward(inputs=list(model[0].parameters()))
    assert pending_rows(bnp) == {**NOTHING, "0": 6 * 16}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    with pytest.warns(trimtab.TrimtabWarning, match="No input was seen"):
        bnp.step()
    after = statistics(bnp)
    assert [name for name in after if not torch.equal(after[name], before[name])] == ["0.mean", "0.variance", "0.steps"]


def test_a_backward_that_fails_after_training() -> None:
    model, bnp = trained()
    failing = model[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(model, batch(1)).backward()
    failing.remove()
    by_hand(model, batch(2))
    assert pending_rows(bnp)["0"] == 6 * 16


@pytest.mark.parametrize("how", ["detach", "drop", "leave"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_backward_after_bnp_is_gone(how: str, before: int) -> None:
    model = small_model()
    bnp: trimtab.BNP | None = trimtab.BNP(model)
    assert bnp is not None
    for seed in range(before):
        loss_of(model, batch(seed)).backward()
        bnp.step()
    loss = loss_of(model, batch(7))
    if how == "leave":
        with bnp:
            pass
    elif how == "detach":
        bnp.detach()
    bnp = None
    gc.collect()
    loss.backward()


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_a_penalty_with_a_backward_of_its_own(create_graph: bool) -> None:
    """The gradient is replaced in between, as by clipping out of place: it has not been dropped."""
    layer = nn.Linear(3, 2)
    bnp = trimtab.BNP(layer)
    for _ in range(4):
        layer.zero_grad()
        layer(torch.randn(4, 3)).square().sum().backward(create_graph=create_graph)
        assert layer.weight.grad is not None
        if not create_graph:
            layer.weight.grad = layer.weight.grad * 0.5
        layer.weight.square().sum().backward(create_graph=create_graph)
        assert pending_rows(bnp) == {"": 4}
        layer.zero_grad()
        bnp.discard()


def test_a_penalty_comes_first_and_a_step_is_left_out() -> None:
    layer = nn.Linear(3, 2)
    bnp = trimtab.BNP(layer)
    for number in range(6):
        layer.zero_grad(set_to_none=False)
        layer.weight.square().sum().backward()
        layer(torch.randn(4, 3)).sum().backward()
        assert pending_rows(bnp) == {"": 4}
        if number % 2 == 0:
            bnp.step()


@pytest.mark.parametrize("first", ["the hook", "BNP"])
def test_a_step_within_the_backward(first: str) -> None:
    """In a hook of the user, which comes before BNP's own if it was registered before."""
    layer = nn.Linear(3, 4, bias=False)
    made: list[trimtab.BNP] = []
    if first == "BNP":
        made.append(trimtab.BNP(layer))
    layer.weight.register_post_accumulate_grad_hook(lambda _: made[0].step())
    if first == "the hook":
        made.append(trimtab.BNP(layer))
    for number in range(4):
        layer.zero_grad()
        layer(torch.randn(5, 3)).square().sum().backward()
        assert statistics(made[0])[".steps"] == number + 1


def test_a_gradient_dropped_before_the_weight_is_used_without_its_layer() -> None:
    layer = nn.Linear(3, 2)
    bnp = trimtab.BNP(layer)
    x = torch.randn(4, 3)
    for drop in (True, False):
        layer(x).sum().backward()
        if drop:
            layer.zero_grad()
        nn.functional.linear(x, layer.weight).sum().backward()
        assert pending_rows(bnp) == {"": 0 if drop else 4}
        layer.zero_grad()
        bnp.discard()


def test_a_gradient_replaced_by_zeros_is_dropped() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(1)).backward()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    loss_of(model, batch(2)).backward()
    assert pending_rows(bnp)["7"] == 6


def test_a_backward_that_fails_leaves_nothing_behind() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    failing = model[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(model, batch(1)).backward()
    failing.remove()
    model.zero_grad()
    expected = plain_step(model, batch(2))
    loss_of(model, batch(2)).backward()
    bnp.step()
    assert_same(gradients(model), expected[0])
    assert_same(statistics(bnp), expected[1])


def test_sparse_and_nested_inputs_are_not_observed_and_do_not_fail() -> None:
    layer = nn.Linear(3, 2)
    bnp = trimtab.BNP(layer)
    layer(torch.eye(3).to_sparse()).sum().backward()
    assert pending_rows(bnp) == {"": 0}


def test_gradient_penalty() -> None:
    """A double backward counts the rows once."""
    model = small_model()
    bnp = trimtab.BNP(model)
    x = batch(1).requires_grad_()
    (slope,) = torch.autograd.grad(loss_of(model, x), x, create_graph=True)
    (slope.square().sum() + loss_of(model, x)).backward()
    assert pending_rows(bnp)["7"] == 12


def test_torch_func_leaves_no_trace() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    torch.func.grad(loss)(parameters, batch(1))
    torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, batch(1)[:, None])
    assert pending_rows(bnp) == NOTHING


@pytest.mark.parametrize(
    "after", [nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True), nn.Identity()], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3)])
def test_the_output_may_be_changed_in_place(after: nn.Module, shape: tuple[int, ...]) -> None:
    layer = nn.Linear(3, 5)
    bnp = trimtab.BNP(layer)
    after(layer(torch.randn(shape))).sum().backward()
    assert pending_rows(bnp) == {"": torch.Size(shape[:-1]).numel()}


def test_nothing_of_the_forward_is_kept_alive() -> None:
    layer = nn.Linear(4, 4)
    bnp = trimtab.BNP(layer)
    x = torch.randn(8, 4)
    y = layer(x)
    references = weakref.ref(x), weakref.ref(y)
    y.sum().backward()
    del x, y
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert pending_rows(bnp) == {"": 8}


@pytest.mark.parametrize("way", ["by hand", "backward"])
def test_many_micro_batches_are_pooled_and_not_kept(way: str) -> None:
    layer = nn.Linear(4, 4)
    bnp = trimtab.BNP(layer)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(o), Tensor) for o in gc.get_objects())

    counts = []
    for _ in range(3):
        for _ in range(20):
            loss = layer(torch.randn(2, 4)).sum()
            if way == "by hand":
                torch.autograd.grad(loss, list(layer.parameters()))
            else:
                loss.backward()
        counts.append(tensors())
    assert counts[0] >= counts[1] >= counts[2]  # what other tests have left may go meanwhile
    assert pending_rows(bnp) == {"": 120}


@pytest.mark.parametrize("calls", [1, 2])
def test_forwards_without_backward_do_not_pile_up(calls: int) -> None:
    """Of two calls, the first waits for a backward, which comes by without the weight's gradient."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    bnp = trimtab.BNP(layer)
    x = torch.randn(8, 4, requires_grad=True)
    for _ in range(50):
        torch.autograd.grad([layer(x).sum() for _ in range(calls)], x)
    (observed,) = bnp._observed.layers.values()
    assert len(observed.books._reached) <= 1 and len(observed.books._seen) <= 1


@pytest.mark.parametrize("statistic", [lambda x: x, lambda x: x.bfloat16()], ids=["float32 input", "bfloat16 input"])
def test_statistics_are_float32_under_autocast(statistic: Callable[[Tensor], Tensor]) -> None:
    layer = nn.Linear(3, 2)
    bnp = trimtab.BNP(layer, rho=0.0)
    x = statistic(1000 + torch.randn(64, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert y.dtype == torch.bfloat16
        y.float().mean().backward()
    bnp.step()
    stats = statistics(bnp)
    assert stats[".mean"].dtype == torch.float32
    torch.testing.assert_close(stats[".mean"], x.double().mean(0).float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(stats[".variance"], x.double().var(0, correction=0).float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_parameters(dtype: torch.dtype) -> None:
    """The transform runs in float32; only its result is rounded."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).to(dtype)
    twin = nn.Linear(6, 4)
    x = (torch.randn(16, 6) * 3 + 1).to(dtype)
    layer(x).float().square().mean().backward()
    with trimtab.BNP(layer) as bnp:
        layer.zero_grad()
        layer(x).float().square().mean().backward()
        for ours, theirs in zip(twin.parameters(), layer.parameters(), strict=True):
            assert theirs.grad is not None
            ours.grad = theirs.grad.float()
        bnp.step()
    with trimtab.BNP(twin) as bnp:
        grads = [p.grad for p in twin.parameters()]
        twin.zero_grad()
        twin(x.float()).sum().backward()
        for p, g in zip(twin.parameters(), grads, strict=True):
            p.grad = g
        bnp.step()
    for ours, theirs in zip(twin.parameters(), layer.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert theirs.grad.dtype == dtype
        torch.testing.assert_close(ours.grad.to(dtype), theirs.grad, rtol=0, atol=0)


def test_a_weight_that_is_frozen_between_forward_and_backward() -> None:
    layer = nn.Linear(3, 2)
    with trimtab.BNP(layer) as bnp:
        y = layer(torch.randn(4, 3))
        layer.weight.requires_grad_(False)
        y.sum().backward()
        layer.weight.requires_grad_(True)
        layer.zero_grad()
        layer(torch.randn(4, 3)).square().sum().backward()
        before = layer.weight.grad.clone()
        bnp.step()
        assert not torch.equal(layer.weight.grad, before)


@dataclasses.dataclass
class Output:
    y: Tensor
    nothing: None = None


class Opaque:
    def __init__(self, y: Tensor) -> None:
        self.y = y


class Returns(nn.Module):
    """A model whose output is that of its last layer, in some packing."""

    def __init__(self, last: nn.Module, pack: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.pack = nn.Linear(3, 3), last, pack

    def forward(self, x: Tensor) -> Any:
        return self.pack(self.last(self.first(x)))


PACKINGS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "itself": (lambda y: y, lambda out: out),
    "tuple": (lambda y: (None, [y, 3]), lambda out: out[1][0]),
    "dictionary": (lambda y: {"y": y, "n": 1.0}, lambda out: out["y"]),
    "dataclass": (Output, lambda out: out.y),
    "something else": (Opaque, lambda out: out.y),
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("last", [nn.Linear(3, 2), nn.Linear(3, 2, bias=False), nn.Conv1d(3, 2, 1)], ids=str)
def test_a_backward_that_begins_at_the_output_of_a_layer(last: nn.Module, packing: str) -> None:
    pack, unpack = PACKINGS[packing]
    model = Returns(last, pack)
    bnp = trimtab.BNP(model)
    for _ in range(2):
        x = torch.randn(3, 3)
        unused = model(x)
        y = unpack(model(x))
        y.backward(torch.ones_like(y), retain_graph=True)
        rows = 3 if isinstance(last, nn.Conv1d) else len(x)
        assert pending_rows(bnp) == {"first": 3, "last": rows}
        y.backward(torch.ones_like(y))
        assert pending_rows(bnp) == {"first": 3, "last": rows}
        del unused
        bnp.step()
        model.zero_grad()


@pytest.mark.parametrize("layer", [nn.Conv1d(3, 2, 1), nn.Conv1d(3, 2, 1, bias=False)], ids=str)
def test_a_backward_that_begins_at_a_convolution(layer: nn.Module) -> None:
    """Of a batch, whose output is no view, so that the backward begins at the node of the call."""
    model = nn.Sequential(nn.Tanh(), layer)
    bnp = trimtab.BNP(model)
    for _ in range(2):
        y = model(torch.randn(2, 3, 5))
        y.backward(torch.ones_like(y))
        assert pending_rows(bnp) == {"1": 10}
        bnp.step()
        model.zero_grad()


class TwoHeads(nn.Module):
    """Two layers that share an input, which is itself the result of a transposition."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.t()
        return self.a(h), self.b(h)


def test_one_of_two_outputs() -> None:
    model = TwoHeads()
    bnp = trimtab.BNP(model)
    y, _unused = model(torch.randn(3, 4, requires_grad=True))
    y.sum().backward()
    assert pending_rows(bnp) == {"a": 4, "b": 0}
    y, unused = model(torch.randn(3, 4, requires_grad=True))
    (y.sum() + 0 * model.b.weight.sum()).backward()
    assert pending_rows(bnp) == {"a": 8, "b": 0}
    del unused


class Hidden(nn.Module):
    """Keeps what is between its two layers; its output needs no saved tensor to go back to the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 2)
        self.between = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self.between = self.a(x)
        y: Tensor = self.b(self.between.tanh())
        return y.mean(1)


@pytest.mark.parametrize("keep", [True, False])
def test_a_backward_that_begins_within_the_model(keep: bool) -> None:
    model = Hidden()
    bnp = trimtab.BNP(model)
    y = model(torch.randn(6, 4))
    (model.between.sum() + model.b.weight.sum()).backward(retain_graph=True)
    assert pending_rows(bnp) == {"a": 6, "b": 0}
    model.zero_grad()
    y = model(torch.randn(6, 4))
    model.between.backward(torch.ones(6, 4), retain_graph=keep)
    assert pending_rows(bnp) == {"a": 6, "b": 0}
    if keep:
        y.sum().backward()
        assert pending_rows(bnp) == {"a": 6, "b": 6}


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_that_is_called_again_within_its_backward(reentrant: bool) -> None:
    model = Hidden()
    bnp = trimtab.BNP(model)

    def again(rows: int) -> Tensor:
        y: Tensor = checkpoint(model, torch.randn(rows, 4, requires_grad=True), use_reentrant=reentrant)
        return y.sum()

    again(3).backward()
    assert pending_rows(bnp) == {"a": 3, "b": 3}
    bnp.discard()
    (again(3) + again(4)).backward()
    assert pending_rows(bnp) == {"a": 7, "b": 7}
    bnp.discard()
    (again(3) + model(torch.randn(4, 4)).sum()).backward()
    assert pending_rows(bnp) == {"a": 7, "b": 7}
    bnp.discard()
    (model(torch.randn(4, 4)).sum() + again(3)).backward()
    assert pending_rows(bnp) == {"a": 7, "b": 7}


def test_a_replica_of_a_layer_is_not_the_layer() -> None:
    layer = nn.Linear(4, 3)
    bnp = trimtab.BNP(nn.Sequential(layer))
    layer(torch.randn(6, 4)).sum().backward()
    bnp.discard()
    replica: Any = layer._replicate_for_data_parallel()  # as DataParallel makes them, with copies of the parameters
    replica.weight, replica.bias = layer.weight.clone(), layer.bias.clone()
    replica(torch.randn(6, 4)).sum().backward()
    assert pending_rows(bnp) == {"0": 0}


def test_a_call_that_is_interrupted_is_over_at_the_next_step() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = model[7].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(batch(1))
    handle.remove()
    bnp.step()
    y = model[0](batch(1))
    y.backward(torch.ones_like(y))
    assert pending_rows(bnp) == {**NOTHING, "0": 6 * 16}


def test_a_layer_that_is_called_without_its_model() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    y = model[7](torch.randn(4, 5, dtype=torch.float64))
    y.backward(torch.ones_like(y))
    assert pending_rows(bnp) == {**NOTHING, "7": 4}


def test_a_layer_that_uses_itself_and_ends_the_model() -> None:
    layer = nn.Linear(3, 3)
    bnp = trimtab.BNP(layer)
    h = layer(torch.randn(4, 3))
    unused = layer(h)
    y = layer(h)
    y.backward(torch.ones_like(y))
    assert pending_rows(bnp) == {"": 8}
    del unused


@pytest.mark.parametrize("frozen", ["all in eval mode", "BatchNorm in eval mode"])
def test_a_network_that_is_trained_in_eval_mode_is_preconditioned_like_any_other(frozen: str) -> None:
    """As in fine-tuning with BatchNorm's statistics as they are: what counts is that a gradient arrives."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    bnp = trimtab.BNP(model)
    (model if frozen.startswith("all") else model[1]).eval()
    model(torch.randn(6, 3)).sum().backward()
    assert pending_rows(bnp) == {"0": 6, "3": 6}
    plain = gradients(model)
    bnp.step()
    assert not any(torch.equal(a, b) for a, b in zip(plain[:2], gradients(model)[:2], strict=True))


def test_a_penalty_on_the_slope_alone() -> None:
    """Its gradient comes through the derivative of the layers, which the graph of their calls is part of."""
    model = small_model()
    bnp = trimtab.BNP(model)
    x = batch(1).requires_grad_()
    (slope,) = torch.autograd.grad(loss_of(model, x), x, create_graph=True)
    slope.square().sum().backward()
    assert pending_rows(bnp) == ONE_BATCH


class Two(nn.Linear):
    """A layer with two outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        y = nn.functional.linear(x, self.weight, self.bias)
        return y, y.exp()


def test_a_call_with_two_outputs_counts_once() -> None:
    class Registered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x @ self.weight.t(), (x @ self.weight.t()).exp()

    @trimtab.register_layer(Registered)
    def rows(layer: Registered, x: Tensor, y: Tensor, options: trimtab.bnp.Options) -> trimtab.Rows:
        return trimtab.Rows(trimtab.Moments.of(x, columns=-1), samples=len(x), positions=len(x))

    for layer in (Registered(), Two(3, 2)):
        bnp = trimtab.BNP(nn.Sequential(layer))
        first, second = layer(torch.randn(4, 3))
        (first.sum() + second.sum()).backward()
        assert pending_rows(bnp) == {"0": 4}
        bnp.detach()
