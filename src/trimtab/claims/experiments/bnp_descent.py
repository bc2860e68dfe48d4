"""bnp, Secs. 2 and 3.1 to 3.2: gradient descent near a minimum, and what a change of variables makes of it."""

import math
from itertools import pairwise

import numpy as np
import torch
from torch.autograd.functional import hessian

from trimtab.claims.experiments.bnp_draws import Rng, definite, tensor
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory import bounds
from trimtab.theory.bounds.sides import Array, Sides

EPSILON = 0.01
STEPS = 8
OTHER_RATES = 1000


@experiment("bnp-descent", "bnp: gradient descent near a minimum", small=0.1)
def descent(findings: Findings, context: Context) -> None:
    """Eqs. 3, 5, 6 and 8, and Theorem 1."""
    findings.check("contraction", lambda rng: contracts(rng, rng.uniform(0.05, 1.95)), tolerance=EPSILON)
    findings.check("growth-beyond", grows)
    for name, singular in (("rate", False), ("rate-singular", True)):
        findings.check(f"optimal-{name}", lambda rng, s=singular: bounds.optimal_contraction(curved(rng, s)))  # type: ignore[misc]
        findings.check(f"no-better-{name}", lambda rng, s=singular: no_better_rate(curved(rng, s), rng))  # type: ignore[misc]
    findings.check("descent-in-z", descent_in_z)
    findings.check("renorm-forms", renorm_forms)
    findings.check("flat-along-scalings", flat_along_scalings)
    any_rate, small_rate = (
        findings.check(name, lambda rng, r=rates: to_the_manifold(rng, *r), tolerance=EPSILON)  # type: ignore[misc]
        for name, rates in (("contraction-any-rate", (0.1, 10.0)), ("contraction-small-rate", (0.1, 1.95)))
    )
    findings.notes.append(
        "Theorem 1 at learning rates from 0.1/λ_max to 10/λ_max, with rates of more than 2/λ_max among them: the "
        f"contraction holds for {any_rate.holds} of {any_rate.draws} draws; at those below 1.95/λ_max for "
        f"{small_rate.holds}."
    )
    findings.settings |= {"starts within": 1e-3, "epsilon": EPSILON, "steps": STEPS}


class _Fit:
    """½ mean (tanh(Xθ) − tanh(Xθ*))²: a unit that fits its data at θ*, with a definite Hessian there."""

    def __init__(self, rng: Rng) -> None:
        n = int(rng.integers(2, 6))
        self.inputs = rng.normal(size=(4 * n, n)) * np.exp(0.5 * rng.normal(size=n))
        self.optimum = rng.normal(size=n) / n
        self.targets = np.tanh(self.inputs @ self.optimum)

    def gradient(self, theta: Array) -> Array:
        out = np.tanh(self.inputs @ theta)
        return np.asarray(self.inputs.T @ ((out - self.targets) * (1 - out**2)) / len(out))

    @property
    def hessian(self) -> Array:
        slopes = 1 - self.targets**2
        return np.asarray((self.inputs.T * slopes**2) @ self.inputs / len(slopes))

    def distances(self, rng: Rng, learning_rate: float, steps: int) -> list[float]:
        away = rng.normal(size=len(self.optimum))
        theta = self.optimum + 1e-3 * rng.uniform(0.1, 1) * away / np.linalg.norm(away)
        found = []
        for _ in range(steps + 1):
            found.append(float(np.linalg.norm(theta - self.optimum)))
            theta = theta - learning_rate * self.gradient(theta)
        return found


def contracts(rng: Rng, share: float) -> Sides:
    """Eq. 5, at α = share/λ_max."""
    fit = _Fit(rng)
    rate = share / float(np.linalg.eigvalsh(fit.hessian)[-1])
    return bounds.contraction(fit.distances(rng, rate, STEPS), fit.hessian, rate)


def grows(rng: Rng) -> Sides:
    """Eq. 5 beyond its range: after 20 steps at α = 2.5/λ_max the error is larger than at the start."""
    fit = _Fit(rng)
    errors = fit.distances(rng, 2.5 / float(np.linalg.eigvalsh(fit.hessian)[-1]), 20)
    return Sides(errors[0], errors[-1])


def curved(rng: Rng, singular: bool) -> Array:
    """A Hessian at a minimum."""
    size = int(rng.integers(3, 9))
    return definite(rng, size, int(rng.integers(2, size)) if singular else None)


def no_better_rate(matrix: Array, rng: Rng) -> Sides:
    """Eq. 6: the rate of the best α, and the smallest one of 1,000 others."""
    values = np.linalg.eigvalsh(matrix)
    values = values[values > 1e-9 * values[-1]]
    best = float(np.abs(1 - bounds.optimal_learning_rate(matrix) * values).max())
    others = rng.uniform(0, 2.2 / values[-1], size=OTHER_RATES)
    return Sides(best, float(np.abs(1 - others[:, None] * values).max(1).min()))


