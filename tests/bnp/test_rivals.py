"""Several BNPs on one model: no gradient is preconditioned twice."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import trimtab
from tests.bnp.helpers import (
    assert_identical,
    assert_same,
    batch,
    gradients,
    loss_of,
    plain_step,
    small_model,
    statistics,
    train,
)
from trimtab.bnp.rows import books

TWICE = r"The gradient of layer '0' was preconditioned by another BNP since it arrived.*detach\(\) one of the two"


def two(model: nn.Module) -> tuple[trimtab.BNP, trimtab.BNP]:
    return trimtab.BNP(model), trimtab.BNP(model)


@pytest.mark.parametrize("between", ["nothing", "clipping", "unscaling"])
def test_a_second_one_is_refused_at_its_step_and_nothing_is_changed(between: str) -> None:
    model = small_model()
    first, second = two(model)
    loss_of(model, batch(0)).backward()
    first.step()
    if between == "clipping":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    elif between == "unscaling":
        torch._foreach_mul_([p.grad for p in model.parameters()], 0.5)
    before = gradients(model)
    with pytest.raises(RuntimeError, match=TWICE):
        second.step()
    assert_identical(gradients(model), before)
    assert all(layer.steps == 0 for layer in second.report().layers)


def test_attached_and_by_hand() -> None:
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    trimtab.BNP(model).attach(optimizer)
    by_hand = trimtab.BNP(model)
    loss_of(model, batch(0)).backward()
    by_hand.step()
    with pytest.raises(RuntimeError, match=TWICE):
        optimizer.step()


def test_two_optimizers_of_the_same_layers_with_one_gradient() -> None:
    model = small_model()
    optimizers = [SGD(model.parameters(), lr=0.1) for _ in range(2)]
    bnps = [trimtab.BNP(model).attach(optimizer) for optimizer in optimizers]
    loss_of(model, batch(0)).backward()
    optimizers[0].step()
    with pytest.raises(RuntimeError, match=TWICE):
        optimizers[1].step()
    bnps[1].detach()
    optimizers[1].step()  # its own business


def zeroed(model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


def replaced(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def on_top(model: nn.Module) -> None:
    """The loop adds up what was preconditioned and what was not: its own business."""


@pytest.mark.parametrize("drop", [nn.Module.zero_grad, zeroed, replaced, on_top])
def test_a_new_gradient_is_anybodys(drop: Callable[[nn.Module], None]) -> None:
    """As two optimizers for two losses, that take turns."""
    model = small_model()
    first, second = two(model)
    for seed in range(6):
        drop(model)
        loss_of(model, batch(seed)).backward()
        (first, second)[seed % 2].step()
    for bnp in (first, second):
        assert [layer.steps for layer in bnp.report().layers] == [3] * 4


def test_a_gradient_that_was_dropped_and_not_renewed() -> None:
    model = small_model()
    for drop in (nn.Module.zero_grad, zeroed):
        first, second = two(model)
        loss_of(model, batch(0)).backward()
        first.step()
        drop(model)
        second.step()  # is not refused: there is nothing to precondition twice
        assert not any(gradient.any() for gradient in gradients(model))
        first.detach()
        second.detach()


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_taken_by_hand(in_place: bool) -> None:
    model = small_model()
    parameters = list(model.parameters())
    first, second = two(model)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for seed in range(4):
        grads = torch.autograd.grad(loss_of(model, batch(seed)), parameters)
        for parameter, grad in zip(parameters, grads, strict=True):
            if in_place:
                parameter.grad.copy_(grad)
            else:
                parameter.grad = grad
        (first, second)[seed % 2].step()
    with pytest.raises(RuntimeError, match=TWICE):
        first.step()


def test_micro_batches_and_closures() -> None:
    model = small_model()
    expected = plain_step(model, batch(1))
    first, second = two(model)
    first.step()
    for part in batch(1).split(2):
        loss_of(model, part).backward()
    second.step()
    assert_same(gradients(model), expected[0])

    optimizer = SGD(model.parameters(), lr=0.0)
    second.attach(optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch(1))
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert statistics(second)["7.steps"] == 4


def test_layers_apart() -> None:
    model = small_model()
    expected = plain_step(model, batch(1))[0]
    front, back = trimtab.BNP(model, skip=["5", "7"]), trimtab.BNP(model, skip=["0", "2"])
    for _ in range(3):
        model.zero_grad()
        loss_of(model, batch(1)).backward()
        front.step()
        back.step()
    assert len(gradients(model)) == len(expected)


def test_the_same_one_twice_leaves_the_gradient_and_says_so() -> None:
    """Its rows are gone with the first step: this is no other gradient, and no error where a layer rests."""
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(0)).backward()
    bnp.step()
    before, steps = gradients(model), statistics(bnp)
    with pytest.warns(trimtab.TrimtabWarning, match="No input was seen for '0', '2', '5', '7' since the last step"):
        bnp.step()
    assert_identical(gradients(model), before)
    torch.testing.assert_close(statistics(bnp), steps, rtol=0, atol=0)


def test_one_that_was_made_after_the_backward_leaves_the_gradient_alone() -> None:
    model = small_model()
    first = trimtab.BNP(model)
    loss_of(model, batch(0)).backward()
    second = trimtab.BNP(model)
    first.step()
    before = gradients(model)
    with pytest.warns(trimtab.TrimtabWarning, match="No input was seen"):
        second.step()
    assert_identical(gradients(model), before)


def test_a_state_that_is_loaded_brings_rows_of_another_gradient() -> None:
    model = small_model()
    first, second = two(model)
    loss_of(model, batch(0)).backward()
    state = second.state_dict()
    grads = gradients(model)
    first.step()
    second.load_state_dict(state)
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is not None
        parameter.grad.copy_(grad)
    second.step()


def test_nothing_is_left_of_bnps_that_are_gone() -> None:
    model = small_model()
    bnps = [trimtab.BNP(model) for _ in range(3)]
    optimizer = SGD(model.parameters(), lr=0.1)
    bnps[0].attach(optimizer)
    followers = bnps[0]._observed.layers["0"].books.followers
    assert len(followers) == 3
    bnps[1].detach()
    del bnps[2]
    gc.collect()
    assert len(followers) == 1
    train(model, optimizer, range(2))
    weights = {id(parameter) for parameter in model.parameters()}
    bnps[0].detach()
    assert not weights & books._FOLLOWERS.keys()
