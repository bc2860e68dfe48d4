"""The doctor in Lightning and in the Trainer of transformers: it sees each step, and the training is the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.integrations import helpers
from tests.integrations.helpers import loss_of, network
from trimtab import Doctor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:'pin_memory' argument is set as true but no accelerator is found",
        "ignore:The '.*_dataloader' does not have many workers",
        "ignore:You defined a `validation_step` but have no `val_dataloader`",
        "ignore:.*`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    ),
]


def by_hand(data: Any) -> tuple[nn.Module, Doctor]:
    """The plain loop with a doctor, as its documentation says."""
    model = network()
    optimizer = helpers.sgd(model)
    doctor = Doctor(model, optimizer, loss_of, level="standard", every=4)
    for batch in data:
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        doctor.step(batch, loss)
        optimizer.step()
    return model, doctor


def assert_same(ours: nn.Module, doctor: Doctor | None, data: Any) -> None:
    theirs, expected = by_hand(data)
    assert doctor is not None
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert doctor.record.problems == []
    assert doctor.record.losses == expected.record.losses
    assert [trial.others for trial in doctor.record.trials] == [trial.others for trial in expected.record.trials]
    assert len(doctor.record.trials) == 2
    assert [layer.output_rms for layer in doctor.record.looks[0].layers] == [
        layer.output_rms for layer in expected.record.looks[0].layers
    ]


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed; it is in the dev extra")
    from tests.integrations.test_lightning import Classifier, data, trainer
    from trimtab.integrations.lightning import DoctorCallback

    ours = Classifier()
    callback = DoctorCallback("standard", every=4, report=tmp_path / "page.html")
    assert callback.diagnosis is None
    trainer(callback).fit(ours, data())
    assert_same(ours.net, callback.doctor, helpers.batches())
    assert callback.diagnosis is not None and callback.diagnosis.steps == helpers.STEPS
    assert "What was looked at" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not any(module._forward_hooks for module in ours.modules())
    assert "log" not in vars(ours)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_lightning_with_its_precision_and_a_batch_that_is_skipped() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed; it is in the dev extra")
    from tests.integrations.test_lightning import Classifier, data, trainer
    from trimtab.integrations.lightning import DoctorCallback

    class Skips(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    callback = DoctorCallback("standard", every=4, validation=helpers.batches()[:1])
    trainer(callback, precision="64-true").fit(Skips(), data())
    assert callback.doctor is not None
    assert callback.diagnosis is not None and callback.diagnosis.steps == helpers.STEPS - 1
    assert all(trial.validation > 0 for trial in callback.doctor.record.trials)
    assert not [each for each in callback.doctor.record.problems if "NoneType" not in each.sentence]


def test_lightning_by_hand_needs_a_loss() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed; it is in the dev extra")
    from tests.integrations.test_lightning import ByHand, data, trainer
    from trimtab.integrations.lightning import DoctorCallback

    with pytest.raises(ValueError, match="DoctorCallback needs a loss_fn in manual optimization"):
        trainer(DoctorCallback()).fit(ByHand(), data())


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed; it is in the dev extra")
    pytest.importorskip("accelerate", reason="accelerate is not installed; it is in the dev extra")
    from tests.integrations.test_transformers import Classifier, Collator, trainer
    from trimtab.integrations.transformers import DoctorCallback

    ours, collator = Classifier(), Collator()
    callback = DoctorCallback("standard", every=4, report=tmp_path / "page.html")
    trainer(ours, tmp_path, callback, collator=collator).train()
    assert_same(ours.net, callback.doctor, collator.batches)
    assert callback.diagnosis is not None and callback.diagnosis.steps == helpers.STEPS
    assert (tmp_path / "page.html").exists()
    assert not any(module._forward_hooks for module in ours.modules())


def test_options_are_checked_at_once() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed; it is in the dev extra")
    from trimtab.integrations.lightning import DoctorCallback

    with pytest.raises(ValueError, match="level must be one of 'light', 'standard', 'full', not 'heavy'"):
        DoctorCallback("heavy")  # type: ignore[arg-type]
