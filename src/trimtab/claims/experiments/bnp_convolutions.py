"""bnp, Sec. 4: convolutions as products with matrices of patches, and the statistics of those."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.functional import hessian

from trimtab.claims.experiments.bnp_draws import Rng, tensor
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory import bounds
from trimtab.theory.bounds.sides import Array, Form, Sides

SIZES = (4, 8, 16, 32, 64)
KERNEL = 3
MAPS = 10
"""Errors of statistics are medians over so many batches."""


@experiment("bnp-convolutions", "bnp: convolutions as matrices", small=0.2)
def convolutions(findings: Findings, context: Context) -> None:
    """Lemma 8, Prop. 9, Fig. 1, eqs. 19 to 22, Prop. 10."""
    for form in ("printed", "corrected"):
        findings.check(f"product-{form}", lambda rng, f=form: product(rng, f))  # type: ignore[misc]
    findings.check("convolution-hessian", whole_hessian)
    findings.check("columns-as-drawn", columns_as_drawn)
    _site_statistics(findings)
    findings.check("site-means-any-kernel", lambda rng: site_means(rng, any_kernel=True))
    findings.check("site-means", lambda rng: site_means(rng, any_kernel=False))


def _site_statistics(findings: Findings) -> None:
    slopes = {}
    for kind in ("relu", "shifted"):
        errors = np.array([np.median([site_errors(kind, size, draw) for draw in range(MAPS)], 0) for size in SIZES])
        slopes[kind] = np.polyfit(np.log(SIZES), np.log(errors), 1)[0]
        for column, what in enumerate(("mean", "variance")):
            findings.curve(f"error of the {what}", kind, list(zip(SIZES, errors[:, column], strict=True)))
    for column, what in enumerate(("mean", "variance")):
        each = {kind: float(slope[column]) for kind, slope in slopes.items()}
        findings.number("slope", what, max(each.values()))
        findings.notes.append(
            f"Slope of the median error of the {what} over the size of the map, log-log: "
            + ", ".join(f"{slope:.2f} for {kind} maps" for kind, slope in each.items())
            + "; the flatter one counts."
        )


def product(rng: Rng, form: Form) -> Sides:
    """Lemma 8, against torch's convolution."""
    channels, kernel = int(rng.integers(1, 4)), int(rng.choice([3, 5]))
    inputs = rng.normal(size=(int(rng.integers(1, 4)), channels, *rng.integers(3, 8, size=2)))
    weight, bias = rng.normal(size=(channels, kernel, kernel)), float(rng.normal())
    outputs = F.conv2d(tensor(inputs), tensor(weight)[None], tensor(np.array([bias])), padding=kernel // 2)[:, 0]
    return bounds.convolution_as_product(outputs.numpy(), inputs, weight, bias, form=form)


def whole_hessian(rng: Rng) -> Sides:
    """Prop. 9, with a loss that couples the positions of a sample."""
    samples, channels = (int(n) for n in rng.integers(1, 3, size=2))
    height, width = (int(n) for n in rng.integers(2, 5, size=2))
    inputs = rng.normal(size=(samples, channels, height, width)) + rng.normal()
    w, mixing = tensor(0.3 * rng.normal(size=9 * channels + 1)), tensor(rng.normal(size=(3, height * width)))

    def activations(v: Tensor) -> Tensor:
        kernels = v[1:].view(1, channels, KERNEL, KERNEL).transpose(2, 3)
        out = F.conv2d(tensor(inputs), kernels, v[:1], padding="same")[:, 0]
        return out.transpose(1, 2).reshape(samples, -1)

    def losses(a: Tensor) -> Tensor:
        return torch.logsumexp(torch.tanh(a) @ mixing.T, -1)

    blocks = torch.stack([hessian(losses, a) for a in activations(w)])
    whole = hessian(lambda v: losses(activations(v)).mean(), w)
    return bounds.convolution_hessian(whole.numpy(), inputs, KERNEL, blocks.numpy())


def columns_as_drawn(rng: Rng) -> Sides:
    """Fig. 1: columns 1 and 6 of H_p, and what a kernel gives that is 1 at w₁₁ or w₃₂ alone."""
    image = rng.normal(size=(1, 1, 4, 3))
    columns = bounds.unfold(image, KERNEL)
    found = []
    for row, column in ((0, 0), (2, 1)):
        kernel = np.zeros((1, 1, KERNEL, KERNEL))
        kernel[0, 0, row, column] = 1
        found.append(F.conv2d(tensor(image), tensor(kernel), padding=1)[0, 0].numpy().T.ravel())
    return Sides(np.stack(found, 1), columns[:, [0, 5]], "==")


def site_errors(kind: str, size: int, draw: int) -> Array:
    """Median errors of the mean and of the variance of sites by those of their channel (eqs. 19 to 22)."""
    rng = np.random.default_rng([101, size, draw])
    maps = rng.normal(size=(4, 6, size, size))
    maps = np.maximum(maps, 0) if kind == "relu" else maps + rng.normal(size=(6, 1, 1))
    by_mean = bounds.site_means(maps, KERNEL).left
    by_variance = bounds.unfold(maps, KERNEL).var(0) - np.repeat(maps.var((0, 2, 3)), KERNEL**2)
    return np.array([np.median(by_mean), np.median(np.abs(by_variance))])


def site_means(rng: Rng, *, any_kernel: bool) -> Sides:
    """Prop. 10, for maps from 1×1 to 8×8 and kernels up to 9×9, or for kernels of which half fits into the map."""
    while True:
        height, width = (int(n) for n in rng.integers(1, 9, size=2))
        kernel = int(rng.choice([3, 5, 7, 9]))
        if any_kernel or kernel // 2 <= min(height, width):
            break
    maps = rng.normal(size=(int(rng.integers(1, 4)), int(rng.integers(1, 4)), height, width))
    return bounds.site_means(maps + 3 * rng.normal(), kernel)
