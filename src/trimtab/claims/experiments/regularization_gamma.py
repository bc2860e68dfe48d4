"""regularization, Fig. 5 and Sec. 5.1: γ and the batch size, and an explicit decay of γ."""

import math
from collections.abc import Sequence
from statistics import fmean

from trimtab.claims.experiments.regcnn import diverged, enter_best, enter_ends, lab
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.records import History, run_numbers

CIFAR = {"gpu": ("cifar10",), "paper": ("cifar10",)}
LAYERS = {"small": (0, 1, 2, 3, 4), "gpu": (0, 4), "paper": (0, 1, 2, 3, 4)}
BATCHES = {"small": (8, 32, 128), "gpu": (16, 64, 256, 1024), "paper": (16, 64, 256, 1024)}
EPOCHS = {"small": 20, "gpu": 20, "paper": 100}
SEEDS = {"small": 2, "gpu": 1, "paper": 3}
RISING = 0.8
"""The rank correlation from which on something grows with the batch size."""
ZETAS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
TWO_BATCHES = {"small": (32, 128), "gpu": (64, 256), "paper": (64, 256)}
"""What the paper calls small and large; on digits, which are few, half of that."""


@experiment(
    "regcnn-batch-size",
    "CNN, BN in one layer at a time, over batch sizes",
    small=3,
    gpu=10,
    paper=120,
    needs=CIFAR,
)
def batch_size(findings: Findings, context: Context) -> None:
    """Fig. 5."""
    common, epochs, batches = lab(findings, context), EPOCHS[context.size], BATCHES[context.size]
    layers, seeds = LAYERS[context.size], context.seeds(SEEDS[context.size])
    cases = {
        f"layer-{layer}/M={size}": {
            **{"method": "bn", "norm_layers": (layer,), **common.at(size)},
            **{"probe": ("weights",), "probe_at": (common.last_step(epochs, size),)},
        }
        for layer in layers
        for size in batches
    }
    shared = common.shared(epochs)
    trained = common.train(cases, shared, seeds)

    def test_loss(history: History) -> float:
        return run_numbers(history, 1 / common.classes).vloss or math.nan

    for measure, read in (("γ²", gamma_square), ("vloss", test_loss)):
        growing = dict.fromkeys(seeds, 0)
        for layer in layers:
            by_batch = [trained[f"layer-{layer}/M={size}"] for size in batches]
            values = {seed: [read(case.runs[seed]) for case in by_batch] for seed in seeds}
            for seed, several in values.items():
                growing[seed] += grows(batches, several)
                for size, value in zip(batches, several, strict=True):
                    unit = "loss" if measure == "vloss" else "factor"
                    findings.number(measure, f"layer-{layer}/M={size}", value, seed=seed, unit=unit)  # type: ignore[arg-type]
            columns = list(zip(*values.values(), strict=True))
            points = [(size, fmean(c), min(c), max(c)) for size, c in zip(batches, columns, strict=True) if _finite(c)]
            findings.curve(f"{measure} over batch size", f"layer {layer}", points)
        for seed, count in growing.items():
            share = count / len(layers)
            findings.number(f"share of layers where {measure} grows", "bn", share, seed=seed, unit="factor")
    findings.settings |= {**shared, "batches": batches, "layers": layers}
    findings.notes.append(
        f"A layer counts in a run if the rank correlation with the batch sizes {', '.join(map(str, batches))} is "
        f"{RISING} or more and the largest batch has more than the smallest."
    )


def gamma_square(history: History) -> float:
    """The mean γ² of the one normalized layer at the end of a run; NaN if it diverged."""
    found = [event.result for event in history.probed if event.probe == "weights"]
    if diverged(history) or not found or not found[-1].get("norms"):
        return math.nan
    return float(found[-1]["norms"][-1]["gamma_square"])


def grows(batches: Sequence[int], values: Sequence[float]) -> bool:
    """Whether something grows with the batch size; a run that diverged has an infinite loss, which is the largest."""
    if any(map(math.isnan, values)):
        return False
    return rank_correlation(batches, values) >= RISING - 1e-12 and values[-1] > values[0]


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's; NaN if one side is constant."""
    import numpy as np
    from scipy.stats import rankdata

    ranks = rankdata(left), rankdata(right)
    if any(float(np.ptp(one)) == 0 for one in ranks):
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def _finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


@experiment("regcnn-gamma-decay", "CNN with an explicit decay of γ", small=2.2, gpu=8, paper=80, needs=CIFAR)
def gamma_decay(findings: Findings, context: Context) -> None:
    """Sec. 5.1: ζγ² with BN at the large batch, with WN at the small one."""
    common, epochs = lab(findings, context), EPOCHS[context.size]
    small, large = TWO_BATCHES[context.size]
    cases = {f"bn-large/ζ={zeta:g}": {"method": "bn", "zeta": zeta, **common.at(large)} for zeta in ZETAS}
    cases |= {f"wn/ζ={zeta:g}": {"method": "wn", "zeta": zeta, **common.at(small)} for zeta in ZETAS}
    cases["bn"] = {"method": "bn", **common.at(small)}
    shared = common.shared(epochs)
    trained = common.train(cases, shared, context.seeds(SEEDS[context.size]))
    enter_ends(findings, trained, common.classes)
    largest = [name for name in trained if name.startswith("bn-large")]
    enter_best(findings, ("acc", "vloss"), trained, largest, "bn-large/best-ζ", 1 / common.classes)
    decayed = [name for name in trained if name.startswith("wn") and name != "wn/ζ=0"]
    enter_best(findings, ("acc", "vloss"), trained, decayed, "wn/best-ζ", 1 / common.classes)
    findings.settings |= {**shared, "batches": [small, large], "ζ": ZETAS}
