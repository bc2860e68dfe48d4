"""What BatchNorm does to one unit's loss surface: landscape Theorems 4.1, 4.2 and 4.4, Obs. 4.3 and Lemma 4.5.

One unit has the activations y of a batch of m samples, ŷ = (y − μ)/σ with biased σ and nothing added to it, and
z = γŷ + β goes on into the loss. L̂ is the loss as a function of y through BatchNorm, L as a function of z. The paper
writes ∇_y L for the network without BatchNorm; its proofs use ∂L/∂z, the gradient **at z**, and so does this module:
at y ≠ z, no statement about the one follows from the other.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from trimtab.theory.bounds.sides import Array, Form, Sides, array, check_form, number, positive, shaped, symmetric


class Unit(NamedTuple):
    """A unit's activations, standardized."""

    mean: float
    sigma: float
    standard: Array

    def project(self, vector: Array) -> Array:
        """Remove the components of a vector along 1 and along ŷ."""
        centred = vector - vector.mean()
        return np.asarray(centred - self.standard * (self.standard @ centred) / len(centred), dtype=np.float64)


def standardize(activations: ArrayLike) -> Unit:
    """μ, σ and ŷ of one unit over a batch."""
    values = array(activations, "activations", 1)
    mean, sigma = float(values.mean()), float(values.std())
    if not sigma > 1e-12 * np.abs(values).max():
        raise ValueError("activations do not vary over the batch, so that BatchNorm is not defined.")
    return Unit(mean, sigma, (values - mean) / sigma)


def bn_gradient(activations: ArrayLike, gamma: float, gradient: ArrayLike) -> Array:
    """∂L̂/∂y from ∂L/∂z (landscape Fact C.1 and eq. 5)."""
    gamma = number(gamma, "gamma")
    unit = standardize(activations)
    return gamma / unit.sigma * unit.project(shaped(gradient, "gradient", unit.standard.shape))


def bn_hessian(activations: ArrayLike, gamma: float, gradient: ArrayLike, hessian: ArrayLike) -> Array:
    """∂²L̂/∂y∂y from the gradient and the Hessian H at z (landscape eqs. 40–42, collected).

    γ²/σ² QHQ − γ/(mσ²)(⟨g, ŷ⟩Q + (Qg)ŷᵀ + ŷ(Qg)ᵀ), Q the projector that removes 1 and ŷ.
    """
    gamma = number(gamma, "gamma")
    unit = standardize(activations)
    size = len(unit.standard)
    slope = shaped(gradient, "gradient", (size,))
    projector = np.eye(size) - 1 / size - np.outer(unit.standard, unit.standard) / size
    across = np.outer(projector @ slope, unit.standard)
    inner = (slope @ unit.standard) * projector + across + across.T
    curved = projector @ symmetric(hessian, "hessian", size) @ projector
    return np.asarray(gamma / unit.sigma**2 * (gamma * curved - inner / size), dtype=np.float64)


def lipschitzness(activations: ArrayLike, gamma: float, gradient: ArrayLike, *, form: Form = "corrected") -> Sides:
    """‖∇_y L̂‖² against γ²/σ²(‖∇L‖² − ⟨1, ∇L⟩²/m − ⟨∇L, ŷ⟩²/m): an equation (landscape Theorem 4.1).

    Printed as ≤ with 1/√m before the last term, it fails: that takes away √m times too much. Conditions: nothing
    added to σ², σ biased, ∇L at z.

    Args:
        activations: y of one unit.
        gamma: γ.
        gradient: ∂L/∂z.
        form: With 1/m and "=", or, as printed, with 1/√m and "≤".
    """
    check_form(form)
    gamma = number(gamma, "gamma")
    unit = standardize(activations)
    slope = shaped(gradient, "gradient", unit.standard.shape)
    size = len(slope)
    left = float((bn_gradient(activations, gamma, slope) ** 2).sum())
    share = 1 / size if form == "corrected" else size**-0.5
    factor = gamma**2 / unit.sigma**2
    right = factor * (slope @ slope - slope.sum() ** 2 / size - share * (slope @ unit.standard) ** 2)
    return Sides(left, float(right), "==" if form == "corrected" else "<=", float(factor * (slope @ slope)))


