"""BNP while something is measured on its model; and what it lets others see of itself."""

import threading

import pytest
import torch
from torch import nn

import trimtab
from tests.bnp.helpers import assert_same, batch, gradients, loss_of, pending_rows, small_model, statistics
from trimtab.bnp import bnps_attached_to
from trimtab.bnp.rows.hooks import paused


def test_a_pause_is_for_the_bnps_of_one_model() -> None:
    first, second = small_model(), small_model(1)
    ours, another, theirs = trimtab.BNP(first), trimtab.BNP(first), trimtab.BNP(second)
    with paused(first):
        loss_of(first, batch(1)).backward()
        loss_of(second, batch(1)).backward()
        with paused(first):
            pass
        loss_of(first, batch(1)).backward()
    assert pending_rows(ours)["7"] == pending_rows(another)["7"] == 0
    assert pending_rows(theirs)["7"] == 6
    loss_of(first, batch(1)).backward()
    assert pending_rows(ours)["7"] == 6


def test_a_measurement_in_another_thread_blinds_nobody() -> None:
    measured, trained = small_model(), small_model(1)
    bnp = trimtab.BNP(trained)
    assert trimtab.BNP(measured) is not bnp
    begun, done = threading.Event(), threading.Event()

    def measure() -> None:
        with paused(measured):
            begun.set()
            done.wait(60)

    thread = threading.Thread(target=measure)
    thread.start()
    assert begun.wait(60)
    loss_of(trained, batch(1)).backward()
    done.set()
    thread.join()
    assert pending_rows(bnp) == {"0": 6 * 16, "2": 6 * 16, "5": 6, "7": 6}


def test_the_statistics_of_a_layer() -> None:
    model = small_model()
    bnp = trimtab.BNP(model, rho=0.0)
    assert bnp.statistics("5") is None
    loss_of(model, batch(1)).backward()
    bnp.step()
    found = bnp.statistics(model[5])
    assert found is not None
    assert torch.equal(found[0], statistics(bnp)["5.mean"])
    assert torch.equal(found[1], statistics(bnp)["5.variance"])
    found[0].zero_()
    assert statistics(bnp)["5.mean"].any()
    assert bnp.statistics("nobody") is None and bnp.statistics(nn.Linear(2, 2)) is None


def test_who_is_attached_to_an_optimizer() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert bnps_attached_to(optimizer) == []
    bnp = trimtab.BNP(model).attach(optimizer)
    assert bnps_attached_to(optimizer) == [bnp]
    bnp.detach()
    assert bnps_attached_to(optimizer) == []


@pytest.mark.parametrize("fast", [True, False])
def test_a_dry_run_does_what_the_next_step_does_and_leaves_no_trace(fast: bool) -> None:
    model = small_model()
    bnp = trimtab.BNP(model, fast=fast)
    for seed in range(2):
        model.zero_grad()
        loss_of(model, batch(seed)).backward()
        bnp.step()
    before = statistics(bnp)
    others = {name: nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    swapped = torch.nn.utils.stateless._reparametrize_module(model, others)
    with paused(model), swapped, bnp.dry_run(others.values()) as step:
        loss_of(model, batch(2)).backward()
        step()
    assert_same(statistics(bnp), before)
    assert pending_rows(bnp) == {"0": 0, "2": 0, "5": 0, "7": 0}
    model.zero_grad()
    loss_of(model, batch(2)).backward()
    bnp.step()
    assert_same([p.grad for p in others.values() if p.grad is not None], gradients(model))
