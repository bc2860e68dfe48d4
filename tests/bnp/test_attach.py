"""The bond to the optimizer."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trimtab
from tests.bnp.helpers import (
    assert_identical,
    assert_same,
    batch,
    gradients,
    loss_of,
    pending_rows,
    plain_step,
    small_model,
    statistics,
    train,
    weights,
)

OPTIMIZERS = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
)


def make(name: str, model: nn.Module) -> torch.optim.Optimizer:
    cls: Any = getattr(torch.optim, name)
    parameters = [p for p in model.parameters() if name != "Muon" or p.ndim == 2]  # Muon takes matrices only
    return cls(parameters, lr=0.01)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in ("LBFGS", "SparseAdam")])
@pytest.mark.parametrize("closure", [None, "position", "keyword"])
def test_every_optimizer_takes_the_steps_of_the_explicit_form(name: str, closure: str | None) -> None:
    explicit, attached = small_model(), small_model()
    optimizer = make(name, explicit)
    bnp = trimtab.BNP(explicit, no_bias="variance", skip=["0", "2"])
    if name == "Muon":
        # Muon's optimizer holds no bias, so an attached BNP leaves biases alone; do that here by freezing them.
        for layer in explicit[5], explicit[7]:
            layer.bias.requires_grad_(False)
    train(explicit, optimizer, range(5), between=bnp.step)

    optimizer = make(name, attached)
    trimtab.BNP(attached, no_bias="variance", skip=["0", "2"]).attach(optimizer)
    if closure is None:
        train(attached, optimizer, range(5))
    for step in range(5) if closure else ():

        def run(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(attached, batch(step))
            loss.backward()
            return loss

        result: Any = optimizer.step(run) if closure == "position" else optimizer.step(closure=run)
        assert isinstance(result, Tensor)
    assert_same(weights(attached), weights(explicit))


def test_sparse_adam_itself_refuses_dense_gradients() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SparseAdam(model.parameters())
    trimtab.BNP(model).attach(optimizer)
    model(torch.randn(4, 3)).sum().backward()
    with pytest.raises(RuntimeError, match="dense"):
        optimizer.step()


def test_lbfgs_is_refused() -> None:
    model = small_model()
    with pytest.raises(ValueError, match="curvature pairs"):
        trimtab.BNP(model).attach(torch.optim.LBFGS(model.parameters()))


class TwoCalls(torch.optim.SGD):
    """Runs its closure twice, as optimizers with an inner search do."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is not None
        with torch.enable_grad():
            closure()
        self.first = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        with torch.enable_grad():
            return closure()


def test_a_closure_that_runs_twice_folds_once() -> None:
    model = small_model()
    expected = plain_step(model, batch(1))
    optimizer = TwoCalls(model.parameters(), lr=0.0)
    bnp = trimtab.BNP(model)
    bnp.attach(optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch(1))
        loss.backward()
        return loss

    optimizer.step(closure)
    assert_same(optimizer.first, expected[0])
    assert_same(gradients(model), expected[0])  # the same gradient again, the same statistics
    assert_same(statistics(bnp), expected[1])
    assert set(pending_rows(bnp).values()) == {0}


def test_a_closure_that_raises_leaves_the_statistics() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(model).attach(optimizer)

    def closure() -> Tensor:
        loss_of(model, batch(1)).backward()
        raise KeyError("user's own")

    with pytest.raises(KeyError):
        optimizer.step(closure)
    assert statistics(bnp) == {}


def test_several_optimizers_each_with_a_bnp_of_its_own() -> None:
    model = small_model()
    expected = plain_step(model, batch(1))[0]
    front, back = torch.optim.SGD(model[:4].parameters(), lr=0.0), torch.optim.SGD(model[4:].parameters(), lr=0.0)
    first, second = trimtab.BNP(model).attach(front), trimtab.BNP(model).attach(back)
    loss_of(model, batch(1)).backward()
    plain = gradients(model)
    front.step()
    assert_same(gradients(model)[:3], expected[:3])
    assert_identical(gradients(model)[3:], plain[3:])
    back.step()
    assert_same(gradients(model), expected)
    assert {layer.name for layer in first.report().layers if layer.left_alone is None} == {"0", "2"}
    assert {layer.name for layer in second.report().layers if layer.left_alone is None} == {"5", "7"}


def test_a_bias_in_another_optimizer_is_not_touched() -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD([layer.weight], lr=0.0)
    trimtab.BNP(layer).attach(optimizer)
    layer(torch.randn(4, 3)).sum().backward()
    assert layer.bias is not None
    assert layer.bias.grad is not None
    before = layer.bias.grad.clone()
    optimizer.step()
    assert torch.equal(layer.bias.grad, before)