def smoothness(
    activations: ArrayLike, gamma: float, gradient: ArrayLike, hessian: ArrayLike, *, form: Form = "corrected"
) -> Sides:
    """∇L̂ᵀ(∂²L̂/∂y∂y)∇L̂ against γ²/σ² ∇L̂ᵀH∇L̂ − γ/(mσ²)⟨g, ŷ⟩‖∇L̂‖²: an equation (landscape Theorem 4.2).

    Printed as ≤, which it also is. Conditions as for Theorem 4.1. The second term lowers the left side where
    ⟨g, ŷ⟩ > 0; that the negative gradient points to the minimum of the loss does not give this sign, as the paper
    says it does: with the minimum at z* = 2ŷ and z = ŷ, ⟨g, ŷ⟩ is −m.

    Args:
        activations: y of one unit.
        gamma: γ.
        gradient: g = ∂L/∂z.
        hessian: H = ∂²L/∂z∂z.
        form: "=" or, as printed, "≤".
    """
    check_form(form)
    gamma = number(gamma, "gamma")
    unit = standardize(activations)
    slope = bn_gradient(activations, gamma, gradient)
    left = slope @ bn_hessian(activations, gamma, gradient, hessian) @ slope
    first = gamma**2 / unit.sigma**2 * (slope @ symmetric(hessian, "hessian") @ slope)
    second = _separation(unit, gamma, gradient, slope)
    scale = gamma**2 / unit.sigma**2 * float(np.abs(hessian).sum() * (slope @ slope)) + abs(second)
    return Sides(float(left), float(first - second), "==" if form == "corrected" else "<=", scale)


def smoothness_by_gradient(
    activations: ArrayLike, gamma: float, gradient: ArrayLike, hessian: ArrayLike, *, form: Form = "corrected"
) -> Sides:
    """∇L̂ᵀ(∂²L̂/∂y∂y)∇L̂ ≤ γ²/σ²(γ²/σ² gᵀHg − ⟨g, ŷ⟩‖∇L̂‖²/(mγ)) (landscape Theorem 4.2, second part).

    Condition: "H preserves the relative norms", read as (Qg)ᵀH(Qg) ≤ gᵀHg, where Qg is g without its parts along 1 and
    ŷ; H = cI with c ≥ 0 fulfils it. Printed with gᵀHg alone: the factor that ∇L̂ = γ/σ·Qg brings along is left out,
    so that for γ > σ it fails even for H = I.

    Args:
        activations: y of one unit.
        gamma: γ.
        gradient: g = ∂L/∂z.
        hessian: H = ∂²L/∂z∂z.
        form: With γ²/σ² before gᵀHg or, as printed, without.
    """
    exact = smoothness(activations, gamma, gradient, hessian)
    check_form(form)
    unit = standardize(activations)
    slope, curved = array(gradient, "gradient", 1), symmetric(hessian, "hessian")
    whole, part = float(slope @ curved @ slope), unit.project(slope)
    factor = gamma**2 / unit.sigma**2
    second = _separation(unit, gamma, slope, gamma / unit.sigma * part)
    right = factor * whole * (factor if form == "corrected" else 1.0) - second
    broken = () if part @ curved @ part <= whole else ("a Hessian that preserves relative norms",)
    return Sides(exact.left, right, "<=", max(exact.scale, factor**2 * abs(whole)), broken)


def same_activations(activations: ArrayLike) -> Sides:
    """BatchNorm with γ = σ and β = μ changes nothing: z = y (landscape Obs. 4.3, first part)."""
    unit = standardize(activations)
    return Sides(array(activations, "activations", 1), unit.sigma * unit.standard + unit.mean, "==")


