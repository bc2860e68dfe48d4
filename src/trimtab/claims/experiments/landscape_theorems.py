"""landscape, Sec. 4 and App. C: every theorem on drawn units of a layer, against autograd where there is a loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.claims.experiments.landscape_noise import enter_noise
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory import bounds
from trimtab.theory.bounds import Sides
from trimtab.theory.bounds.landscape import standardize
from trimtab.theory.bounds.sides import Array, Form

SAMPLES = 8
INPUTS = 1000
"""So many X are drawn for eq. 58, for each unit."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a layer over a batch, and the loss of what its BatchNorm makes of it.

    Attributes:
        y: Its activations.
        gamma: γ.
        beta: β.
        loss: Of z = γŷ + β; it couples the samples and is curved everywhere.
    """

    y: Tensor
    gamma: float
    beta: float
    loss: Callable[[Tensor], Tensor]

    def normalized(self, y: Tensor) -> Tensor:
        """Z, with eps 0 and biased σ."""
        return self.gamma * (y - y.mean()) / y.var(correction=0).sqrt() + self.beta

    def through(self, y: Tensor) -> Tensor:
        """L̂, the loss as a function of y."""
        return self.loss(self.normalized(y))

    @property
    def z(self) -> Tensor:
        """Where the loss is taken."""
        return self.normalized(self.y)


def drawn_unit(rng: np.random.Generator, *, natural: bool = False) -> Unit:
    """A unit of 8 samples; `natural`: with γ = σ."""
    mixing = _tensor(rng.normal(size=(4, SAMPLES)) / 2)
    target = _tensor(rng.normal(size=SAMPLES))

    def loss(z: Tensor) -> Tensor:
        return torch.logsumexp(mixing @ z, 0) + (torch.tanh(z) - target).square().sum()

    y = _tensor(rng.uniform(0.3, 3) * rng.normal(size=SAMPLES) + rng.uniform(-2, 2))
    gamma = float(y.std(correction=0)) if natural else float(rng.uniform(0.3, 3))
    return Unit(y, gamma, float(rng.uniform(-1, 1)), loss)


def drawn_slopes(rng: np.random.Generator) -> tuple[Array, float, Array, Array]:
    """Activations, γ, and a gradient and a positive semi-definite Hessian at z, as they come."""
    half = rng.normal(size=(SAMPLES, SAMPLES)) * rng.uniform(0, 1)
    y = rng.uniform(0.3, 3) * rng.normal(size=SAMPLES)
    return y, float(rng.uniform(0.3, 3)), rng.normal(size=SAMPLES), half @ half.T / SAMPLES


def slope(function: Callable[[Tensor], Tensor], at: Tensor) -> Array:
    """The gradient, by autograd."""
    at = at.detach().requires_grad_()
    (found,) = torch.autograd.grad(function(at), at)
    return np.asarray(found.numpy())


def curvature(function: Callable[[Tensor], Tensor], at: Tensor) -> Array:
    """The Hessian, by autograd."""
    return np.asarray(torch.autograd.functional.hessian(function, at.detach()).numpy())


# ---- The statements --------------------------------------------------------------------------------------------------


def fact_c1(rng: np.random.Generator) -> Sides:
    """The gradient through BatchNorm as printed, against autograd."""
    unit = drawn_unit(rng)
    y, g = unit.y.numpy(), slope(unit.loss, unit.z)
    standard = (y - y.mean()) / y.std()
    printed = unit.gamma / (SAMPLES * y.std()) * (SAMPLES * g - g.sum() - standard * (g @ standard))
    return Sides(slope(unit.through, unit.y), printed, "==", _size(unit, g))


def fact_c2(rng: np.random.Generator) -> Sides:
    """The Jacobian ∂z/∂y as printed, against autograd."""
    unit = drawn_unit(rng)
    y = unit.y.numpy()
    standard = (y - y.mean()) / y.std()
    printed = unit.gamma / y.std() * (np.eye(SAMPLES) - 1 / SAMPLES - np.outer(standard, standard) / SAMPLES)
    found = torch.autograd.functional.jacobian(unit.normalized, unit.y)
    return Sides(found.numpy(), printed, "==")


def theorem_41(rng: np.random.Generator, share: float, *, at_y: bool = False) -> Sides:
    """Theorem 4.1 with the loss's gradient at z or at y; the last term is multiplied by m^(−share)."""
    unit = drawn_unit(rng)
    left = slope(unit.through, unit.y)
    g, inside = slope(unit.loss, unit.y if at_y else unit.z), standardize(unit.y.numpy())
    factor = unit.gamma**2 / inside.sigma**2
    taken = g.sum() ** 2 / SAMPLES + SAMPLES**-share * (g @ inside.standard) ** 2
    relation = "==" if share == 1 else "<="
    return Sides(float(left @ left), float(factor * (g @ g - taken)), relation, float(factor * (g @ g)))  # type: ignore[arg-type]


