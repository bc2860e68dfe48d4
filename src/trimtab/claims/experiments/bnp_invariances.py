"""bnp, Sec. 3.5: what LayerNorm and GroupNorm share with BatchNorm, and BNP does not, and what they do not share."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.claims.experiments.bnp_draws import Rng, tensor
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.networks import build
from trimtab.norms import Norm
from trimtab.theory.bounds.sides import Sides

UNCHANGED = 1e-5


@experiment("bnp-invariances", "bnp: what LN, GN and BN have in common", small=0.2)
def invariances(findings: Findings, context: Context) -> None:
    """Sec. 3.5."""
    findings.check("gn-of-one-group", gn_of_one_group)
    findings.check("scale-of-weights", norms_take_out_the_scale)
    findings.check("scale-of-weights-bnp", bnp_does_not)
    findings.check("one-sample-at-a-time", lambda rng: one_sample_at_a_time(rng, ("ln", "gn")))
    beside = findings.check("one-sample-at-a-time-bn", lambda rng: one_sample_at_a_time(rng, ("bn",)))
    findings.notes.append(
        "BatchNorm computes the same for a sample alone and in a batch, in training and in inference, in "
        f"{beside.holds} of {beside.draws} draws."
    )


def drawn_shape(rng: Rng) -> tuple[int, ...]:
    """Samples, channels, and up to three dimensions of positions."""
    return int(rng.integers(2, 9)), 4 * int(rng.integers(1, 6)), *map(int, rng.integers(1, 6, size=rng.integers(4)))


def gn_of_one_group(rng: Rng) -> Sides:
    """A group of all channels against torch's LayerNorm over channels and positions."""
    shape = drawn_shape(rng)
    x = tensor(rng.normal(size=shape) * rng.uniform(0.2, 5) + rng.normal())
    layer = Norm("gn", group_size=shape[1]).layer(shape[1], len(shape) - 2).double()
    with torch.no_grad():
        found, expected = layer(x), nn.functional.layer_norm(x, shape[1:])
    return Sides(found.numpy(), expected.numpy(), "==")


def scale_effect(rng: Rng) -> Callable[[str], float]:
    """By how much the output of a network changes if the weights of all layers but the last are scaled.

    Which network, data and factor is drawn once, for all norms: they stand before the activation.
    """
    network, factor = str(rng.choice(["mlp2x100", "cnn5"])), float(np.exp(rng.uniform(np.log(0.1), np.log(10))))
    seed = int(rng.integers(2**31))

    def of(norm: str) -> float:
        torch.manual_seed(seed)
        settings = {} if norm == "none" else {"before_activation": True, "eps": 1e-12}
        model, x = build(network, Norm(norm, **settings)).double(), torch.rand(4, 3, 32, 32).double()  # type: ignore[arg-type]
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        with torch.no_grad():
            first: Tensor = model(x)
            for layer in layers[:-1]:
                layer.weight *= factor
            return float((model(x) - first).norm() / first.norm())

    return of


def norms_take_out_the_scale(rng: Rng) -> Sides:
    """The largest change with LN, GN and BN."""
    return Sides(max(map(scale_effect(rng), ("ln", "gn", "bn"))), UNCHANGED)


def bnp_does_not(rng: Rng) -> Sides:
    """BNP's network has no norm, so that its output changes."""
    return Sides(UNCHANGED, scale_effect(rng)("none"))


def one_sample_at_a_time(rng: Rng, names: tuple[str, ...]) -> bool:
    """Whether each output is the same, bit by bit, for a sample alone and in a batch, in training and in inference."""
    shape = drawn_shape(rng)
    x = torch.as_tensor(1 + 2 * rng.normal(size=shape), dtype=torch.float32)
    for name in names:
        layer = Norm(name).layer(shape[1], len(shape) - 2)
        whole = layer.train()(x)
        if not torch.equal(layer.eval()(x), whole):
            return False
        for mode in (True, False):
            layer.train(mode)
            for i in range(len(x)):
                try:
                    alone = layer(x[i : i + 1])[0]
                except ValueError:  # BatchNorm refuses a single number for each channel
                    return False
                if not torch.equal(alone, whole[i]):
                    return False
    return True