def test_attaching_twice_is_refused() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(model).attach(optimizer)
    with pytest.raises(RuntimeError, match="attached already"):
        bnp.attach(optimizer)
    with pytest.raises(RuntimeError, match="Another BNP is attached to this optimizer"):
        trimtab.BNP(model).attach(optimizer)
    bnp.detach()
    bnp.attach(optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_step_by_hand_while_attached_or_detached_is_an_error() -> None:
    model = small_model()
    bnp = trimtab.BNP(model).attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="attached to an optimizer"):
        bnp.step()
    bnp.detach()
    with pytest.raises(RuntimeError, match="detached"):
        bnp.step()


def test_what_cannot_be_attached_to() -> None:
    model = small_model()
    bnp = trimtab.BNP(model)
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer, not str"):
        bnp.attach("sgd")
    with pytest.raises(ValueError, match="none of this model's layers"):
        bnp.attach(torch.optim.SGD(small_model().parameters(), lr=0.1))
    bnp.step()  # still unattached and whole


def test_detach_and_attach_again_goes_on_with_the_statistics() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(model).attach(optimizer)
    train(model, optimizer, range(2))
    bnp.detach()
    bnp.attach(optimizer)
    train(model, optimizer, range(2))
    assert statistics(bnp)["7.steps"] == 4


def test_context_manager_detaches() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(KeyError), trimtab.BNP(model).attach(optimizer):
        raise KeyError
    assert not optimizer._optimizer_step_pre_hooks
    assert not model[0]._forward_hooks


def test_parameter_groups_added_later() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model[:6].parameters(), lr=0.0)
    trimtab.BNP(model).attach(optimizer)
    optimizer.add_param_group({"params": list(model[7].parameters())})
    expected = plain_step(model, batch(1))[0]
    loss_of(model, batch(1)).backward()
    optimizer.step()
    assert_same(gradients(model), expected)


def test_weight_decay_is_not_preconditioned() -> None:
    model = small_model()
    before, expected = weights(model), plain_step(model, batch(1))[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    trimtab.BNP(model).attach(optimizer)
    loss_of(model, batch(1)).backward()
    optimizer.step()
    assert_same(weights(model), [w - 0.1 * (g + 0.5 * w) for w, g in zip(before, expected, strict=True)])


def test_adam_undoes_a_constant_scaling() -> None:
    """Without bias BNP only scales; with the same batch in every step Adam's own scaling takes that out again."""
    torch.manual_seed(0)
    plain = nn.Linear(4, 3, bias=False).double()
    scaled = copy.deepcopy(plain)
    x = torch.randn(8, 4, dtype=torch.float64) * torch.tensor([0.1, 1.0, 10.0, 3.0])
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.01, eps=1e-30) for layer in (plain, scaled)]
    trimtab.BNP(scaled, rho=0.0).attach(optimizers[1])
    for _ in range(5):
        for layer, optimizer in zip((plain, scaled), optimizers, strict=True):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
    assert_same(weights(scaled), weights(plain))


def test_gradient_scaler() -> None:
    """A loss scale passes through; a step that the scaler skips leaves no trace."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    xs = [torch.randn(5, 3) for _ in range(4)]

    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    reference = trimtab.BNP(twin).attach(optimizer)
    for step in (0, 2, 3):
        optimizer.zero_grad()
        twin(xs[step]).square().mean().backward()
        optimizer.step()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(model).attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(xs[step]).square().mean() * (float("inf") if step == 1 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(weights(model), weights(twin))
    torch.testing.assert_close(statistics(bnp), statistics(reference))
    assert statistics(bnp)["0.skipped"] == 0


def test_nothing_is_kept_alive_by_the_bond() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trimtab.BNP(model).attach(optimizer)
    reference = weakref.ref(optimizer)
    del optimizer, model
    gc.collect()
    assert reference() is None


class Shell(torch.optim.Optimizer):
    """An optimizer that hands everything on to another, as Accelerate's does."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None: ...

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def test_an_optimizer_within_others() -> None:
    plain, wrapped = small_model(), small_model()
    optimizer = make("SGD", plain)
    trimtab.BNP(plain).attach(optimizer)
    train(plain, optimizer, range(3))
    outer = Shell(Shell(make("SGD", wrapped)))
    bnp = trimtab.BNP(wrapped).attach(outer)
    train(wrapped, outer, range(3))
    assert_identical(weights(wrapped), weights(plain))
    bnp.detach()
    assert not outer.optimizer.optimizer._optimizer_step_pre_hooks


def test_a_shell_around_something_else_is_refused() -> None:
    model = small_model()

    class Engine:
        param_groups = make("SGD", model).param_groups

    with pytest.raises(TypeError, match="cannot hook into the steps of Shell, which is an Optimizer"):
        trimtab.BNP(model).attach(Shell(Engine()))