def additive(rng: np.random.Generator) -> Sides:
    """After Theorem 4.1: with γ = σ the gradient is smaller still; with tolerance 0 it is so by 1e-9 at least."""
    unit = drawn_unit(rng, natural=True)
    left, g = slope(unit.through, unit.y), slope(unit.loss, unit.z)
    return Sides(float(left @ left), float(g @ g) * (1 - 1e-9))


def theorem_42(rng: np.random.Generator, form: Form) -> Sides:
    """Theorem 4.2, with both derivatives on the left by autograd."""
    unit = drawn_unit(rng)
    g, hessian = slope(unit.loss, unit.z), curvature(unit.loss, unit.z)
    sides = bounds.smoothness(unit.y.numpy(), unit.gamma, g, hessian, form=form)
    along = slope(unit.through, unit.y)
    left = float(along @ curvature(unit.through, unit.y) @ along)
    return Sides(left, sides.right, sides.relation, sides.scale)


def theorem_42_second(rng: np.random.Generator, form: Form) -> Sides:
    """Theorem 4.2, second part, for H = I, which fulfils its condition."""
    y, gamma, g, _ = drawn_slopes(rng)
    return bounds.smoothness_by_gradient(y, gamma, g, np.eye(SAMPLES), form=form)


def semi_definite(rng: np.random.Generator, *, with_norm: bool) -> Sides:
    """The cross-entropy's Hessian by the first activations of a ReLU network: −smallest ≤ 1e-9 × largest eigenvalue."""
    x, first, second = (_tensor(rng.normal(size=shape)) for shape in ((SAMPLES, 5), (6, 5), (3, 6)))
    shift, classes = _tensor(rng.normal(size=6)), torch.from_numpy(rng.integers(3, size=SAMPLES))

    def loss(y: Tensor) -> Tensor:
        a = torch.relu(y.view(SAMPLES, 5)) @ first.T / 5**0.5 + shift
        if with_norm:
            a = (a - a.mean(0)) / a.var(0, correction=0).sqrt()
        return torch.nn.functional.cross_entropy(torch.relu(a) @ second.T, classes)

    values = np.linalg.eigvalsh(curvature(loss, x.flatten()))
    return Sides(-float(values[0]), 0.0, scale=float(values[-1]))


def sign(rng: np.random.Generator, *, round_loss: bool) -> Sides:
    """After Theorem 4.2: ⟨ŷ, g⟩ > 0 for a convex quadratic loss of z; `round_loss`: −g leads straight to the least."""
    y, gamma, minimum, _ = drawn_slopes(rng)
    standard, beta = standardize(y).standard, float(rng.uniform(-1, 1))
    half = np.eye(SAMPLES) if round_loss else rng.normal(size=(SAMPLES, SAMPLES))
    g = half @ half.T @ (gamma * standard + beta - minimum)
    return Sides(0.0, float(standard @ g))


def kept_minimum(rng: np.random.Generator, *, bias: bool) -> Sides:
    """Obs. 4.3: where the gradient of the plain layer is 0, so is that with BatchNorm at γ = σ, β = μ."""
    rows, weight, g = rng.normal(size=(SAMPLES, 3)) + 1, rng.normal(size=3), rng.normal(size=SAMPLES)
    seen = np.column_stack([rows, np.ones(SAMPLES)]) if bias else rows
    g = g - seen @ np.linalg.lstsq(seen, g, rcond=None)[0]  # orthogonal to what the plain layer's gradient is made of
    sides = bounds.kept_minima(rows, weight, g)
    return Sides(sides.left, np.zeros_like(sides.left), "==", sides.scale)


def worst_input(rng: np.random.Generator) -> Sides:
    """Eq. 58: neither 1,000 drawn X with ‖X‖ ≤ λ = 1 nor the exact search exceed the curvature at X = λI."""
    y, gamma, g, hessian = drawn_slopes(rng)
    along, curved = bounds.bn_gradient(y, gamma, g), bounds.bn_hessian(y, gamma, g, hessian)
    columns = int(rng.integers(1, SAMPLES + 1))
    x = rng.normal(size=(INPUTS, SAMPLES, columns))
    x *= (rng.uniform(size=INPUTS) ** 0.25 / np.linalg.norm(x, 2, axis=(1, 2)))[:, None, None]
    image = np.einsum("nij,nkj,k->ni", x, x, along)
    drawn = float(np.einsum("ni,ij,nj->n", image, curved, image).max())
    scale = float(np.abs(curved).sum() * (along @ along))
    return Sides(max(drawn, bounds.largest_curvature(curved, along, 1.0)), float(along @ curved @ along), scale=scale)


