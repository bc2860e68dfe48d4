"""bnp, Prop. 6 and after it: how many operations a step of BNP takes, and one of BatchNorm."""

from itertools import product
from typing import Literal

import torch
from torch import Tensor, nn

from trimtab.claims.experiments.bnp_draws import Rng
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.networks import build
from trimtab.theory import bounds
from trimtab.theory.bounds.sides import Form, Sides

LARGEST = 200
IN_SECTION_5: tuple[tuple[str, int, tuple[int, ...], tuple[int, ...]], ...] = (
    ("mlp3x100", 10, (3, 32, 32), (60, 6, 1)),
    ("mlp2x100", 10, (3, 32, 32), (16, 60, 256, 512)),
    ("cnn5", 10, (3, 32, 32), (128, 8, 4, 3, 2, 1)),
    ("resnet110", 10, (3, 32, 32), (128,)),
    ("preact110", 100, (3, 32, 32), (128,)),
    ("resnet18", 1000, (3, 224, 224), (256,)),
)
"""Network, classes, input and batch sizes of the paper's Sec. 5."""
FORMS: tuple[Form, ...] = ("printed", "corrected")


@experiment("bnp-costs", "bnp: operations of a step, counted", small=0.2)
def costs(findings: Findings, context: Context) -> None:
    """Prop. 6, and BatchNorm's cost beside it."""
    for form in FORMS:
        findings.check(f"bnp-count-{form}", lambda rng, f=form: bounds.bnp_operations(*sizes(rng), form=f))  # type: ignore[misc]
        findings.check(f"bn-count-{form}", lambda rng, f=form: bounds.bn_operations(*sizes(rng)[::2], form=f))  # type: ignore[misc]
        findings.check(f"bn-dearer-{form}", lambda rng, f=form: dearer_where_said(rng, f))  # type: ignore[misc]
    for form in FORMS:
        layers = layers_in_section_5(form)
        findings.number("share of layers", form, sum(fits for *_, fits in layers) / len(layers))
        failing: dict[str, set[int]] = {}
        for name, batch, fits in layers:
            if not fits:
                failing.setdefault(name, set()).add(batch)
        listed = "; ".join(f"{name}, {', '.join(map(str, sorted(each)))}" for name, each in failing.items())
        findings.notes.append(
            f"By the {form} threshold BNP is not the cheaper one in some layers of these networks, at these batch "
            f"sizes: {listed or 'none'}."
        )
    findings.settings["sizes up to"] = LARGEST


def sizes(rng: Rng) -> tuple[int, int, int]:
    """n, n′ and N."""
    n_in, n_out, batch = (int(n) for n in rng.integers(1, LARGEST + 1, size=3))
    return n_in, n_out, max(batch, 2)  # of one sample BatchNorm's σ is 0


def dearer_where_said(rng: Rng, form: Form) -> Sides:
    """BNP's counted operations, and BN's, where the threshold says that they are fewer.

    Terms with a single size are taken off on both sides, as the paper leaves them out of its threshold.
    """
    while True:
        n_in, n_out, batch = sizes(rng)
        if bounds.cheaper_than_bn(n_out, batch, form=form).slack > 0:
            break
    bnp = float(bounds.bnp_operations(n_in, n_out, batch).left) - (n_out + 8 * n_in + 4)
    return Sides(bnp, float(bounds.bn_operations(n_in, batch).left) - (8 * n_in + 1))


def layers_in_section_5(form: Form) -> list[tuple[str, int, bool]]:
    """Network, batch size, and whether BNP is the cheaper one, for each layer."""
    return [
        (name, batch, bounds.cheaper_than_bn(n_out, batch, form=form).slack > 0)
        for name, classes, shape, batches in IN_SECTION_5
        for n_out, batch in product(outputs_of(name, classes, shape), batches)
    ]


def outputs_of(name: str, classes: int, shape: tuple[int, ...]) -> list[int]:
    """n′ of each layer of a network: its outputs or output channels."""
    found: list[int] = []

    def see(layer: nn.Module, inputs: tuple[Tensor], _: Tensor) -> None:
        found.append(len(layer.get_parameter("weight")))

    with torch.device("meta"):
        stem: Literal["cifar", "imagenet"] = "imagenet" if shape[-1] > 32 else "cifar"
        network = build(name, input_shape=shape, classes=classes, stem=stem)
        for layer in network.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.register_forward_hook(see)
        network(torch.empty(2, *shape))
    return found
