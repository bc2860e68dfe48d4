"""The largest curvature along the gradient over all inputs of bounded norm: landscape Theorem C.1, corrected.

The paper looks for the maximum of β(X) = vᵀXXᵀ K XXᵀv over ‖X‖ ≤ λ, v a gradient and K a Hessian with respect to the
activations, and takes it at XXᵀ = λ²I (eq. 58). It is elsewhere: as XXᵀ runs through all matrices between 0 and λ²I,
u = XXᵀv runs through the whole ball whose diameter reaches from 0 to λ²v, and X of rank one are enough for that
(X = u/√⟨u, v⟩). The maximum of a quadratic form over a ball is found exactly from one equation in one unknown.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from trimtab.theory.bounds.landscape import bn_gradient, bn_hessian, standardize
from trimtab.theory.bounds.sides import Array, Form, Sides, array, check_form, positive, symmetric

_CROSS = 3 * 3**0.5 / 8  # twice the largest cos³θ·sinθ, at 30°


def largest_curvature(hessian: ArrayLike, gradient: ArrayLike, radius: float) -> float:
    """The largest vᵀXXᵀKXXᵀv over ‖X‖ ≤ λ, with v and K held fixed. Never below 0, since X = 0 is allowed.

    Args:
        hessian: K.
        gradient: v.
        radius: λ.
    """
    positive(radius, "radius")
    vector = array(gradient, "gradient", 1)
    matrix = symmetric(hessian, "hessian", len(vector))
    size, height = float(np.linalg.norm(matrix, 2)), float(np.linalg.norm(vector)) / 2
    if not size * height > 0:
        return 0.0
    spectrum, basis = np.linalg.eigh(matrix / size)
    if spectrum[-1] <= 0:
        return 0.0
    # u = c + w with the centre c = v/2 and |w| ≤ |c|, in units of |c| and of ‖K‖: w = (ν − K)⁻¹Kc at the maximum.
    centre = basis.T @ vector / (2 * height)
    pull = spectrum * centre

    def excess(multiplier: float) -> float:
        return float((pull**2 / (multiplier - spectrum) ** 2).sum()) - 1

    lowest = float(spectrum[-1]) * (1 + 1e-13)
    if excess(lowest) > 0:
        step = pull / (brentq(excess, lowest, lowest + float(np.linalg.norm(pull)) + 1, xtol=1e-15) - spectrum)
    else:  # the pull has no part along the top eigenvector, which fills up the length
        step = pull / np.where(spectrum < spectrum[-1], lowest - spectrum, np.inf)
        step[-1] += max(0.0, 1 - float(step @ step)) ** 0.5
    point = centre + step
    return float(radius**4 * size * height**2 * max(0.0, spectrum @ point**2))


def weight_smoothness(
    activations: ArrayLike,
    gamma: float,
    gradient: ArrayLike,
    hessian: ArrayLike,
    radius: float,
    *,
    form: Form = "corrected",
) -> Sides:
    """The largest β̂ over ‖X‖ ≤ λ, with BatchNorm, against the same maximum without it (landscape Theorem C.1).

    β = (∂L/∂w)ᵀ(∂²L/∂w∂w)(∂L/∂w) for one unit's weights w. Printed: max β̂ < γ²/σ²(max β − λ⁴κ), with the separation
    κ = ⟨g, ŷ⟩‖∇L̂‖²/(mγ) of Theorem 4.2. It fails for every linear loss with ⟨g, ŷ⟩ > 0: its right side is below 0, and
    no maximum that X = 0 takes part in is. What can be proved has a price in the place of the gain,

        max β̂ ≤ γ²/σ² (γ²/σ²·max β + λ⁴ max(0, −κ) + λ⁴ (3√3/8)·σ/(γ²√m)·‖∇L̂‖³),

    since uᵀ(∂²L̂/∂y∂y)u = γ²/σ²(uᵀQHQu − ⟨g, ŷ⟩‖Qu‖²/(mγ) − 2⟨Qg, u⟩⟨ŷ, u⟩/(mγ)), where the last term vanishes for
    u = ∇L̂ (Theorem 4.2) but not for other u of the ball. At XXᵀ = λ²I, Theorem 4.2 times λ⁴ holds, with the gain.
    Condition: g, H, ŷ and σ are held fixed while X varies; γ > 0.

    Args:
        activations: y of one unit.
        gamma: γ.
        gradient: g = ∂L/∂z.
        hessian: H = ∂²L/∂z∂z.
        radius: λ.
        form: As corrected or as printed.
    """
    check_form(form)
    gamma = positive(gamma, "gamma")
    fourth = positive(radius, "radius") ** 4
    unit = standardize(activations)
    slope = bn_gradient(activations, gamma, gradient)
    normalized = bn_hessian(activations, gamma, gradient, hessian)
    left = largest_curvature(normalized, slope, radius)
    plain = largest_curvature(hessian, gradient, radius)
    length, size = float(np.linalg.norm(slope)), len(slope)
    separation = fourth * float(np.asarray(gradient) @ unit.standard) * length**2 / (size * gamma)
    factor = gamma**2 / unit.sigma**2
    if form == "corrected":
        cross = fourth * _CROSS * unit.sigma / (gamma**2 * size**0.5) * length**3
        right = factor * (factor * plain + max(0.0, -separation) + cross)
    else:
        right = factor * (plain - separation)
    return Sides(left, right, scale=factor * abs(separation))


def claimed_curvature(
    activations: ArrayLike, gamma: float, gradient: ArrayLike, hessian: ArrayLike, radius: float
) -> Sides:
    """The largest β̂ over ‖X‖ ≤ λ against that at XXᵀ = λ²I, which the paper takes for it (landscape eq. 58).

    Left is the maximum, right λ⁴∇L̂ᵀ(∂²L̂/∂y∂y)∇L̂; the paper's step is that they are equal.

    Args:
        activations: y of one unit.
        gamma: γ.
        gradient: ∂L/∂z.
        hessian: ∂²L/∂z∂z.
        radius: λ.
    """
    slope: Array = bn_gradient(activations, gamma, gradient)
    normalized = bn_hessian(activations, gamma, gradient, hessian)
    claimed = positive(radius, "radius") ** 4 * float(slope @ normalized @ slope)
    return Sides(largest_curvature(normalized, slope, radius), claimed, "==")
