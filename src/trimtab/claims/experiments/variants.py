"""bnp, Secs. 3.3 and 3.4: BNP with the batch's own statistics, BN without gradient through them, BN without γ and β."""

from typing import Any

from trimtab.claims.experiments.registry import Context, with_both_inputs
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import enter_runs, train_cases
from trimtab.data import load
from trimtab.training.recipes import CNN_RATES, MLP_RATES

_NETWORKS = {"fc": "mlp3x100", "cnn": "cnn5"}
_PLACES = (("fc", 60), ("fc", 6), ("cnn", 128), ("cnn", 2))


def cases_at(network: str, size: int) -> dict[str, dict[str, Any]]:
    """The variants that are compared at a batch size, each at the printed rate of BNP or of BN."""
    rates = MLP_RATES["cifar10", size] if network == "fc" else CNN_RATES[size]
    cases: dict[str, dict[str, Any]] = {
        "running": {"method": "bnp", "lr": rates["bnp"]},
        "batch": {"method": "bnp", "lr": rates["bnp"], "statistics": "batch"},
    }
    if size in (60, 128):
        cases |= {
            "bn": {"method": "bn", "lr": rates["bn"]},
            "bn-stopgrad": {"method": "bn-stopgrad", "lr": rates["bn"]},
            "bn-fixed": {"method": "bn", "lr": rates["bn"], "fixed_gamma": True, "fixed_beta": True},
        }
    return cases


@with_both_inputs("variants", "Variants of BNP and of BN", small=20, second_pass=True, gpu=20, needs=("cifar10",))
def compared(findings: Findings, context: Context, normalize: str) -> None:
    """Train all variants at four batch sizes."""
    small = context.size == "small"
    seeds = context.seeds(3 if small else 5)
    lengths: dict[tuple[str, int], dict[str, Any]] = {
        ("fc", 60): {"epochs": 2 if small else 20},
        ("fc", 6): {"steps": 4_000} if small else {"epochs": 10},
        ("cnn", 128): {"steps": 2_000} if small else {"epochs": 20},
        ("cnn", 2): {"steps": 2_000} if small else {"epochs": 1},
    }
    classes = load("cifar10", context.data_root).classes
    for network, size in _PLACES:
        length = lengths[network, size]
        shared: dict[str, Any] = {"data": "cifar10", "network": _NETWORKS[network], "batch_size": size, **length}
        shared |= {"normalize": normalize, "train_subset": 0}
        trained = train_cases(context, cases_at(network, size), shared, seeds)
        enter_runs(findings, trained, classes, f", {network} at {size}")
        findings.settings[f"length, {network} at {size}"] = length
    findings.settings |= {"data": "cifar10", "normalize": normalize}
