"""Claims of our own: what `debias` does, and what BNP gains when inputs are in [0, 1]."""

from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.kept import kept
from trimtab.claims.training_runs import enter_runs, train_cases

if TYPE_CHECKING:
    from trimtab.data import Dataset


@experiment("debias", "Averages without bias at the start", small=8, second_pass=True, gpu=3, needs=("cifar10",))
def debias(findings: Findings, context: Context) -> None:
    """BNP with and without the correction of its first averages."""
    cases = {method: {"method": method} for method in ("bnp", "bnp-debias")}
    epochs = 2 if context.size == "small" else 5
    shared: dict[str, Any] = {"data": "cifar10", "network": "cnn5", "batch_size": 128, "epochs": epochs}
    shared |= {"train_subset": 0}
    enter_runs(findings, train_cases(context, cases, shared, context.seeds(3)), 10)
    findings.settings |= shared
    if context.size == "small":
        findings.notes.append("2 epochs instead of 5.")


@experiment("input-scaling", "What BNP of each layer gains", small=18, second_pass=True, gpu=3, needs=("cifar10",))
def input_scaling(findings: Findings, context: Context) -> None:
    """BNP of all layers, of the first alone and of the others, with inputs in [0, 1] and standardized."""
    from trimtab.data import load

    dataset = load("cifar10", context.data_root)
    plain, preconditioned = {"lr": 0.005}, {"lr": 0.05}  # the rates printed for batch size 6
    cases: dict[str, tuple[dict[str, Any], tuple[str, ...] | None]] = {
        "vanilla": (plain, None),
        "standardized": ({**plain, "normalize": "standard"}, None),
        "bnp": (preconditioned, ()),
        "bnp, standardized": ({**preconditioned, "normalize": "standard"}, ()),
        "bnp, first layer": (preconditioned, ("3", "5", "7")),
        "bnp, other layers": (preconditioned, ("1",)),
    }
    for seed in context.seeds(3):
        acc = {}
        for name, (settings, skipped) in cases.items():
            place = context.work / f"{name.replace(', ', '-').replace(' ', '-')}-seed-{seed}.json"
            given = {"normalize": "unit", **settings}
            acc[name] = kept(place, partial(_accuracy, context, dataset, given, skipped, seed))
            findings.number("acc", name, acc[name], seed=seed, unit="points")
            context.show(f"{name}, seed {seed}: {acc[name]:.2f}")
        gains = {
            "bnp": acc["bnp"] - acc["vanilla"],
            "standardizing": acc["standardized"] - acc["vanilla"],
            "bnp-standardized": acc["bnp, standardized"] - acc["standardized"],
            "bnp-first": acc["bnp, first layer"] - acc["vanilla"],
            "bnp-rest": acc["bnp, other layers"] - acc["vanilla"],
        }
        for name, gain in gains.items():
            findings.number("gain", name, gain, seed=seed, unit="points")
    findings.settings |= {"data": "cifar10", "network": "mlp3x100", "batch_size": 6, "epochs": 2}


def _accuracy(
    context: Context, dataset: "Dataset", settings: dict[str, Any], skipped: tuple[str, ...] | None, seed: int
) -> float:
    """Test accuracy in points of a network after training; BNP leaves some layers alone (None: there is no BNP)."""
    from trimtab import BNP
    from trimtab.training.recipes import resolve
    from trimtab.training.session import Session
    from trimtab.training.settings import Settings

    common = {"data": "cifar10", "network": "mlp3x100", "method": "vanilla", "batch_size": 6, "epochs": 2}
    session = Session(resolve(Settings(**{**common, **settings, "seed": seed})), context.device, dataset=dataset)
    if skipped is not None:
        BNP(session.model, skip=skipped).attach(session.optimizer)
    session.model.train()
    for _ in range(session.total):
        session.advance()
    accuracy = session.evaluate()[1]
    assert accuracy is not None
    return 100 * accuracy
