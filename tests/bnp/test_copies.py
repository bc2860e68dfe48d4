"""A BNP that was copied, or came out of a file, is detached: it says so, and can be attached."""

import copy
import gc
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.multiprocessing  # teaches ForkingPickler tensors
from torch import nn
from torch.optim import SGD

import trimtab
from tests.bnp.helpers import assert_identical, batch, loss_of, pending_rows, small_model, statistics, train, weights

Things = tuple[nn.Module, trimtab.BNP, torch.optim.Optimizer]


def saved(things: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(things, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda things: pickle.loads(pickle.dumps(things)),
    "save": saved,
}


def trained(**options: Any) -> Things:
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    bnp = trimtab.BNP(model, **options).attach(optimizer)
    train(model, optimizer, range(3))
    return model, bnp, optimizer


def says_detached(bnp: trimtab.BNP) -> bool:
    report = bnp.report()
    with pytest.raises(RuntimeError, match="This BNP is detached, as copies of a BNP are"):
        bnp.step()
    text = str(report)
    assert "preconditioned" not in text
    assert text.endswith(
        "BNP is detached, as copies of a BNP are, and preconditions nothing: attach() it or make a new one."
    )
    assert {layer.left_alone for layer in report.layers} == {"BNP is detached"}
    return report.detached


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"debias": True, "spatial": "site"}], ids=["plain", "options"])
def test_all_three_together_go_on_as_the_originals(way: str, options: dict[str, Any]) -> None:
    model, bnp, optimizer = trained(**options)
    twin, its_bnp, its_optimizer = WAYS[way]((model, bnp, optimizer))
    assert says_detached(its_bnp)
    assert its_bnp.model is twin
    torch.testing.assert_close(statistics(its_bnp), statistics(bnp), rtol=0, atol=0)

    its_bnp.attach(its_optimizer)
    train(model, optimizer, range(3, 6))
    train(twin, its_optimizer, range(3, 6))
    assert_identical(weights(twin), weights(model))
    assert statistics(its_bnp)["7.steps"] == 6
    assert "preconditioned" in str(its_bnp.report())
    its_bnp.detach()
    assert bnp.report().attached == "SGD"
    train(model, optimizer, range(1))
    assert statistics(bnp)["7.steps"] == 7


@pytest.mark.parametrize("way", WAYS)
def test_by_hand(way: str) -> None:
    """One that is not attached: its copy is not at work either."""
    model = small_model()
    bnp = trimtab.BNP(model)
    loss_of(model, batch(0)).backward()
    twin = WAYS[way](bnp)
    assert says_detached(twin)
    assert set(pending_rows(twin).values()) == {0}
    assert pending_rows(bnp)["7"] == 6
    bnp.step()
    assert not bnp.report().detached


def test_a_shallow_copy_is_for_the_same_model_and_has_its_own_statistics() -> None:
    model, bnp, optimizer = trained()
    twin = copy.copy(bnp)
    assert says_detached(twin)
    assert twin.model is model
    before = statistics(twin)
    train(model, optimizer, range(3, 5))
    torch.testing.assert_close(statistics(twin), before, rtol=0, atol=0)
    assert statistics(bnp)["7.steps"] == 5
    del twin
    gc.collect()
    train(model, optimizer, range(5, 6))
    assert statistics(bnp)["7.steps"] == 6

    bnp.detach()
    twin = copy.copy(bnp).attach(optimizer)
    train(model, optimizer, range(6, 7))
    assert statistics(twin)["7.steps"] == 7


def test_a_copy_that_is_dropped_takes_its_hooks_with_it() -> None:
    model, bnp, optimizer = trained()
    bnp.detach()
    twin = copy.copy(bnp).attach(optimizer)
    assert model[0]._forward_hooks
    twin._attachment.detach()
    del twin
    gc.collect()
    assert not model[0]._forward_hooks


def test_what_is_sent_to_another_process_is_a_copy() -> None:
    model, bnp, optimizer = trained()
    other_model, other_bnp, other_optimizer = trained()
    averages = [layer.running.mean for layer in bnp._observed.layers.values() if layer.running is not None]
    addresses = [mean.data_ptr() for mean in averages]
    ForkingPickler.dumps(bnp)  # moves the tensors that it is given into shared memory
    assert addresses == [mean.data_ptr() for mean in averages]
    train(model, optimizer, range(3, 6))
    train(other_model, other_optimizer, range(3, 6))
    assert_identical(weights(model), weights(other_model))
    assert_identical(list(statistics(bnp).values()), list(statistics(other_bnp).values()))


def test_a_single_layer() -> None:
    """A model that consists of no modules but itself."""
    model = nn.Linear(3, 2)
    bnp = trimtab.BNP(model)
    model(torch.randn(4, 3)).sum().backward()
    bnp.step()
    twin = copy.deepcopy(bnp)
    assert says_detached(twin)
    optimizer = SGD(twin.model.parameters(), lr=0.1)
    twin.attach(optimizer)
    twin.model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    assert [layer.steps for layer in twin.report().layers] == [2]
    assert [layer.steps for layer in bnp.report().layers] == [1]


class Shifted(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x + 1, self.weight, self.bias)


@pytest.mark.parametrize("way", WAYS)
def test_layers_with_a_forward_of_their_own(way: str) -> None:
    model = nn.Sequential(Shifted(3, 4), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    bnp = trimtab.BNP(model).attach(optimizer)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    twin, its_bnp, its_optimizer = WAYS[way]((model, bnp, optimizer))
    assert says_detached(its_bnp)
    its_bnp.attach(its_optimizer)
    for each, its in ((model, optimizer), (twin, its_optimizer)):
        its.zero_grad()
        each(torch.ones(4, 3)).sum().backward()
        its.step()
    assert_identical(weights(twin), weights(model))
    assert [layer.steps for layer in its_bnp.report().layers] == [2, 2]


def test_kept_in_the_model() -> None:
    model, bnp, _ = trained()
    model.bnp = bnp
    twin = copy.deepcopy(model)
    assert says_detached(twin.bnp)
    assert twin.bnp.model is twin
    assert says_detached(saved(model).bnp)


def test_detached() -> None:
    _, bnp, _ = trained()
    assert "in each step of the SGD it is attached to." in str(bnp.report())
    bnp.detach()
    assert says_detached(bnp)
    assert [layer.steps for layer in bnp.report().layers] == [3, 3, 3, 3]
