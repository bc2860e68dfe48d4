"""Training runs made by hand, for experiments that train."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.claims import helpers
from trimtab.claims.experiments.registry import Context, experiment_named
from trimtab.claims.findings import Findings
from trimtab.claims.record import Record
from trimtab.claims.training_runs import TrainedCase
from trimtab.records import Candidate, Evaluated, History, RunEnded, RunStarted


def history(
    accuracies: Sequence[float], *, seconds: Sequence[float] | None = None, epochs: int | None = None
) -> History:
    """A run that was evaluated so often, evenly, with these accuracies in points."""
    times = seconds or [float(i + 1) for i in range(len(accuracies))]
    per_epoch = (epochs or len(accuracies)) / len(accuracies)
    events = tuple(
        Evaluated(10 * (i + 1), (i + 1) * per_epoch, "test", 1.0, accuracy / 100, time, 0.5, 0.5)
        for i, (accuracy, time) in enumerate(zip(accuracies, times, strict=True))
    )
    ended = RunEnded("finished", 10 * len(accuracies), times[-1], 1.0, last_epoch_loss=0.3, last_epoch_accuracy=0.9)
    return History(Path(), RunStarted({}, "", "", {}, 1), (), events, ended)


class Trainer:
    """Stands for `train_cases` and `chosen_rates`: accuracy rises from 10 to a number of the case's own.

    Attributes:
        asked: Cases and shared settings of all calls.
    """

    def __init__(self, best: Mapping[str, float] | None = None, refused: Sequence[tuple[int, str]] = ()) -> None:
        self.best, self.refused = best or {}, refused
        self.asked: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def train_cases(
        self,
        context: Context,
        cases: Mapping[str, Mapping[str, Any]],
        shared: Mapping[str, Any],
        seeds: Sequence[int],
        *,
        rates: int = 1,
    ) -> dict[str, TrainedCase]:
        self.asked.append(({name: dict(case) for name, case in cases.items()}, dict(shared)))
        found = {}
        for number, name in enumerate(cases):
            if (shared.get("batch_size"), name) in self.refused:
                found[name] = TrainedCase(0.1, {}, refused="a layer refuses one row")
                continue
            last = self.best.get(name, 40.0 + number)
            count = shared["epochs"] if "evaluate_every" in shared else shared.get("evaluations", 20)
            runs = {
                seed: history([10 + (last + 0.1 * (seed - 101) - 10) * (i + 1) / count for i in range(count)])
                for seed in seeds
            }
            found[name] = TrainedCase(0.1, runs)
        return found

    def chosen_rates(
        self,
        context: Context,
        cases: Mapping[str, Mapping[str, Any]],
        shared: Mapping[str, Any],
        rates: int,
        *,
        seed: int = 0,
    ) -> dict[str, tuple[float, tuple[Candidate, ...]]]:
        self.asked.append(({name: dict(case) for name, case in cases.items()}, dict(shared)))
        return {name: (3 * case["lr"], (Candidate(case["lr"], 0.5, 1.0, name),)) for name, case in cases.items()}


class Images:
    """Stands for a data set of images."""

    classes = 10
    train = range(3000)


def recorded(name: str, size: str, work: Path, device: str = "cpu") -> Record:
    """The record of an experiment that was run, as it is read back from its file."""
    findings = Findings()
    experiment_named(name).run(findings, Context(size=size, device=torch.device(device), data_root=None, work=work))
    return Record.read(helpers.recorded(findings, name, size).write(work / "results"))