def kept_minima(inputs: ArrayLike, weight: ArrayLike, gradient: ArrayLike, *, form: Form = "corrected") -> Sides:
    """∂L̂/∂(w, γ, β) is what the gradient of the plain layer makes of it, at γ = σ, β = μ (landscape Obs. 4.3).

    The unit with BatchNorm is a plain unit with w′ = γw/σ(w), b′ = β − γμ(w)/σ(w), so that its gradient is the
    transposed Jacobian of that map times the plain gradient (∂L/∂w′, ∂L/∂b′), and minima stay minima. This needs a
    bias b′ in the plain layer. The paper's layer, y = Wx, has none: a minimum over W alone has Σg ≠ 0 in general, and
    with BatchNorm it is not even stationary.

    Args:
        inputs: X, one row per sample.
        weight: w of one unit, y = Xw.
        gradient: g = ∂L/∂y = ∂L/∂z.
        form: Of a layer with a bias or, as printed, without.
    """
    check_form(form)
    rows = array(inputs, "inputs", 2)
    kernel = shaped(weight, "weight", (rows.shape[1],))
    unit = standardize(rows @ kernel)
    slope = shaped(gradient, "gradient", unit.standard.shape)
    left = np.concatenate([rows.T @ unit.project(slope), [slope @ unit.standard, slope.sum()]])

    by_weight, by_bias = rows.T @ slope, float(slope.sum()) if form == "corrected" else 0.0
    sigma_slope = rows.T @ unit.standard / (len(rows) * unit.sigma)
    along = kernel @ by_weight - unit.mean * by_bias
    right = np.concatenate([by_weight - sigma_slope * along - rows.mean(0) * by_bias, [along / unit.sigma, by_bias]])
    size = np.abs(slope).sum() * max(1.0, float(np.abs(rows).max()), float(np.abs(unit.standard).max()))
    return Sides(left, right, "==", float(size * (1 + abs(unit.mean) / unit.sigma)))


def weight_lipschitzness(
    activations: ArrayLike, gamma: float, gradient: ArrayLike, radius: float, *, form: Form = "corrected"
) -> Sides:
    """The largest ‖∇_W L̂‖² over ‖X‖ ≤ λ is γ²/σ²(g − λ²mμ_g² − λ²⟨∇L, ŷ⟩²/m) (landscape Theorem 4.4).

    g = λ²‖∇L‖² is the same maximum without BatchNorm, μ_g the mean of ∇L. Printed: γ²/σ²(g² − mμ_g² − λ²⟨∇L, ŷ⟩²).
    Condition, beside those of Theorem 4.1: ∇L, ŷ and σ are held fixed while X varies, though they come from X.

    Args:
        activations: y of one unit.
        gamma: γ.
        gradient: ∂L/∂z.
        radius: λ.
        form: As corrected or as printed.
    """
    check_form(form)
    gamma = number(gamma, "gamma")
    unit = standardize(activations)
    slope = shaped(gradient, "gradient", unit.standard.shape)
    squared = positive(radius, "radius") ** 2
    size, factor = len(slope), gamma**2 / unit.sigma**2
    plain = squared * float(slope @ slope)
    left = squared * float((bn_gradient(activations, gamma, slope) ** 2).sum())
    mean, inner = size * slope.mean() ** 2, (slope @ unit.standard) ** 2
    if form == "corrected":
        right = factor * (plain - squared * mean - squared / size * inner)
    else:
        right = factor * (plain**2 - mean - squared * inner)
    return Sides(left, float(right), "==" if form == "corrected" else "<=", factor * plain)


def initialization(start: ArrayLike, optimum: ArrayLike) -> Sides:
    """‖W₀ − kW*‖² ≤ ‖W₀ − W*‖² − (‖W*‖² − ⟨W*, W₀⟩)²/‖W*‖², k = ⟨W*, W₀⟩/‖W*‖² (landscape Lemma 4.5).

    With BatchNorm every kW*, k > 0, is an optimum, and this one is the nearest to W₀; both sides are equal.
    Conditions: ⟨W₀, W*⟩ > 0, else kW* is not an optimum, since BN(−Wx) = −BN(Wx); and W* is an optimum of the network
    with BatchNorm too, which by Obs. 4.3 takes γ = σ, β = μ and a bias in the layer.

    Args:
        start: W₀, of any shape.
        optimum: W*.
    """
    target = np.asarray(optimum, dtype=np.float64)
    target = array(target, "optimum", target.ndim).ravel()
    first = shaped(np.ravel(start), "start", target.shape)
    length = float(target @ target)
    if not length > 0:
        raise ValueError("optimum is 0, which has no direction.")
    inner = float(target @ first)
    left = float(((first - inner / length * target) ** 2).sum())
    plain = float(((first - target) ** 2).sum())
    right = plain - (length - inner) ** 2 / length
    return Sides(left, right, "==", max(plain, length), () if inner > 0 else ("⟨W₀, W*⟩ above 0",))


def _separation(unit: Unit, gamma: float, gradient: ArrayLike, slope: Array) -> float:
    """γ/(mσ²)⟨g, ŷ⟩‖∇L̂‖², the term that Theorem 4.2 subtracts."""
    inner = float(np.asarray(gradient) @ unit.standard)
    return float(gamma / (len(slope) * unit.sigma**2) * inner * (slope @ slope))
