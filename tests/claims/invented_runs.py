"""Runs that were never trained: experiments are called with them to see what they enter into their records."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.claims.helpers import recorded
from trimtab.claims.experiments.registry import Context, experiment_named
from trimtab.claims.findings import Findings
from trimtab.claims.record import Record
from trimtab.claims.training_runs import TrainedCase
from trimtab.records import Evaluated, History, RunEnded, RunStarted, Trained
from trimtab.records.events import Probed

STEPS = 200


def history(
    *,
    losses: Sequence[tuple[float, float]] = ((2.0, 2.1), (1.0, 1.3), (0.5, 0.9), (0.2, 0.8)),
    accuracies: Sequence[tuple[float, float]] | None = None,
    trained: Sequence[float] | None = None,
    probed: Sequence[Probed] = (),
    diverged: bool = False,
) -> History:
    """A run with these losses on training and test data at its evaluations, and these training losses of its steps."""
    each = STEPS // len(losses)
    accuracies = accuracies or [(0.9 - loss / 10, 0.8 - other / 10) for loss, other in losses]
    evaluated = tuple(
        Evaluated((i + 1) * each, (i + 1) / 2, "test", other, right, 0.0, loss, train)
        for i, ((loss, other), (train, right)) in enumerate(zip(losses, accuracies, strict=True))
    )
    trained = trained or [loss for loss, _ in losses]
    stretches = tuple(
        Trained((i + 1) * STEPS // len(trained), i + 1.0, loss, 0.5, 0.1, 0.0) for i, loss in enumerate(trained)
    )
    ended = RunEnded(
        "diverged" if diverged else "finished", STEPS, 1.0, 1.0, last_epoch_loss=None if diverged else trained[-1]
    )
    started = RunStarted({}, "", "", {}, 1)
    return History(Path("invented"), started, stretches, evaluated, ended, tuple(probed))


def train_cases(
    context: Context,
    cases: Mapping[str, Mapping[str, Any]],
    shared: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    rates: int = 1,
) -> dict[str, TrainedCase]:
    """What `trimtab.claims.training_runs.train_cases` returns, with numbers that depend on case and seed."""
    found = {}
    for name, own in cases.items():
        runs = {seed: _varied(f"{name}{seed}", {**shared, **own}) for seed in seeds}
        found[name] = TrainedCase(float(own.get("lr", shared.get("lr", 0.1))), runs)
    return found


def _varied(text: str, settings: Mapping[str, Any]) -> History:
    more = (zlib.crc32(text.encode()) % 1000) / 10_000
    losses = [(loss + more, other + 2 * more) for loss, other in ((2.0, 2.1), (1.0, 1.3), (0.5, 0.9), (0.2, 0.8))]
    results: dict[str, dict[str, Any]] = {
        "weights": {"norms": [{"gamma_square": 1 + more}], "layers": [{"variance": 1 + more}]},
        "variance": {"layers": [{"distance": more}, {"distance": 2 * more}]},
        "fisher": {"one_output": 3 + more},
        "robustness": {"accuracy": 0.5 + more, "accuracies": [0.3 + more, 0.2 + more]},
    }
    probed = [
        Probed(step, probe, results[probe], 0.0) for step in settings.get("probe_at", ()) for probe in settings["probe"]
    ]
    return history(losses=losses, probed=probed)


def record_of(name: str, size: str, folder: Path) -> Record:
    """The record of an experiment, whose runs are invented if its module's `train_cases` is replaced."""
    findings = Findings()
    context = Context(size, torch.device("cpu"), None, folder / name)
    experiment_named(name).run(findings, context)
    return recorded(findings, name, size)
