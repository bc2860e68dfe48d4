"""What the papers report of others' work, as far as it is a formula: scales of weights, input noise, dropout."""

import numpy as np
import torch
from torch import nn

from trimtab.claims.experiments.bnp_draws import Rng, tensor
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.norms import Norm
from trimtab.theory.bounds.sides import Array, Sides
from trimtab.theory.implicit_decay import LINKS

COPIES = 20_000
"""Noisy copies of the data of a regression; each noise is there with both signs."""
SAMPLES, WIDTH = 40, 5
DROPOUT, INPUTS = 0.125, 10


@experiment("cited-theorems", "formulas of others that the papers cite", small=0.8)
def cited(findings: Findings, context: Context) -> None:
    """Ba et al.; Krogh and Hertz; Wager et al."""
    for what in ("input", "weight"):
        findings.check(f"gradient-by-{what}", lambda rng, w=what: gradients(rng)[w])  # type: ignore[misc]
    findings.check("input-noise-is-ridge", input_noise, tolerance=1e-9)
    for unit, link in (("linear", "linear"), ("logistic", "sigmoid")):
        ratios: list[float] = []

        def added(rng: Rng, name: str = link, known: list[float] = ratios) -> Sides:
            left, right = dropout(rng, name)
            known.append(left / right)
            return Sides(abs(left / right - 1), 0.1)

        findings.check(f"dropout-{unit}", added)
        findings.notes.append(
            f"Dropout of {DROPOUT} before a {unit} unit adds {np.median(ratios):.3f} times the quadratic decay to the "
            f"loss in the median draw ({min(ratios):.3f} to {max(ratios):.3f}; weights of length about 1)."
        )
    findings.settings |= {"copies": COPIES, "samples": SAMPLES, "dropout": DROPOUT}


def gradients(rng: Rng) -> dict[str, Sides]:
    """Under BN and WN, for weights w and c·w: the input's gradients, and the weight's with the second times c."""
    found: dict[str, tuple[list[Array], list[Array]]] = {"input": ([], []), "weight": ([], [])}
    samples, n, n_out = int(rng.integers(4, 12)), int(rng.integers(2, 8)), int(rng.integers(1, 8))
    factor = float(np.exp(rng.uniform(np.log(0.1), np.log(10))))
    drawn = [rng.normal(size=size) for size in ((samples, n), (n_out, n), (samples, n_out))]
    for name in ("bn", "wn"):
        norm = Norm("wn") if name == "wn" else Norm("bn", eps=1e-16)
        layer, after = norm.weight(nn.Linear(n, n_out, bias=False).double()), norm.layer(n_out, 0).double()
        weight = layer.get_parameter("parametrizations.weight.original1" if name == "wn" else "weight")
        x, above = tensor(drawn[0]).requires_grad_(), tensor(drawn[2])
        for side, scale in enumerate((1.0, factor)):
            with torch.no_grad():
                weight.copy_(scale * tensor(drawn[1]))
            by_input, by_weight = torch.autograd.grad((after(layer(x)) * above).sum(), [x, weight])
            found["input"][side].append(by_input.numpy().ravel())
            found["weight"][side].append(by_weight.numpy().ravel() * scale)
    return {
        what: Sides(np.concatenate(left), np.concatenate(right), "==", float(np.abs(np.concatenate(left)).max()))
        for what, (left, right) in found.items()
    }


def input_noise(rng: Rng) -> Sides:
    """How far least squares on noisy inputs is from ridge regression with ζ = P s², relative to it, and 1 %."""
    noise = float(rng.uniform(0.1, 1))
    x = rng.normal(size=(SAMPLES, WIDTH))
    y = x @ rng.normal(size=WIDTH) + rng.normal(size=SAMPLES)
    gram = np.zeros((WIDTH, WIDTH))
    for _ in range(10):
        away = noise * rng.normal(size=(COPIES // 10, SAMPLES, WIDTH))
        # Of x + noise and x − noise together: what is linear in the noise is not there in the mean.
        gram += np.einsum("cpi,cpj->ij", away, away, optimize=True) / COPIES
    found = np.linalg.solve(x.T @ x + gram, x.T @ y)
    ridge = np.linalg.solve(x.T @ x + SAMPLES * noise**2 * np.eye(WIDTH), x.T @ y)
    return Sides(float(np.linalg.norm(found - ridge) / np.linalg.norm(ridge)), 0.01)


def dropout(rng: Rng, link: str) -> tuple[float, float]:
    """E ℓ − ℓ over all masks of ten inputs, and ½·p/(1−p)·mean A″·Σx²w²; the label's term has no mean."""
    kept = (np.arange(1 << INPUTS)[:, None] >> np.arange(INPUTS)) & 1
    chance = DROPOUT ** (INPUTS - kept.sum(1)) * (1 - DROPOUT) ** kept.sum(1)
    x, w = rng.normal(size=(200, INPUTS)), rng.normal(size=INPUTS) / np.sqrt(INPUTS)
    noisy = (kept * w / (1 - DROPOUT)) @ x.T
    more = float(np.mean(chance @ LINKS[link].potential(noisy) - LINKS[link].potential(x @ w)))
    decay = np.mean(LINKS[link].curvature(x @ w) * (x**2 @ w**2))
    return more, float(0.5 * DROPOUT / (1 - DROPOUT) * decay)
