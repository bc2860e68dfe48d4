"""bnp, Secs. 3.3 and 4, on trained networks: how near to the best the scaling is, channels or pixels, single images."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trimtab
from trimtab.claims.experiments.bnp_scaling import best_conditioning, conditioning, independent
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.data import Dataset, batches, load
from trimtab.networks import build
from trimtab.probes import Conditioning
from trimtab.records import whole_file
from trimtab.theory import bounds
from trimtab.theory.bounds.inputs import augment
from trimtab.theory.bounds.sides import Array
from trimtab.training.recipes import CNN_RATES, MLP_RATES

Weights = Mapping[str, Tensor]

TRAINING = {"mlp3x100": (60, MLP_RATES["cifar10", 60]["bnp"]), "cnn5": (128, CNN_RATES[128]["bnp"])}
"""Batch size and learning rate."""
AT = (0, 1000, 2000)
"""Steps at which weights are kept."""
LAYERS = {
    "mlp3x100": {"1": "layer1", "3": "layer2", "5": "layer3", "7": "layer4"},
    "cnn5": {"0": "conv1", "3": "conv2", "6": "conv3", "9": "dense1", "11": "dense2"},
}
BATCH, SINGLE = 128, 20
IMAGES, ROWS = 5000, 20_000
"""For the best scaling: images for dense layers, and patches for convolutions at most."""


@experiment("bnp-layers", "bnp: layers of trained networks", small=10, seeds=(2, 3), needs=("cifar10",))
def layers(findings: Findings, context: Context) -> None:
    """Networks trained with BNP at the rates of the paper's tables; seeds decide the weights and the order of data."""
    data = load("cifar10", context.data_root)
    raw: float | None = None
    for seed in context.seeds(3):
        kept = {name: trained(context, data, name, seed) for name in LAYERS}
        context.show(f"seed {seed}: trained")
        channels_or_pixels(findings, kept["cnn5"], data, seed)
        single_images(findings, kept["cnn5"], data, seed)
        for name, weights in kept.items():
            raw = near_the_best(findings, model_of(name, weights[AT[-1]]), name, data, seed, raw)
        context.show(f"seed {seed}: measured")
    findings.notes.append(
        "The inputs of mlp3x100's first layer are the images, the same ones for all seeds: it is measured once."
    )
    findings.settings |= {
        "data": "cifar10",
        "method": "bnp",
        "steps": AT[-1],
        **{f"batch size and rate of {name}": list(each) for name, each in TRAINING.items()},
        "images for the best scaling": IMAGES,
    }


def trained(context: Context, data: Dataset, name: str, seed: int) -> dict[int, Weights]:
    """Weights at some steps, kept in the experiment's folder: a second call goes on from the last ones that are there.

    The order of the data is drawn anew at each of these steps.
    """
    path = context.work / f"{name}-{seed}.pt"
    found: dict[int, Weights] = {}
    averages = None
    if path.is_file():
        found, averages = torch.load(path, weights_only=True)
        if AT[-1] in found:
            return found
    torch.manual_seed(seed)
    size, rate = TRAINING[name]
    model = build(name).to(context.device)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    with trimtab.BNP(model) as bnp:
        bnp.attach(optimizer)
        if averages is not None:
            model.load_state_dict(dict(found[max(found)]))
            bnp.load_state_dict(averages)
        found.setdefault(AT[0], _copy_of(model))
        for first, last in itertools.pairwise(AT):
            if last in found:
                continue
            order = torch.Generator().manual_seed(seed + first)
            epoch = batches(data.train, size, dataset=data, generator=order, normalize="unit", drop_last=True)
            endless = itertools.chain.from_iterable(itertools.repeat(epoch))
            for inputs, targets in itertools.islice(endless, last - first):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs.to(context.device)), targets.to(context.device)).backward()
                optimizer.step()
            found[last] = _copy_of(model)
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                torch.save((found, bnp.state_dict()), file)
    return found


def _copy_of(model: nn.Module) -> Weights:
    return {key: value.detach().cpu().clone() for key, value in model.state_dict().items()}


def model_of(name: str, weights: Weights) -> nn.Module:
    """The network with these weights, in double precision."""
    model = build(name)
    model.load_state_dict(dict(weights))
    return model.double()


