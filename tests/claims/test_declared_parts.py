"""Every part of the declarations is decided by what its experiment enters, whatever the runs give."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.claims import invented_runs
from trimtab.claims.claim import Claim
from trimtab.claims.declarations import blocks
from trimtab.claims.experiments import (
    cited_bnp,
    cited_measured,
    cited_regularization,
    mean_field_sweeps,
    mean_field_training,
    regcnn,
    regularization_dropout,
    regularization_fine_tuning,
)
from trimtab.claims.experiments.mean_field_slices import Slice
from trimtab.claims.experiments.registry import experiment_named
from trimtab.claims.functions import FUNCTIONS
from trimtab.claims.judging import judge_part
from trimtab.records import Restart

MINE = ("3.2", "3.3", "4.4", "4.5", "4.6", "5")
TRAINED_HERE = ("regcnn-fine-tuning",)
"""Its network is folded, so that it is trained: see `test_fine_tuning`."""


def explored(context, given, setting, value, *, rates, restarts, step=0.125, widen=True):
    """A slice whose boundary is at twice the paper's η*, which is a quarter of the exact one."""
    star = 0.1 / value**2
    cells = {}
    for multiple in (0.25, 0.5, 1, 2, 4):
        state = "exploded" if multiple >= 2 else "trained"
        loss = None if multiple >= 2 else value + multiple
        seeds = range(101, 101 + restarts)
        cells[multiple * star] = tuple(Restart(s, state, loss, 0.5, 3 if loss is None else None) for s in seeds)
    return Slice(value, cells, {"paper": star, "exact": 4 * star, "train": 2 * star})


@pytest.fixture
def invented(monkeypatch):
    """Nothing is trained or loaded but digits."""
    data = SimpleNamespace(train=range(60_000), classes=10, input_shape=(3, 32, 32))
    for module in (regcnn, mean_field_training, cited_bnp):
        monkeypatch.setattr(module, "train_cases", invented_runs.train_cases)
        monkeypatch.setattr(module, "load", lambda name, root: data)
    for module in (mean_field_sweeps, cited_measured):
        monkeypatch.setattr(module, "load", lambda name, root: data)
    monkeypatch.setattr(mean_field_sweeps, "explore", explored)
    monkeypatch.setattr(mean_field_training, "predictions", lambda context, given: {"paper": 0.1, "exact": 0.2})
    monkeypatch.setattr(
        cited_measured, "conditions", lambda data, method, seed, steps, looks: dict.fromkeys(looks, 2.0)
    )
    monkeypatch.setattr(cited_measured, "DRAWS", 1)
    monkeypatch.setattr(cited_measured, "SAMPLES", 120)
    monkeypatch.setattr(cited_regularization, "unchanged_by_scale", lambda generator: True)
    monkeypatch.setattr(regularization_dropout, "training_step", lambda method, size, device: lambda: None)


def mine() -> list[Claim]:
    found = [claim for block in blocks() if block.number in MINE for claim in block.claims if claim.parts]
    return [claim for claim in found if claim.kind != "T"]


@pytest.mark.parametrize("size", ["small", "gpu", "paper"])
def test_every_part_is_decided(size: str, invented: None, tmp_path: Path) -> None:
    records = {}
    for claim in mine():
        for name in claim.experiments:
            if name in TRAINED_HERE or name in records or size not in experiment_named(name).minutes:
                continue
            records[name] = invented_runs.record_of(name, size, tmp_path)
    assert len(records) >= 20
    parts = [(claim, part) for claim in mine() for part in (*claim.parts, *claim.corrected) if part.kind != "claim"]
    judged = 0
    for claim, part in parts:
        record = records.get(part.experiment or claim.experiment)
        if record is None:
            continue
        judged += 1
        outcomes = [FUNCTIONS[part.name](part, record)] if part.kind == "function" else judge_part(part, record)
        for outcome in outcomes:
            assert outcome.state != "not run", f"{claim.id}: {part.text}: {outcome.sentence}"
            assert all(map(math.isfinite, _numbers(outcome.interval))), f"{claim.id}: {part.text}"
    assert judged >= 80


def _numbers(interval) -> list[float]:
    return [] if interval is None else [interval.mean, interval.low, interval.high]


@pytest.mark.slow
def test_fine_tuning(tmp_path: Path, monkeypatch) -> None:
    """A short run: the folded network starts where BN ended, and all parts are decided."""
    monkeypatch.setattr(regcnn, "train_cases", invented_runs.train_cases)
    monkeypatch.setattr(regularization_fine_tuning, "SIZES", {"small": (1, 1)})
    monkeypatch.setattr(regularization_fine_tuning, "SAMPLES", 8)
    monkeypatch.setattr(regularization_fine_tuning, "EVALUATIONS", 1)
    monkeypatch.setattr(regcnn, "EVALUATIONS", 1)
    record = invented_runs.record_of("regcnn-fine-tuning", "small", tmp_path)
    before = record.numbers["λ_max of the Hessian"]["before"]["101"]
    assert before > 0
    norms = record.numbers["‖w‖ of conv 1"]
    assert norms["fine-tuned"]["101"] == pytest.approx(norms["before"]["101"], rel=0.01)
    assert norms["fine-tuned"]["101"] != norms["before"]["101"]
    for claim in mine():
        if claim.experiment == "regcnn-fine-tuning":
            for part in claim.parts:
                assert judge_part(part, record)[0].state != "not run", part.text
