"""Training with the condition numbers of layers measured along the way, in a precision that shows them."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab.claims.experiments.registry import Context
from trimtab.claims.kept import kept
from trimtab.data import batches, load
from trimtab.networks import build

if TYPE_CHECKING:
    from trimtab import BNP
    from trimtab.probes import Conditioning, ConditioningResult


@dataclass(frozen=True, slots=True)
class ProbedRun:
    """What is trained, by plain SGD.

    Attributes:
        network: By name.
        norm: Its normalization.
        bnp: Whether its gradients are preconditioned.
        lr: The learning rate.
        batch_size: Samples per step.
        normalize: As in the settings of a run.
        seed: Of the weights and of the order of the data.
        double: Whether it is trained in double precision.
        data: The data set.
    """

    network: str
    norm: str
    bnp: bool
    lr: float
    batch_size: int
    normalize: str
    seed: int
    double: bool = False
    data: str = "cifar10"


Probes = Callable[["BNP | None"], Mapping[str, "Conditioning"]]
"""Makes the probes by name; told the BNP of the run, if there is one."""


def weight_layers(model: nn.Module) -> list[str]:
    """The names of the layers with weights, in order."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def middle_layer(network: str, norm: str = "none") -> str:
    """The name of the layer in the middle of a network with a norm; of two such layers, the later one."""
    layers = weight_layers(build(network, norm))
    return layers[len(layers) // 2]


def cross_entropy(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss that is trained and probed."""
    return F.cross_entropy(model(batch[0]), batch[1])


def probe_along(
    context: Context, run: ProbedRun, steps: set[int], probes: Probes
) -> dict[int, dict[str, "ConditioningResult"]]:
    """Train a network, and probe it at these numbers of steps taken, on the batch of the next step.

    What was trained and probed before is not trained again: an experiment has one set of probes for a network.

    Returns:
        By the number of steps and the name of the probe.
    """
    from trimtab.probes.conditioning import ConditioningResult, LayerConditioning

    def compute() -> dict[str, dict[str, Any]]:
        found = _probe_along(context, run, steps, probes)
        return {str(step): {name: asdict(result) for name, result in of.items()} for step, of in found.items()}

    def read(content: dict[str, Any]) -> ConditioningResult:
        layers = {name: LayerConditioning(**layer) for name, layer in content["layers"].items()}
        return ConditioningResult(**{**content, "layers": layers})

    asked = hashlib.sha256(repr((run, sorted(steps))).encode()).hexdigest()[:12]
    looked = kept(context.work / f"probed-{asked}.json", compute)
    return {int(step): {name: read(result) for name, result in of.items()} for step, of in looked.items()}


def _probe_along(
    context: Context, run: ProbedRun, steps: set[int], probes: Probes
) -> dict[int, dict[str, "ConditioningResult"]]:
    import trimtab

    dataset = load(run.data, context.data_root)
    torch.manual_seed(run.seed)
    model = build(run.network, run.norm, input_shape=dataset.input_shape, classes=dataset.classes)
    model = (model.double() if run.double else model).to(context.device)
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.SGD(model.parameters(), run.lr)
    bnp = trimtab.BNP(model).attach(optimizer) if run.bnp else None
    probing = probes(bnp)
    generator = torch.Generator().manual_seed(run.seed)
    epochs = batches(
        dataset.train,
        run.batch_size,
        dataset=dataset,
        generator=generator,
        normalize=run.normalize,  # type: ignore[arg-type]
        drop_last=True,
    )
    found: dict[int, dict[str, ConditioningResult]] = {}
    step, last = 0, max(steps)
    while True:
        for images, targets in epochs:
            batch = images.to(context.device, dtype), targets.to(context.device)
            if step in steps:
                found[step] = {name: probe(model, cross_entropy, batch) for name, probe in probing.items()}
            if step == last:
                return found
            optimizer.zero_grad()
            cross_entropy(model, batch).backward()
            optimizer.step()
            step += 1