def images(data: Dataset, number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Some training images, drawn by a seed."""
    generator = torch.Generator().manual_seed(seed)
    drawn = batches(data.train, number, dataset=data, generator=generator, normalize="unit")
    inputs, targets = next(iter(drawn))
    return inputs.double(), targets


@torch.no_grad()
def inputs_of(model: nn.Module, names: Sequence[str], x: Tensor) -> dict[str, Tensor]:
    """What layers get."""
    found: dict[str, Tensor] = {}
    modules = dict(model.named_modules())

    def keep(name: str) -> Any:
        return lambda module, inputs, output: found.__setitem__(name, inputs[0])

    hooks = [modules[name].register_forward_hook(keep(name)) for name in names]
    model(x)
    for hook in hooks:
        hook.remove()
    return found


def patches(x: Tensor) -> Array:
    """𝓗 of a 3×3 convolution without padding, one row for each position."""
    columns = F.unfold(x, 3)
    return np.asarray(columns.transpose(1, 2).reshape(-1, columns.shape[1]).numpy())


def channels_or_pixels(findings: Findings, weights: Mapping[int, Weights], data: Dataset, seed: int) -> None:
    """At the end of Sec. 4: κ(𝓗̂) after the input was normalized by channel or by pixel."""
    names = {key: name for key, name in LAYERS["cnn5"].items() if name.startswith("conv")}
    for step in AT[:2]:
        seen = inputs_of(model_of("cnn5", weights[step]), list(names), images(data, BATCH, seed)[0])
        for key, name in names.items():
            for by in ("channel", "pixel"):
                rows = augment(patches(torch.as_tensor(bounds.normalized_input(seen[key].numpy(), by))))
                value = bounds.condition_number(np.linalg.qr(rows, mode="r"))
                findings.number(f"κ of 𝓗̂, step {step}", f"{name}-by-{by}", value, seed=seed, unit="factor")


def single_images(findings: Findings, weights: Mapping[int, Weights], data: Dataset, seed: int) -> None:
    """At the end of Sec. 4: κ(𝓗̂) and κ(𝓗̂P) of batches of one image, P with the statistics of that image."""
    names = {key: name for key, name in LAYERS["cnn5"].items() if name.startswith("conv")}
    probe = Conditioning(units=0, only=tuple(names))
    inputs, targets = images(data, SINGLE, seed)
    for step in (AT[0], AT[-1]):
        model = model_of("cnn5", weights[step])
        found = [probe(model, _loss, (inputs[i : i + 1], targets[i : i + 1])).layers for i in range(SINGLE)]
        measure = f"κ of 𝓗̂, one image, step {step}"
        for key, name in names.items():
            known = [each[key] for each in found if key in each]
            for case, values in (
                (name, [each.inputs for each in known]),
                (f"{name}-preconditioned", [each.normalized for each in known]),
            ):
                findings.number(measure, case, median(values), seed=seed, unit="factor")


def _loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def near_the_best(
    findings: Findings, model: nn.Module, name: str, data: Dataset, seed: int, raw: float | None
) -> float | None:
    """After Theorem 4: κ(Ĝ) over the κ of the best scaling that a search finds, for each layer.

    Theorem 4 is for full column rank: columns that do not vary, of units that are never active, and those that depend
    on others, of units that are hardly ever, are left out.

    Returns:
        The ratio of the layer that sees the images, for the next seed.
    """
    sees_images = next(iter(LAYERS[name]))
    seen = inputs_of(model, list(LAYERS[name]), images(data, IMAGES, 0 if name == "mlp3x100" else seed)[0])
    for key, layer in LAYERS[name].items():
        once = name == "mlp3x100" and key == sees_images
        ratio = raw if once and raw is not None else normalized_over_best(seen[key], seed)
        raw = ratio if once else raw
        findings.number("normalized over best", f"{name}-{layer}", ratio, seed=seed, unit="factor")
    return raw


def normalized_over_best(x: Tensor, seed: int) -> float:
    """κ(Ĝ)/best of a layer, from its inputs; those of a 3×3 convolution have the statistics of their channels."""
    rows = x.numpy()
    mean, sigma = rows.mean(0), rows.std(0)
    if x.ndim == 4:
        some = max(1, ROWS // ((x.shape[2] - 2) * (x.shape[3] - 2)))
        rows = patches(x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:some]])
        mean, sigma = (np.repeat(of(x.numpy(), (0, 2, 3)), 9) for of in (np.mean, np.std))
    varies = rows.std(0) > 1e-12 * np.abs(rows).max()
    centred = np.column_stack([np.ones(len(rows)), (rows - mean)[:, varies]])
    gram, scaling = centred.T @ centred / len(rows), np.append(1.0, 1 / sigma[varies])
    kept = independent(gram)
    gram, scaling = gram[np.ix_(kept, kept)], scaling[kept]
    found = conditioning(gram, scaling)
    return found / min(found, best_conditioning(gram))
