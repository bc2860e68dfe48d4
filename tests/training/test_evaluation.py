"""Evaluations: batches of any size give the loss and the accuracy of all samples at once."""

import pytest
import torch
from torch.nn import functional as F

from trimtab.data import load
from trimtab.training.evaluation import CPU_BATCH_SIZE, evaluation_batch_size
from trimtab.training.recipes import resolve
from trimtab.training.session import Session
from trimtab.training.settings import Settings


def test_an_evaluation_in_batches_is_one_of_all_samples() -> None:
    digits = load("digits")
    settings = resolve(Settings(data="digits", network="small-cnn", method="bn", steps=1, evaluate_on="test"))
    session = Session(settings, torch.device("cpu"), dataset=digits)
    assert session.evaluate is not None
    batches = [len(targets) for _, targets in session.evaluate.batches]
    assert len(batches) > 1 and max(batches) == CPU_BATCH_SIZE  # the last one is smaller
    assert sum(batches) == len(digits.test)
    loss, accuracy = session.evaluate()
    session.model.eval()
    every = list(session.evaluate.batches)
    inputs, targets = (torch.cat(parts) for parts in zip(*every, strict=True))
    with torch.no_grad():
        outputs = session.model(inputs)
    assert loss == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-5)
    assert accuracy == pytest.approx((outputs.argmax(1) == targets).float().mean().item())


def test_more_are_evaluated_at_once_on_a_gpu() -> None:
    digits = load("digits")
    assert evaluation_batch_size(digits, torch.device("cuda")) > evaluation_batch_size(digits, torch.device("cpu"))
