"""An optimizer that BNP is not attached to trains the model: that is noticed, and nothing else is taken for it."""

import contextlib
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import trimtab
from tests.bnp.helpers import batch, loss_of, small_model, train
from trimtab.bnp.rows.hooks import paused

SAID = r"trained without BNP: 3 gradients in a row.*no step of the SGD that BNP is attached to.*made a new optimizer"


def attached() -> tuple[nn.Sequential, SGD, trimtab.BNP]:
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.01)
    bnp = trimtab.BNP(model).attach(optimizer)
    train(model, optimizer, range(2))
    return model, optimizer, bnp


class Old(SGD):
    """An optimizer that writes past autograd, as old ones do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(parameter.grad, alpha=-0.01)


ANEW: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.01),
    "adam": lambda model: Adam(model.parameters(), lr=0.01),
    "fused": lambda model: Adam(model.parameters(), lr=0.01, fused=True),
    "writes to data": lambda model: Old(model.parameters(), lr=0.01),
}


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("anew", ANEW)
def test_an_optimizer_made_anew(anew: str, set_to_none: bool) -> None:
    model, optimizer, bnp = attached()
    other = ANEW[anew](model)

    def step(seed: int) -> None:
        other.zero_grad(set_to_none=set_to_none)
        loss_of(model, batch(seed)).backward()
        other.step()

    for seed in range(3):
        step(seed)
        assert "preconditioned" in str(bnp.report())
    with pytest.warns(trimtab.TrimtabWarning, match=SAID) as said:
        step(3)
    assert said[0].filename == __file__
    step(4)  # said once
    report = bnp.report()
    assert report.neglected
    assert "preconditioned" not in str(report)
    assert str(report).endswith("detach() BNP and attach() it to the optimizer that is in use.")
    assert {layer.left_alone for layer in report.layers} == {"the attached optimizer makes no steps"}

    train(model, optimizer, range(2))  # as before
    assert "preconditioned" in str(bnp.report())
    bnp.detach()
    bnp.attach(other)
    for seed in range(5):
        step(seed)
    assert not bnp.report().neglected


def test_a_compiled_model() -> None:
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.01)
    trimtab.BNP(model).attach(optimizer)
    run = torch.compile(model, backend="aot_eager")
    other = SGD(model.parameters(), lr=0.01)
    with pytest.warns(trimtab.TrimtabWarning, match=SAID):
        train(run, other, range(5))


def test_a_model_of_which_the_attached_optimizer_has_a_part() -> None:
    """The rest may be trained in any way."""
    model = small_model()
    front, back = SGD(model[:4].parameters(), lr=0.01), SGD(model[4:].parameters(), lr=0.01)
    bnp = trimtab.BNP(model).attach(front)
    for _ in range(6):
        for optimizer in (front, back):
            optimizer.zero_grad()
        loss_of(model, batch(0)).backward()
        back.step()
    assert not bnp.report().neglected
    with pytest.warns(trimtab.TrimtabWarning, match=SAID):
        train(model, SGD(model[:4].parameters(), lr=0.01), range(5))


# What is no training without BNP: gradients that are dropped while nobody trains, or while BNP steps.


def evaluation(model: nn.Module, optimizer: Optimizer) -> None:
    with torch.no_grad():
        model(batch(0))
    model(batch(0))


def input_gradients(model: nn.Module, optimizer: Optimizer) -> None:
    x = batch(0).requires_grad_()
    torch.autograd.grad(loss_of(model, x), x)


def saliency_by_backward(model: nn.Module, optimizer: Optimizer) -> None:
    model.zero_grad()
    loss_of(model, batch(0).requires_grad_()).backward()


def adversarial_training(model: nn.Module, optimizer: Optimizer) -> None:
    for _ in range(4):
        model.zero_grad()
        x = batch(0).requires_grad_()
        loss_of(model, x).backward()
    optimizer.zero_grad()
    loss_of(model, x.detach() + x.grad.sign()).backward()
    optimizer.step()


def micro_batches(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    for part in batch(0).split(1):
        loss_of(model, part).backward()
    optimizer.step()


def gradients_thrown_away_in_a_gan(model: nn.Module, optimizer: Optimizer) -> None:
    """The generator's losses leave gradients in the discriminator, several times for each of its steps."""
    for _ in range(5):
        model.zero_grad()
        loss_of(model, batch(0)).backward()
    optimizer.zero_grad()
    loss_of(model, batch(1)).backward()
    optimizer.step()


