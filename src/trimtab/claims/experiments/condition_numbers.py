"""bnp, Fig. 8 and Secs. 3.3, 3.5: condition numbers and norms of Hessian blocks, with and without BNP."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from trimtab.claims.experiments.registry import Context, experiment, with_both_inputs
from trimtab.claims.findings import Findings
from trimtab.claims.probed_training import ProbedRun, middle_layer, probe_along, weight_layers
from trimtab.claims.training_runs import enter_runs, train_cases
from trimtab.data import load
from trimtab.networks import build
from trimtab.training.recipes import CNN_RATES, MLP_RATES

if TYPE_CHECKING:
    from trimtab import BNP
    from trimtab.probes import Conditioning, LayerConditioning

THIRDS = ("first", "second", "last")
RANGE = (1e2, 1e5)
"""Of κ(D), in Fig. 8 right."""
UNITS = {"mlp3x100": 5, "cnn5": 3}
"""How many units of a layer have their Hessian block taken: those that no sample of a batch activates have none."""
_CIFAR = ("cifar10",)


@with_both_inputs(
    "condition-numbers",
    "Condition numbers of the Hessian of two layers of 100",
    small=3.9,
    seeds=(2, 3),
    gpu=10,
    needs=_CIFAR,
)
def figure_8(findings: Findings, context: Context, normalize: str) -> None:
    """κ of the Hessian of the first output unit along the run, and curves of accuracy."""
    small = context.size == "small"
    epochs, every, seeds = (2, 50, context.seeds(3)) if small else (20, 100, context.seeds(5))
    rates = MLP_RATES["cifar10", 60]
    output = weight_layers(build("mlp2x100"))[-1]

    def probes(bnp: "BNP | None") -> "dict[str, Conditioning]":
        from trimtab.probes import Conditioning

        exact = Conditioning(units=1, only=(output,), eps1=0, eps2=0)
        return {"exact": exact, "with ε": Conditioning(units=1, only=(output,), bnp=bnp)}

    last = epochs * (len(load("cifar10", context.data_root).train) // 60)
    steps = range(0, last + 1, every)
    series: dict[str, dict[int, list[LayerConditioning]]] = {"exact": {}, "with ε": {}}
    for seed in seeds:
        run = ProbedRun("mlp2x100", "none", True, rates["bnp"], 60, normalize, seed, double=True)
        found = probe_along(context, run, {*steps}, probes)
        for kind, of_kind in series.items():
            of_kind[seed] = [found[step][kind].layers[output] for step in steps]
        enter_condition_numbers(findings, seed, series["exact"][seed])
        context.show(f"condition numbers of seed {seed}")
    _enter_lines(findings, list(steps), list(series["exact"].values()))
    with_eps = [layer for layers in series["with ε"].values() for layer in layers]
    findings.notes.append(
        f"With ε₁, ε₂ and running statistics, medians: κ(H) {median(each.hessian for each in with_eps):.3g}, "
        f"κ(PᵀHP) {median(each.preconditioned for each in with_eps):.3g}, "
        f"κ(D) {median(each.scaling for each in with_eps):.3g}."
    )
    cases = {method: {"method": method} for method in ("vanilla", "bnp")}
    shared = {"data": "cifar10", "network": "mlp2x100", "batch_size": 60, "epochs": epochs, "normalize": normalize}
    enter_runs(findings, train_cases(context, cases, shared, seeds), 10)
    findings.settings |= {**shared, "probe_every": every}


def enter_condition_numbers(findings: Findings, seed: int, layers: "Sequence[LayerConditioning]") -> None:
    """Enter what claims ask of the condition numbers along one run, in the order of its steps."""
    for number, name in enumerate(THIRDS):
        third = layers[number * len(layers) // 3 : (number + 1) * len(layers) // 3]
        measure = f"κ in the {name} third"
        findings.number(measure, "hessian", median(each.hessian for each in third), seed=seed, unit="factor")
        after = median(each.preconditioned for each in third)
        findings.number(measure, "preconditioned", after, seed=seed, unit="factor")
    inside = sum(RANGE[0] <= each.scaling <= RANGE[1] for each in layers) / len(layers)
    findings.number("share of steps with κ(D) from 100 to 100000", "bnp", inside, seed=seed, unit="factor")
    distances = [
        abs(math.log10(each.hessian / each.preconditioned) - 2 * math.log10(each.scaling))
        if math.isfinite(each.scaling)
        else math.inf
        for each in layers
    ]
    findings.number("distance of log₁₀ gain and log₁₀ κ(D)²", "bnp", median(distances), seed=seed, unit="factor")


def _enter_lines(findings: Findings, steps: list[int], runs: "list[list[LayerConditioning]]") -> None:
    """Enter the lines of Fig. 8, center and right, with at most about 40 points each."""
    lines = {"center": {"hessian": "κ(H)", "preconditioned": "κ(PᵀHP)"}, "right": {"scaling": "κ(D)"}}
    stride = -(-len(steps) // 40)
    for panel, names in lines.items():
        for attribute, line in names.items():
            points = []
            for i in range(0, len(steps), stride):
                values = [getattr(layers[i], attribute) for layers in runs]
                points.append((steps[i], median(values), min(values), max(values)))
            findings.curve(panel, line, points)


# ---- Networks whose layers are probed at a few steps -----------------------------------------------------------------


def _rate(network: str, method: str) -> float:
    """The printed rate; of GN, for which none is printed, that of BN."""
    rates: Mapping[str, float] = MLP_RATES["cifar10", 60] if network == "mlp3x100" else CNN_RATES[128]
    return rates.get(method, rates["bn"])


def _batch_size(network: str, small: bool) -> int:
    return 60 if network == "mlp3x100" else 32 if small else 128


def _runs(context: Context, network: str, method: str, norm: str, bnp: bool) -> list[ProbedRun]:
    small = context.size == "small"
    return [
        ProbedRun(network, norm, bnp, _rate(network, method), _batch_size(network, small), "unit", seed)
        for seed in context.seeds(3 if small else 5)
    ]


def illconditioned_layers(findings: Findings, context: Context, steps: tuple[int, ...]) -> None:
    """κ of the Hessian of a unit in the middle layer, with LN or GN, without, and without but preconditioned."""
    for network, norm in (("mlp3x100", "ln"), ("cnn5", "gn")):
        measure = f"κ in {network}"
        for method in ("vanilla", norm):
            own = "none" if method == "vanilla" else norm
            middle = middle_layer(network, own)

            def probes(bnp: "BNP | None", network: str = network, middle: str = middle) -> "dict[str, Conditioning]":
                return {"": _conditioning(network, bnp, (middle,))}

            for run in _runs(context, network, method, own, bnp=False):
                found = probe_along(context, run, {*steps}, probes)
                layers = [found[step][""].layers[middle] for step in steps]
                kappa = _median_of_known(each.hessian for each in layers)
                findings.number(measure, method, kappa, seed=run.seed, unit="factor")
                if method == "vanilla":
                    after = _median_of_known(each.preconditioned for each in layers)
                    findings.number(measure, "vanilla+bnp", after, seed=run.seed, unit="factor")
                context.show(f"{network}, {method}, seed {run.seed}: κ {kappa:.3g}")
    findings.settings |= _settings(context, steps)


def hessian_norms(findings: Findings, context: Context, steps: tuple[int, ...]) -> None:
    """The largest over the smallest norm of the Hessian blocks of the layers of networks that BNP trains."""
    for network in ("mlp3x100", "cnn5"):
        for run in _runs(context, network, "bnp", "none", bnp=True):
            found = probe_along(
                context,
                run,
                {*steps},
                lambda bnp, network=network: {"": _conditioning(network, bnp)},  # type: ignore[misc]
            )
            ratios = [found[step][""].norm_ratios() for step in steps]
            for case in ("hessian", "preconditioned", "divided"):
                ratio = _median_of_known(each[case] for each in ratios)
                measure = f"largest over smallest norm in {network}"
                findings.number(measure, case, ratio, seed=run.seed, unit="factor")
            context.show(f"{network}, seed {run.seed}")
    findings.settings |= _settings(context, steps)


def _conditioning(network: str, bnp: "BNP | None", only: tuple[str, ...] = ()) -> "Conditioning":
    """The probe with limits that leave out no layer of these networks."""
    from trimtab.probes import Conditioning

    return Conditioning(units=UNITS[network], only=only, bnp=bnp, max_entries=2**23, max_products=640)


def _median_of_known(values: Iterable[float]) -> float:
    """The median of those that are numbers; where no unit is active there is none."""
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def _settings(context: Context, steps: tuple[int, ...]) -> dict[str, Any]:
    sizes = {f"batch size of {name}": _batch_size(name, context.size == "small") for name in ("mlp3x100", "cnn5")}
    return {"data": "cifar10", "normalize": "unit", "probe_at": list(steps), **sizes}


@experiment("illconditioned", "κ of middle layers with LN, GN and BNP", small=1.8, gpu=5, needs=_CIFAR)
def illconditioned(findings: Findings, context: Context) -> None:
    """Sec. 3.5."""
    illconditioned_layers(findings, context, (0, 500, 1000))


@experiment("hessian-blocks", "Norms of the Hessian blocks of layers", small=0.8, gpu=5, needs=_CIFAR)
def hessian_blocks(findings: Findings, context: Context) -> None:
    """Sec. 3.3, after Prop. 5."""
    hessian_norms(findings, context, (0, 1000))
