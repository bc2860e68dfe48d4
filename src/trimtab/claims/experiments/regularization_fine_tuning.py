"""regularization, Fig. 6: fine-tuning after the BatchNorm was folded into the weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.claims.experiments.regcnn import diverged, enter_loss_curves, lab
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import EVALUATIONS
from trimtab.data import Dataset, batches, load
from trimtab.records import History, run_numbers
from trimtab.training.recipes import resolve
from trimtab.training.settings import Settings, resolved

CIFAR = {"gpu": ("cifar10",), "paper": ("cifar10",)}
SIZES = {"small": (20, 2), "gpu": (20, 1), "paper": (100, 3)}
"""Epochs and seeds; the fine-tuning is as long as the training before it."""
FINE_TUNING: dict[str, Any] = {"lr": 1e-3, "momentum": 0.0, "schedule": "constant"}
CONVOLUTIONS = 4
GROWTH = "growth of ‖w‖, alone and beside BN's"
"""The smaller one of after over before, and of that over the growth of γw/σ under BN: above 1 if both are."""
SAMPLES = 512
"""On which the Hessian is measured."""


@experiment("regcnn-fine-tuning", "CNN fine-tuned without BN's noise", small=1, gpu=4, paper=50, needs=CIFAR)
def fine_tuning(findings: Findings, context: Context) -> None:
    """Train with BN; then go on by plain SGD at 0.001, with BN as it is and with BN folded into the weights."""
    (epochs, seeds), common = SIZES[context.size], lab(findings, context)
    shared = {**common.shared(epochs), "method": "bn"}
    dataset = load(common.data, context.data_root)
    lines: dict[str, list[History]] = {"fine-tuned": [], "bn": []}
    for seed in context.seeds(seeds):
        source = train_and_keep(context, Settings(**{**shared, "seed": seed}))
        begun = {**shared, **FINE_TUNING, "seed": seed, "init_from": str(source.folder)}
        runs = {
            "before": source,
            "bn": train_and_keep(context, Settings(**begun)),
            "fine-tuned": train_and_keep(context, Settings(**{**begun, "method": "vanilla", "fold": True})),
        }
        for name, history in runs.items():
            numbers = run_numbers(history, 1 / common.classes)
            for measure in ("tloss", "vloss", "eloss"):
                findings.number(measure, name, getattr(numbers, measure), seed=seed, unit="loss")
            if name != "before":
                lines[name].append(history)
        if not any(map(diverged, runs.values())):
            enter_norms(findings, runs, seed)
            enter_sharpness(findings, runs, seed, dataset, context.device)
        context.show(f"seed {seed} is done")
    for name, several in lines.items():
        enter_loss_curves(findings, name, several)
    findings.chance = 100 / common.classes
    findings.settings |= {**shared, **{f"{name} of the fine-tuning": value for name, value in FINE_TUNING.items()}}
    findings.notes.append(
        "tloss is what the steps saw: under BN it has the noise of the batches' statistics in it. eloss, in evaluation "
        "mode, stands beside."
    )


def train_and_keep(context: Context, settings: Settings) -> History:
    """Train a run whose checkpoint is kept, for others to begin with; one that was trained before is found again."""
    from trimtab.training import folder as folders
    from trimtab.training.grid import PlannedRun
    from trimtab.training.launch import launch
    from trimtab.training.run import CHECKPOINT
    from trimtab.training.session import Session

    settings = replace(resolve(settings), evaluate_on="test", evaluations=EVALUATIONS)
    session = Session(settings, context.device, context.data_root)
    folder: Path = context.work / f"kept-{PlannedRun(settings, session.total).name}"
    if (folder / CHECKPOINT).exists() and folders.holds(folder, settings):
        found = History.read(folder)
        if found.ended is not None and found.ended.verdict == "finished":
            return found
    ending = launch(session, folder, resume=folders.holds(folder, settings), force=True, command=context.command)
    if ending.verdict == "interrupted":
        raise KeyboardInterrupt
    return History.read(folder)


def folded_weights(folder: Path) -> list[Tensor]:
    """The weights of a run's convolutions, with its BatchNorm folded into them if it has one: γw/σ."""
    from trimtab.training.loading import load_run

    model = folded(load_run(folder).model)
    return [module.weight.detach() for module in model.modules() if isinstance(module, nn.Conv2d)]


def folded(model: nn.Module) -> nn.Module:
    """A network without BatchNorm that computes the same in evaluation."""
    from trimtab.bnp import fold_batchnorm
    from trimtab.norms import RunningNorm

    has_norm = any(isinstance(module, nn.BatchNorm2d | RunningNorm) for module in model.modules())
    return fold_batchnorm(model) if has_norm else model


def enter_norms(findings: Findings, runs: dict[str, History], seed: int) -> None:
    """Enter ‖w‖ of each convolution, under BN of γw/σ, and by how much it has grown since before the fine-tuning."""
    norms = {name: [float(w.double().norm()) for w in folded_weights(one.folder)] for name, one in runs.items()}
    for number in range(CONVOLUTIONS):
        growth = {name: several[number] / norms["before"][number] for name, several in norms.items()}
        for name, several in norms.items():
            findings.number(f"‖w‖ of conv {number + 1}", name, several[number], seed=seed, unit="factor")
        least = min(growth["fine-tuned"], growth["fine-tuned"] / growth["bn"])
        findings.number(GROWTH, f"conv-{number + 1}", least, seed=seed, unit="factor")


def enter_sharpness(
    findings: Findings, runs: dict[str, History], seed: int, dataset: Dataset, device: torch.device
) -> None:
    """Enter the largest eigenvalue of the Hessian at the end, on some training samples and by running statistics."""
    from torch.nn import functional as F

    from trimtab.probes import Spectrum
    from trimtab.training.loading import load_run

    probe = Spectrum(statistics="running")
    for name, history in runs.items():
        found = load_run(history.folder, device)
        split = dataset.train
        count = min(SAMPLES, len(split))
        chosen = split.take(torch.arange(count) * len(split) // count)
        (batch,) = batches(chosen, count, dataset=dataset, normalize=resolved(found.settings.normalize), device=device)
        models = {name: found.model} | ({f"{name}-folded": folded(found.model)} if name != "fine-tuned" else {})
        for case, model in models.items():
            result = probe(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), batch)
            findings.number("λ_max of the Hessian", case, result.largest[0], seed=seed, unit="factor")
