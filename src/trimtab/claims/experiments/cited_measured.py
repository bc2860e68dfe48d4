"""What the bnp paper reports of others' work, by measurements on networks."""

import math
from collections.abc import Collection
from statistics import median

import torch
from torch import Tensor, nn

from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.data import Dataset, batches, load

WIDTH, DEPTH, SAMPLES = 100, 100, 1000
LAYERS = (25, 100)
DRAWS = 10
BATCH, STEPS, LOOKS = 60, 1000, (0, 500, 1000)


@experiment("cited-rank-collapse", "Stable rank in random deep linear networks", small=0.1, gpu=0.1, paper=0.1)
def rank_collapse(findings: Findings, context: Context) -> None:
    """Daneshmand et al.: Gaussian weights, white inputs, with and without BatchNorm after each layer."""
    for seed in context.seeds(DRAWS):
        for method in ("vanilla", "bn"):
            ranks = stable_ranks(method == "bn", seed)
            for layer in LAYERS:
                findings.number(f"stable rank at layer {layer}", method, ranks[layer - 1], seed=seed, unit="factor")
            if seed == context.seeds(DRAWS)[0]:
                points = [(layer + 1, ranks[layer]) for layer in range(0, DEPTH, 3)]
                findings.curve("stable rank of the first draw over layers", method, points)
    findings.settings |= {"width": WIDTH, "depth": DEPTH, "samples": SAMPLES}


def stable_ranks(normalized: bool, seed: int) -> list[float]:
    """‖A‖_F²/‖A‖₂² of the activations after each layer of a random linear network."""
    from trimtab.probes import stable_rank

    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    found = []
    for _ in range(DEPTH):
        h = h @ torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=generator) / math.sqrt(WIDTH)
        if normalized:
            h = (h - h.mean(0)) / h.std(0, correction=0)
        found.append(stable_rank(h))
    return found


@experiment("cited-hessian", "κ of a unit's Hessian with and without BN", small=0.4, gpu=1, paper=2, needs=("cifar10",))
def hessian(findings: Findings, context: Context) -> None:
    """Lian and Liu, in the network of bnp's Fig. 8: the first output unit, in double precision."""
    dataset = load("cifar10", context.data_root)
    for seed in context.seeds(5 if context.size == "paper" else 3):
        for method in ("vanilla", "bn"):
            found = conditions(dataset, method, seed, STEPS, LOOKS)
            findings.number("κ of a unit's Hessian", method, median(found.values()), seed=seed, unit="factor")
            for step, value in found.items():
                findings.number(f"κ of a unit's Hessian at step {step}", method, value, seed=seed, unit="factor")
        context.show(f"seed {seed} is done")
    findings.settings |= {"network": "mlp2x100", "data": "cifar10", "batch_size": BATCH, "steps": STEPS}
    findings.notes.append("κ of a unit's Hessian is the median over the steps 0, 500 and 1000.")


def conditions(dataset: Dataset, method: str, seed: int, steps: int, looks: Collection[int]) -> dict[int, float]:
    """κ of the Hessian of the first output unit's weights and bias, on the batch of the step, along a training."""
    from torch.nn import functional as F

    from trimtab.networks import build
    from trimtab.probes import Conditioning
    from trimtab.training.recipes import MLP_RATES

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    torch.manual_seed(seed)
    model = build("mlp2x100", "bn" if method == "bn" else "none", input_shape=dataset.input_shape).double()
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    optimizer = torch.optim.SGD(model.parameters(), MLP_RATES["cifar10", BATCH][method])
    probe = Conditioning(units=1, only=(last,))
    generator = torch.Generator().manual_seed(seed)
    epochs = batches(dataset.train, BATCH, dataset=dataset, generator=generator, normalize="unit", drop_last=True)
    found: dict[int, float] = {}
    step = 0
    while True:
        for inputs, targets in epochs:
            batch = inputs.double(), targets
            if step in looks:
                found[step] = probe(model, loss_fn, batch).layers[last].hessian
            if step == steps:
                return found
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()
            step += 1
