"""Accelerate: prepared models and optimizers, accumulation, precision, checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trimtab
from tests.integrations import helpers
from tests.integrations.helpers import assert_same_state, assert_same_weights, batches, loss_of, network, plain_loop
from trimtab.bnp import bnps_attached_to
from trimtab.probes import CovariateShift

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed; it is in the dev extra")


def prepared(accelerator: Any, model: nn.Module) -> tuple[nn.Module, Any]:
    model, optimizer = accelerator.prepare(model, helpers.sgd(model))
    return model, optimizer


def train(accelerator: Any, model: nn.Module, optimizer: Any, data: Any, clip: bool = False) -> None:
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), helpers.CLIP)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, {}),
        ({"gradient_accumulation_steps": 2}, {"accumulate": 2}),
        ({"mixed_precision": "bf16"}, {"autocast": True}),
        ({}, {"clip": "before"}),
    ],
    ids=["plain", "accumulation", "bf16", "clipping"],
)
def test_the_same_as_the_plain_loop(made: str, settings: dict[str, Any], plain: dict[str, Any]) -> None:
    ours, theirs = network(), network()
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    bnp = trimtab.BNP(ours) if made == "before" else None
    model, optimizer = prepared(accelerator, ours)
    bnp = (bnp or trimtab.BNP(model)).attach(optimizer)
    train(accelerator, model, optimizer, batches(), "clip" in plain)
    assert_same_state(bnp, plain_loop(theirs, **plain))
    assert_same_weights(ours, theirs)


def test_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    straight = network()
    plain_loop(straight)

    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = prepared(accelerator, network())
    bnp = trimtab.BNP(model).attach(optimizer)
    accelerator.register_for_checkpointing(bnp)
    train(accelerator, model, optimizer, batches()[:5])
    accelerator.save_state(tmp_path)

    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = prepared(accelerator, network(seed=3))
    bnp = trimtab.BNP(model).attach(optimizer)
    accelerator.register_for_checkpointing(bnp)
    accelerator.load_state(tmp_path)
    train(accelerator, model, optimizer, batches()[5:])
    assert_same_weights(model, straight)


def test_the_optimizer_within_is_meant() -> None:
    model, optimizer = prepared(accelerate.Accelerator(cpu=True), network())
    bnp = trimtab.BNP(model).attach(optimizer)
    assert bnps_attached_to(optimizer) == [bnp] == bnps_attached_to(optimizer.optimizer)
    assert bnp.report().attached == "SGD"
    with pytest.raises(RuntimeError, match="Another BNP is attached"):
        trimtab.BNP(model).attach(optimizer.optimizer)


def test_probes_take_it() -> None:
    model, plain = network(), network()
    model, optimizer = prepared(accelerate.Accelerator(cpu=True), model)
    found = CovariateShift(optimizer=optimizer)(model, loss_of, batches()[0])
    expected = CovariateShift(optimizer=helpers.sgd(plain))(plain, loss_of, batches()[0])
    assert found.problem is None and found.to_dict() == expected.to_dict()


def test_a_scheduler_is_no_optimizer() -> None:
    model = network()
    scheduler: Any = torch.optim.lr_scheduler.StepLR(helpers.sgd(model), 1)
    with pytest.raises(TypeError, match=r"attach takes a torch\.optim\.Optimizer, not StepLR"):
        trimtab.BNP(model).attach(scheduler)
