"""landscape, Sec. 5: what the paper says of other norms, activations and works."""

from statistics import median, pstdev
from typing import Any

from trimtab.claims import probed_findings as enter
from trimtab.claims import probed_runs as measures
from trimtab.claims.experiments.landscape_setup import METHODS, of_methods, setup
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import enter_runs, train_cases
from trimtab.records import History

ACTIVATIONS = ("elu", "selu")
LENGTHS = {"small": 300, "gpu": 4000, "paper": 15_000}
TRAJECTORIES = {"small": 300, "gpu": 2000, "paper": 15_000}
ABLATED = {"small": 300, "gpu": 20_000, "paper": 78_000}
"""Steps of the runs."""
POINTS = 10
"""Of a run, at which its loss is compared with that of other seeds."""


@experiment(
    "other-norms", "Other norms, and ELU and SELU", small=5.5, second_pass=True, gpu=30, paper=90, needs=("cifar10",)
)
def other_norms(findings: Findings, context: Context) -> None:
    """LayerNorm, GroupNorm, InstanceNorm, weight normalization; ELU and SELU without a norm."""
    small = context.size == "small"
    cases = of_methods(*METHODS, "ln", "gn", "in", "wn")
    if small:
        cases["in"]["norm_layers"] = (0, 1, 2)  # dense layers have no positions to normalize over
    cases |= {name: {"method": "vanilla", "activation": name} for name in ACTIVATIONS}
    shared = setup(findings, context, LENGTHS[context.size], evaluations=2 if small else 20)
    trained = train_cases(context, cases, shared, context.seeds(2 if small else 3), rates=3)
    enter_runs(findings, trained, 10)
    enter.enter_training(findings, enter.runs_of(trained))
    for name, case in trained.items():
        for seed in () if not case.refused else findings.numbers["acc"]["vanilla"]:
            findings.number("training accuracy", name, 10.0, seed=seed, unit="points")


@experiment(
    "init-trajectories",
    "Training losses of ten initializations",
    small=6.6,
    second_pass=True,
    gpu=15,
    paper=60,
    needs=("cifar10",),
)
def trajectories(findings: Findings, context: Context) -> None:
    """How far the training losses of ten seeds are apart at ten points of the run."""
    shared = setup(findings, context, TRAJECTORIES[context.size], evaluations=POINTS)
    runs = enter.runs_of(train_cases(context, of_methods(*METHODS), shared, context.seeds(10)))
    for case, by_seed in runs.items():
        found = deviations(list(by_seed.values()))
        findings.number("deviation of the training loss over seeds", case, median(found.values()))
        findings.curve("deviation of the training loss", case, [list(point) for point in found.items()])


def deviations(runs: list[History]) -> dict[int, float]:
    """The deviation of the training loss over runs, by step; infinite where one of them has diverged."""
    lines = [dict(measures.training_loss(run)) for run in runs]
    steps = sorted(set[int]().union(*lines))
    return {step: pstdev([line[step] for line in lines]) if _all(lines, step) else float("inf") for step in steps}


def _all(lines: list[dict[int, float]], step: int) -> bool:
    return all(abs(line.get(step, float("inf"))) < float("inf") for line in lines)


@experiment(
    "ablation",
    "Units of regcnn that accuracy needs",
    small=0.6,
    seeds=(2, 3),
    gpu=10,
    paper=30,
    needs={"gpu": ("cifar10",), "paper": ("cifar10",)},
)
def ablation(findings: Findings, context: Context) -> None:
    """The share of units that can be switched off until accuracy is halved, in five orders."""
    shared: dict[str, Any] = {"network": "regcnn", "data": "cifar10", "evaluations": 1}
    steps = ABLATED[context.size]
    if context.size == "small":
        shared["data"], findings.neighbour = "digits", "digits instead of CIFAR-10"
    shared |= {"steps": steps, "probe": ("ablation",), "probe_at": (steps - 1,)}
    findings.settings |= shared
    for case, trained in train_cases(context, of_methods(*METHODS), shared, context.seeds(3)).items():
        for seed, run in trained.runs.items():
            found = [result for _, result in measures.results(run, "ablation")]
            findings.number("share of units until accuracy is halved", case, halved(found), seed=seed, unit="factor")
            for result in found:
                findings.number("accuracy with all units", case, 100 * result["accuracy"], seed=seed, unit="points")


def halved(found: list[dict[str, Any]]) -> float:
    """The share at which accuracy is halved; all units if it never is, none if the run did not get there."""
    if not found:
        return 0.0
    share = float(found[-1]["halved_at"])
    return 1.0 if share != share else share


@experiment("length-direction", "Length and direction descended apart, least squares", small=0.3, paper=1)
def length_direction(findings: Findings, context: Context) -> None:
    """Steps to a millionth of the first suboptimality, for n = 50 and a condition number of 1,000."""
    import numpy as np

    from trimtab.theory.length_direction import least_squares_descents

    n, kappa, accuracy, steps = 50, 1e3, 1e-6, 20_000
    for seed in context.seeds(10):
        rng = np.random.default_rng(seed)
        basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
        matrix = basis @ np.diag(np.geomspace(1, kappa, n)) @ basis.T
        found = least_squares_descents((matrix + matrix.T) / 2, rng.normal(size=n), rng.normal(size=n), steps=steps)
        for case, taken in zip(("plain", "split"), found.steps_to(accuracy), strict=True):
            findings.number("steps to 1e-6", case, taken, seed=seed, unit="factor")
    findings.settings |= {"n": n, "condition number": kappa, "spectrum": "geometric", "at most": steps}
