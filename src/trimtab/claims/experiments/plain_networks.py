"""landscape, Secs. 3 and 5: deep dense networks before training, and saturated activations."""

from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from trimtab.claims import probed_findings as enter
from trimtab.claims import probed_runs as measures
from trimtab.claims.experiments.landscape_setup import METHODS, of_methods, setup
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import train_cases

if TYPE_CHECKING:
    import torch

NORMS = {"vanilla": "none", "bn": "bn"}
DEPTHS, SCALES = (10, 25, 50), (0.5, 1.0, 2.0)
SHATTERED = (24, 50)
"""Depths of the networks whose gradients by the input are looked at."""
BATCH, NEIGHBOURS, LINES = 128, 100, 5
WITHIN = (0.1, 10.0)
AFTER = 500
"""Steps, after which saturation is looked at."""


@experiment("deep-plain", "Gradients in deep dense networks at the start", small=0.9, paper=1, needs=("cifar10",))
def deep_plain(findings: Findings, context: Context) -> None:
    """Whether gradients explode or vanish, and whether those at neighbouring inputs are alike."""
    import torch

    from trimtab.data import batches, load
    from trimtab.networks import build
    from trimtab.probes.input_gradients import gradient_correlation, neighbours

    dataset = load("cifar10", context.data_root)
    seeds = context.seeds(5)
    ratios: dict[str, list[float]] = {}
    correlations: dict[str, dict[int, float]] = {}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        inputs, targets = next(
            iter(batches(dataset.train, BATCH, dataset=dataset, generator=generator, normalize="standard"))
        )
        for case, norm in NORMS.items():
            for depth in DEPTHS:
                for scale in SCALES:
                    torch.manual_seed(seed)
                    model = build("deep-mlp", norm, depth=depth, init_scale=scale)
                    ratios.setdefault(f"{case}-{depth}-{scale:g}", []).append(gradient_ratio(model, inputs, targets))
            for depth in SHATTERED:
                torch.manual_seed(seed)
                model = build("deep-mlp", norm, depth=depth)
                lines = (neighbours(inputs[2 * i], inputs[2 * i + 1], NEIGHBOURS) for i in range(LINES))
                found = fmean(gradient_correlation(model, line).mean for line in lines)
                correlations.setdefault(f"{case}-{depth}", {})[seed] = found
    for name, several in ratios.items():
        findings.number("gradient of the first layer over that of the last", name, median(several))
    for case in NORMS:
        inside = [WITHIN[0] <= median(several) <= WITHIN[1] for name, several in ratios.items() if _is_of(name, case)]
        findings.number("networks of nine with even gradients", case, sum(inside))
    for name, by_seed in correlations.items():
        for seed, value in by_seed.items():
            findings.number("correlation of neighbouring gradients", name, value, seed=seed, unit="factor")
    findings.settings |= {"network": "deep-mlp", "batch size": BATCH, "normalize": "standard", "seeds": list(seeds)}
    findings.notes.append(
        f"Ratios are medians over {len(seeds)} seeds. Neighbouring inputs are {NEIGHBOURS} even steps from an image to "
        f"another, {LINES} such lines a seed; a line is the batch whose statistics BatchNorm takes."
    )


def gradient_ratio(model: "torch.nn.Module", inputs: "torch.Tensor", targets: "torch.Tensor") -> float:
    """The norm of the gradient of the first dense layer over that of the last; infinite if that is 0."""
    import torch
    from torch import nn

    model.train()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    loss.backward()
    first, last = (
        torch.stack([p.grad.double().norm() for p in layer.parameters() if p.grad is not None]).norm().item()
        for layer in (layers[0], layers[-1])
    )
    return measures.advantage(first, last)


def _is_of(name: str, case: str) -> bool:
    return name.startswith(f"{case}-")


@experiment("saturation", "Saturated units in a network with tanh", small=2, gpu=3, paper=3, needs=("cifar10",))
def saturation(findings: Findings, context: Context) -> None:
    """Sec. 3: the share of units with abs(tanh) above 0.95 after 500 steps."""
    probes: dict[str, Any] = {"probe": ("activations",), "probe_at": (0, AFTER), "evaluations": 1}
    shared = setup(findings, context, AFTER + 1, activation="tanh", **probes)
    runs = enter.runs_of(train_cases(context, of_methods(*METHODS), shared, context.seeds(3)))
    for case, by_seed in runs.items():
        for seed, run in by_seed.items():
            for step, result in measures.results(run, "activations"):
                words = {0: "at the start", AFTER: "after 500 steps"}.get(step)
                if words:
                    value = float(result["saturated"])
                    findings.number(f"share of saturated units {words}", case, value, seed=seed, unit="factor")
