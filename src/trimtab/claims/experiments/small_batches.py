"""bnp, Fig. 4: batch sizes 6 and 1 in the fully connected network, and 1 in the 5-layer CNN."""

from statistics import fmean
from typing import Any

from trimtab.claims.experiments.registry import Context, with_both_inputs
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import EVALUATIONS, TrainedCase, enter_runs, train_cases
from trimtab.data import load

METHODS = ("vanilla", "bn", "brn", "ln", "bnp")
TENTH = EVALUATIONS // 10
"""Evaluations in the first tenth of a run."""


_CIFAR = ("cifar10",)


@with_both_inputs(
    "fc-6-cifar10", "Fully connected, CIFAR-10, batch size 6", small=2.2, seeds=(2, 3), gpu=10, paper=10, needs=_CIFAR
)
def batch_6(findings: Findings, context: Context, normalize: str) -> None:
    """Five methods at batch size 6, and two of them at 60 with as many samples seen."""
    small = context.size == "small"
    rates, seeds = (1, 3) if small else (3, 5)
    shared = _shared("mlp3x100", normalize, {"epochs": 2 if small else 10})
    seeds_of = context.seeds(seeds)
    trained = train_cases(context, _cases(METHODS), {**shared, "batch_size": 6}, seeds_of, rates=rates)
    large = train_cases(context, _cases(("bn", "bnp")), {**shared, "batch_size": 60}, seeds_of, rates=rates)
    classes = load("cifar10", context.data_root).classes
    enter_runs(findings, trained, classes)
    enter_runs(findings, large, classes, " at batch 60")
    acc, acc_60 = findings.numbers["acc"], findings.numbers["acc at batch 60"]
    for seed, of_bnp in acc["bnp"].items():
        for name in ("bn", "bnp"):
            fall = acc_60[name][seed] - acc[name][seed]
            findings.number("fall of acc from batch 60 to 6", name, fall, seed=seed, unit="points")
        for name in ("bn", "brn", "ln"):
            distance = abs(of_bnp - acc[name][seed])
            findings.number("distance in acc from bnp", name, distance, seed=seed, unit="points")
    _enter_final(findings, ("brn", "bnp"), small)
    findings.settings |= {**shared, "batch_size": 6, "rates": rates}


@with_both_inputs(
    "fc-1-cifar10", "Fully connected, CIFAR-10, batch size 1", small=1.1, seeds=(2, 3), gpu=10, paper=10, needs=_CIFAR
)
def batch_1(findings: Findings, context: Context, normalize: str) -> None:
    """Five methods at batch size 1, and what BNP gains at the beginning at batch size 60 with as many samples seen."""
    small = context.size == "small"
    rates, seeds = (1, 3) if small else (3, 5)
    length, length_60 = ({"steps": 22_500}, {"steps": 375}) if small else ({"epochs": 3}, {"epochs": 3})
    shared = {**_shared("mlp3x100", normalize, length), "batch_size": 1}
    trained = train_cases(context, _cases(METHODS), shared, context.seeds(seeds), rates=rates)
    shared_60 = {**_shared("mlp3x100", normalize, length_60), "batch_size": 60}
    large = train_cases(context, _cases(("vanilla", "bnp")), shared_60, context.seeds(seeds), rates=rates)
    enter_runs(findings, trained, load("cifar10", context.data_root).classes)
    enter_early_gain(findings, "N=1", trained)
    enter_early_gain(findings, "N=60", large)
    _enter_final(findings, ("vanilla", "ln", "bnp"), small)
    findings.settings |= {**shared, "rates": rates}


@with_both_inputs("cnn5-1", "5-layer CNN, batch size 1", small=7, seeds=(2, 3), gpu=10, paper=10, needs=_CIFAR)
def cnn_batch_1(findings: Findings, context: Context, normalize: str) -> None:
    """The CNN at batch size 1; the norms that refuse one row in dense layers also in the convolutions alone."""
    small = context.size == "small"
    rates, seeds = (1, 3) if small else (3, 5)
    shared = {**_shared("cnn5", normalize, {"steps": 11_000} if small else {"epochs": 2}), "batch_size": 1}
    convolutions = {"norm_layers": (0, 1, 2)}
    cases = {
        **_cases(("vanilla", "bn", "brn", "bn4", "bnp")),
        # No rates are printed for these; they are those of batch size 2.
        "bn-convolutions": {"method": "bn", "lr": 0.001, **convolutions},
        "brn-convolutions": {"method": "brn", "lr": 0.01, **convolutions},
    }
    trained = train_cases(context, cases, shared, context.seeds(seeds), rates=rates)
    enter_runs(findings, trained, load("cifar10", context.data_root).classes)
    acc = findings.numbers["acc"]
    beside = (f"{name[:-13]} {fmean(acc[name].values()):.1f}" for name in cases if name.endswith("-convolutions"))
    findings.notes.append(f"With the norm after the three convolutions only, acc is: {', '.join(beside)}.")
    findings.settings |= {**shared, "rates": rates}


def enter_early_gain(findings: Findings, case: str, trained: dict[str, TrainedCase]) -> None:
    """Enter how much more accuracy BNP has than the vanilla network in the first tenth of a run, seed by seed.

    The first two of twenty evaluations are the first tenth whatever the number of steps is a multiple of. A run that
    diverged guesses.
    """

    def early(name: str, seed: int) -> float:
        run = trained[name].runs[seed]
        if run.ended is not None and run.ended.verdict == "diverged":
            return findings.chance or 0.0
        return 100 * fmean(event.accuracy for event in run.evaluated[:TENTH] if event.accuracy is not None)

    both = trained["bnp"].runs.keys() & trained["vanilla"].runs.keys()
    for seed in sorted(both):
        gain = early("bnp", seed) - early("vanilla", seed)
        findings.number("early gain of bnp", case, gain, seed=seed, unit="points")


def _cases(methods: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {method: {"method": method} for method in methods}


def _shared(network: str, normalize: str, length: dict[str, Any]) -> dict[str, Any]:
    return {"data": "cifar10", "network": network, "normalize": normalize, "train_subset": 0, **length}


def _enter_final(findings: Findings, cases: tuple[str, ...], small: bool) -> None:
    """Enter final accuracy for claims about it: the small runs are too short to have one."""
    if small:
        findings.notes.append("Claims about final accuracy are not judged here: the runs are too short.")
        return
    for name in cases:
        for seed, value in findings.numbers["acc"][name].items():
            findings.number("final acc", name, value, seed=seed, unit="points")