def descent_in_z(rng: Rng) -> Sides:
    """Eqs. 7 and 8: ten steps in z, with θ = Pz, and ten in θ with PPᵀ times the gradient."""
    fit = _Fit(rng)
    size = len(fit.optimum)
    change = rng.normal(size=(size, size)) + 2 * np.eye(size)
    theta = fit.optimum + 0.5 * rng.normal(size=size)
    z = np.linalg.solve(change, theta)
    rate = 1 / float(np.linalg.norm(change, 2) ** 2 * np.linalg.norm(fit.inputs, 2) ** 2 / len(fit.inputs))
    in_z, in_theta = [], []
    for _ in range(10):
        z = z - rate * change.T @ fit.gradient(change @ z)
        theta = theta - rate * change @ change.T @ fit.gradient(theta)
        in_z.append(change @ z)
        in_theta.append(theta)
    scale = float(np.linalg.norm(change, 2) * np.linalg.norm(z))
    return Sides(np.array(in_z), np.array(in_theta), "==", scale)


def renorm_forms(rng: Rng) -> Sides:
    """Eq. 3: what the layer computes with r and d not clipped, and normalizing by the running statistics."""
    from trimtab.norms import BatchRenorm

    shape = (int(rng.integers(2, 9)), int(rng.integers(1, 6)), *map(int, rng.integers(2, 5, size=rng.integers(3))))
    x = tensor(rng.normal(size=shape) * rng.uniform(0.5, 3) + rng.normal())
    layer = BatchRenorm(shape[1], r_max=1e9, d_max=1e9, warmup=0, r_steps=0, d_steps=0).double()
    with torch.no_grad():
        layer.running_mean.copy_(tensor(rng.normal(size=shape[1])))
        layer.running_var.copy_(tensor(rng.uniform(0.1, 4, size=shape[1])))
        mean, variance = (
            each.view(-1, *[1] * (len(shape) - 2)).clone() for each in (layer.running_mean, layer.running_var)
        )
        found = layer(x)
        return Sides(found.numpy(), ((x - mean) / (variance + layer.eps).sqrt()).numpy(), "==")


def flat_along_scalings(rng: Rng) -> Sides:
    """Theorem 1: a ReLU network with two hidden layers that fits its data, and the scalings of its hidden units.

    Networks whose units are all dead, where the Hessian is 0, are drawn again.
    """
    widths = (2, 3, 2, 1)
    sizes = [(b, a) for a, b in pairwise(widths)]
    ends = np.cumsum([0, *[math.prod(size) for size in sizes]])
    theta, x = tensor(rng.normal(size=ends[-1])), tensor(rng.normal(size=(12, widths[0])))

    def output(v: torch.Tensor) -> torch.Tensor:
        h = x
        for number, size in enumerate(sizes):
            h = h @ v[ends[number] : ends[number + 1]].view(size).T
            h = torch.relu(h) if number + 1 < len(sizes) else h
        return h

    target = output(theta)
    matrix = hessian(lambda v: (output(v) - target).square().mean(), theta).numpy()
    tangents = []
    for number, (units, _) in enumerate(sizes[:-1]):
        for unit in range(units):
            tangent = [np.zeros(size) for size in sizes]
            weights = [theta[a:b].view(size).numpy() for a, b, size in zip(ends, ends[1:], sizes, strict=False)]
            tangent[number][unit] = weights[number][unit]
            tangent[number + 1][:, unit] = -weights[number + 1][:, unit]
            tangents.append(np.concatenate([each.ravel() for each in tangent]))
    if not matrix.any():
        return flat_along_scalings(rng)
    return bounds.scaling_null_space(matrix, np.stack(tangents, 1))


def to_the_manifold(rng: Rng, least: float, most: float) -> Sides | bool:
    """Theorem 1: the distance of v·relu(wᵀx) to the nearest of its minimizers (tw, v/t), at some learning rate."""
    x, optimum = rng.uniform(0.2, 2, size=(8, 2)), rng.uniform(0.5, 1.5, size=3)
    targets = optimum[2] * (x @ optimum[:2])
    jacobian = np.column_stack([optimum[2] * x, x @ optimum[:2]])
    matrix = jacobian.T @ jacobian / len(x)
    rate = float(np.exp(rng.uniform(np.log(least), np.log(most)))) / float(np.linalg.eigvalsh(matrix)[-1])
    theta, distances = optimum + 1e-4 * rng.normal(size=3), []
    for _ in range(STEPS + 1):
        distances.append(_to_nearest(theta, optimum))
        out = theta[2] * np.maximum(x @ theta[:2], 0)
        slopes = (out - targets) / len(x)
        by_weights = (slopes * (out != 0)) @ x * theta[2]
        theta = theta - rate * np.append(by_weights, slopes @ np.maximum(x @ theta[:2], 0))
    if not (np.isfinite(distances).all() and max(distances) < 1e6):
        return False  # it has left every neighbourhood
    return bounds.contraction(distances, matrix, rate)


def _to_nearest(theta: Array, optimum: Array) -> float:
    """The distance to the nearest (eᵗw, e⁻ᵗv), by Newton's method from the best of many t."""
    w, v = optimum[:2], optimum[2]

    def squared(t: float) -> float:
        return float(((np.exp(t) * w - theta[:2]) ** 2).sum() + (np.exp(-t) * v - theta[2]) ** 2)

    t = min(np.linspace(-3, 3, 61), key=squared)
    for _ in range(20):
        near, far = np.exp(t) * w, np.exp(-t) * v
        first = near @ (near - theta[:2]) - far * (far - theta[2])
        second = near @ (2 * near - theta[:2]) + far * (2 * far - theta[2])
        moved = t - first / second
        if not squared(moved) <= squared(t):
            break
        t = moved
    return math.sqrt(squared(float(t)))