def sharpness_aware(model: nn.Module, optimizer: Optimizer) -> None:
    """The weights are moved and moved back, with a gradient each."""
    optimizer.zero_grad()
    loss_of(model, batch(0)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01
    optimizer.zero_grad()
    loss_of(model, batch(0)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01
    optimizer.step()


def measured(model: nn.Module, optimizer: Optimizer) -> None:
    with paused(model):
        model.zero_grad()
        loss_of(model, batch(0)).backward()


def discarded(model: nn.Module, optimizer: Optimizer) -> None:
    model.zero_grad()
    loss_of(model, batch(0)).backward()


def moved(model: nn.Module, optimizer: Optimizer) -> None:
    model.zero_grad()
    loss_of(model.float(), batch(0).float()).backward()
    model.zero_grad()
    loss_of(model.double(), batch(0)).backward()


@pytest.mark.parametrize(
    "loop",
    [
        evaluation,
        input_gradients,
        saliency_by_backward,
        adversarial_training,
        micro_batches,
        gradients_thrown_away_in_a_gan,
        sharpness_aware,
        measured,
        discarded,
        moved,
    ],
)
def test_no_false_alarm(loop: Callable[[nn.Module, Optimizer], None]) -> None:
    model, optimizer, bnp = attached()
    for _ in range(6):
        loop(model, optimizer)
    assert not bnp.report().neglected
    train(model, optimizer, range(2))


def test_a_gradient_scaler_that_skips() -> None:
    """Its scale is too large at first: several steps in a row are left out, and no weight changes."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(model).attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for number in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 3)).square().mean() * (float("inf") if number < 6 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert not bnp.report().neglected
    assert [layer.steps for layer in bnp.report().layers] == [4, 4]


def test_layers_of_one_shape_are_not_taken_for_one_that_changes() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(5)])
    optimizer = SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(model).attach(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).sum().backward()
    assert bnp._observed.unused_steps.count == 1 and not bnp.report().neglected
    optimizer.step()


def test_weights_that_are_nan_do_not_change() -> None:
    model, optimizer, bnp = attached()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    for _ in range(6):
        saliency_by_backward(model, optimizer)
    assert not bnp.report().neglected


@pytest.mark.parametrize("way", ["attached", "by hand"])
def test_another_bnp_that_preconditions_these_gradients(way: str) -> None:
    """As when a notebook's cell is run again and the first BNP is still there."""
    model, _, bnp = attached()
    other = SGD(model.parameters(), lr=0.01)
    second = trimtab.BNP(model)
    if way == "attached":
        second.attach(other)
    train(model, other, range(6), between=None if way == "attached" else second.step)
    assert not bnp.report().neglected


def test_by_hand_nothing_is_expected() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    train(model, SGD(model.parameters(), lr=0.01), range(6))
    assert not bnp.report().neglected


def test_the_first_time_only() -> None:
    model, optimizer, _ = attached()
    other = SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            train(model, other, range(5))
            train(model, optimizer, range(1))
    assert len(said) == 1


def test_a_warning_that_is_an_error_ends_the_backward_and_nothing_else() -> None:
    """With Python's -W error."""
    model, optimizer, bnp = attached()
    other = SGD(model.parameters(), lr=0.01)
    with contextlib.suppress(trimtab.TrimtabWarning):
        train(model, other, range(5))
    assert bnp.report().neglected
    train(model, optimizer, range(2))
    assert not bnp.report().neglected


def replaced_and_collected() -> nn.Sequential:
    """A model whose BNP and first optimizer were collected after two gradients without them."""
    model = small_model()
    optimizer: Optimizer = SGD(model.parameters(), lr=0.01)
    trimtab.BNP(model).attach(optimizer)
    train(model, optimizer, range(2))
    gc.disable()  # they may be collected before the third gradient
    try:
        optimizer = Adam(model.parameters(), lr=0.01)
        train(model, optimizer, range(3))
    finally:
        gc.enable()  # a collection may begin at once
    gc.collect()
    return model


def test_an_optimizer_made_anew_in_the_place_of_the_old_one() -> None:
    with pytest.warns(trimtab.TrimtabWarning, match="trained without BNP: 2 gradients in a row .* of the SGD"):
        model = replaced_and_collected()
    assert not model[0]._forward_hooks


def test_a_warning_that_is_an_error_leaves_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reports the exception of a finalizer and goes on."""
    reported: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)
    model = replaced_and_collected()  # warnings are errors in all tests
    assert [type(each.exc_value) for each in reported] == [trimtab.TrimtabWarning]
    reported.clear()
    assert not model[0]._forward_hooks