def nearest_optimum(rng: np.random.Generator, relation: str) -> Sides:
    """Lemma 4.5, with W₀ on the right side."""
    start, optimum = rng.normal(size=(2, 3, 4))
    sides = bounds.initialization(start * np.sign((start * optimum).sum()), optimum)
    return Sides(sides.left, sides.right, relation, sides.scale)  # type: ignore[arg-type]


def _tensor(values: Array) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def _size(unit: Unit, g: Array) -> float:
    """Of the terms of a gradient through BatchNorm, which cancel."""
    return float(unit.gamma / unit.y.std(correction=0) * np.abs(g).sum())


# ---- All of it -------------------------------------------------------------------------------------------------------


@experiment("landscape-theorems", "Theorems of the landscape paper on random draws", small=0.2, paper=1)
def theorems(findings: Findings, context: Context) -> None:
    """Sec. 4, App. C and Alg. 1."""

    def forms(function: Callable[..., Sides], *names: int) -> dict[Form, Callable[[np.random.Generator], Sides]]:
        """Both forms of a theorem on drawn slopes; `names` picks its arguments from (y, γ, g, H, λ)."""

        def of(form: Form) -> Callable[[np.random.Generator], Sides]:
            def statement(rng: np.random.Generator) -> Sides:
                given: tuple[Any, ...] = (*drawn_slopes(rng), float(rng.uniform(0.3, 3)))
                return function(*(given[i] for i in names), form=form)

            return statement

        return {"printed": of("printed"), "corrected": of("corrected")}

    findings.check("fact-c1", fact_c1)
    findings.check("fact-c2", fact_c2)
    findings.check("thm41-printed", lambda rng: theorem_41(rng, 0.5, at_y=True))
    findings.check("thm41-printed-at-z", lambda rng: theorem_41(rng, 0.5))
    findings.check("thm41", lambda rng: theorem_41(rng, 1.0))
    findings.check("thm41-additive", additive, tolerance=0.0)
    findings.check("thm42-printed", lambda rng: theorem_42(rng, "printed"))
    findings.check("thm42-equation", lambda rng: theorem_42(rng, "corrected"))
    findings.check("thm42-second-printed", lambda rng: theorem_42_second(rng, "printed"))
    findings.check("thm42-second", lambda rng: theorem_42_second(rng, "corrected"))
    findings.check("psd-without-bn", lambda rng: semi_definite(rng, with_norm=False))
    findings.check("psd-with-bn", lambda rng: semi_definite(rng, with_norm=True))
    findings.check("sign", lambda rng: sign(rng, round_loss=False))
    findings.check("sign-round", lambda rng: sign(rng, round_loss=True))
    findings.check("obs43-activations", lambda rng: bounds.same_activations(drawn_unit(rng).y.numpy()))
    findings.check("obs43-minima-printed", lambda rng: kept_minimum(rng, bias=False))
    findings.check("obs43-minima", lambda rng: kept_minimum(rng, bias=True))
    for form, statement in forms(bounds.weight_lipschitzness, 0, 1, 2, 4).items():
        findings.check("thm44" if form == "corrected" else "thm44-printed", statement)
    findings.check("eq58", worst_input, about={"X": INPUTS})
    for form, statement in forms(bounds.weight_smoothness, 0, 1, 2, 3, 4).items():
        findings.check("thmC1" if form == "corrected" else "thmC1-printed", statement)
    findings.check("lem45", lambda rng: nearest_optimum(rng, "<="))
    findings.check("lem45-equation", lambda rng: nearest_optimum(rng, "=="))
    enter_noise(findings, context.seeds(1)[0])
    printed = findings.checks["thm41-printed-at-z"]
    findings.notes += [
        f"Theorem 4.1 with 1/√m, but the gradient at z in the place of y: {printed.holds} of {printed.draws} draws.",
        f"⟨ŷ, g⟩ > 0 where −g leads straight to the minimum: {findings.checks['sign-round'].holds} of "
        f"{findings.checks['sign-round'].draws} draws; in both checks −g has a positive product with the way there.",
        "A unit has 8 samples. Left sides of Theorems 4.1 and 4.2 are by autograd; g and H of the others are drawn.",
    ]
