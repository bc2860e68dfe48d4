"""How normalizing a layer's inputs conditions its Hessian: bnp Theorem 4, Prop. 11, Lemma A1 and Sec. 3.3."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from trimtab.theory.bounds.inputs import condition_number, matrices, rank_condition
from trimtab.theory.bounds.sides import Array, Form, Sides, array, check_form, shaped, symmetric


def centring(inputs: ArrayLike) -> Sides:
    """κ(ĤU) ≤ κ(Ĥ): centring the inputs does not worsen the conditioning (bnp Theorem 4, first part).

    Condition: Ĥ = [e, H] has full column rank, so that N ≥ n + 1. Without it the statement fails for about a fifth of
    random inputs: the smallest nonzero singular value is then that of a space that U tilts.

    Args:
        inputs: H, one row per sample, one column per feature.
    """
    parts = matrices(inputs)
    left, right = condition_number(parts.augmented @ parts.centring), condition_number(parts.augmented)
    return Sides(left, right, broken=rank_condition(parts.augmented))


def centring_is_strict(inputs: ArrayLike, tolerance: float = 1e-9) -> bool:
    """Whether Theorem 4 promises κ(ĤU) < κ(Ĥ): μ is not orthogonal to the first principal component of the inputs.

    Args:
        inputs: H, one row per sample.
        tolerance: What is taken for 0 in their product, relative to the largest input.
    """
    parts = matrices(inputs)
    component = np.linalg.svd(parts.augmented[:, 1:] - parts.mean, full_matrices=False)[2][0]
    return bool(abs(component @ parts.mean) > tolerance * np.abs(parts.augmented[:, 1:]).max())


def column_scaling(inputs: ArrayLike) -> Sides:
    """κ(Ĝ) ≤ √(n+1) min κ(ĤUD₀) over diagonal D₀ (bnp Theorem 4, second part).

    The minimum is found numerically, from above; `van_der_sluis` takes any one D₀.

    Args:
        inputs: H, one row per sample.
    """
    parts = matrices(inputs)
    return van_der_sluis(parts.augmented @ parts.centring)


def property_a(inputs: ArrayLike, tolerance: float = 1e-9) -> Sides:
    """κ(Ĝ) ≤ min κ(ĤUD₀) over diagonal D₀: with Property A the scaling by D is the best one (bnp, after Theorem 4).

    Condition: Property A. The features fall into two groups such that centred features of one group are orthogonal to
    each other. The minimum is found numerically, from above, as in `column_scaling`.

    Args:
        inputs: H, one row per sample.
        tolerance: The largest correlation of two features that is taken for 0.
    """
    parts = matrices(inputs)
    centred = parts.augmented @ parts.centring
    normal = parts.normalized
    linked = np.abs(normal.T @ normal) / len(normal) > tolerance
    best = condition_number(centred * best_scaling(centred))
    return Sides(condition_number(normal), best, broken=() if _two_groups(linked) else ("Property A",))


def van_der_sluis(matrix: ArrayLike, scaling: ArrayLike | None = None) -> Sides:
    """κ(AD) ≤ √n min κ(AD₀): columns of equal norm are scaled almost best (bnp Lemma A1, of Van der Sluis).

    The paper assumes full column rank. It is not needed, with κ by the smallest nonzero singular value and D₀
    invertible: for y in the range of A, Σ⟨aᵢ/‖aᵢ‖, y⟩² ≥ Σ dᵢ²⟨aᵢ, y⟩²/max(dᵢ‖aᵢ‖)², so that σ_min(AD) ≥ 1/κ(AD₀),
    and ‖AD‖ ≤ √n.

    Args:
        matrix: A.
        scaling: The diagonal of one D₀ to compare with, none of it 0; the best one if not given.
    """
    values = array(matrix, "matrix", 2)
    norms = np.linalg.norm(values, axis=0)
    if not norms.all():
        raise ValueError("matrix has a column of zeros, which no scaling brings to norm 1.")
    other = best_scaling(values) if scaling is None else shaped(scaling, "scaling", norms.shape)
    if not other.all():
        raise ValueError("scaling must have no 0.")
    bound = np.sqrt(len(norms)) * condition_number(values * other)
    return Sides(condition_number(values / norms), bound)


def best_scaling(matrix: ArrayLike) -> Array:
    """The diagonal D₀ with the smallest κ(AD₀) that a search finds.

    The sets {D₀: κ(AD₀) ≤ c} are convex in D₀⁻², so that no local minimum misleads the search; κ has kinks, at which
    it may stop short. The search begins at columns of norm 1 and never ends above them.

    Args:
        matrix: A, of full column rank.
    """
    values = array(matrix, "matrix", 2)
    start = -np.log(np.linalg.norm(values, axis=0))

    def objective(logs: Array) -> float:
        return float(np.log(condition_number(values * np.exp(logs - logs.mean()))))

    options = {"xatol": 1e-7, "fatol": 1e-10, "maxiter": 400 * len(start), "adaptive": True}
    found = minimize(objective, start - start.mean(), method="Nelder-Mead", options=options)
    return np.asarray(np.exp(found.x), dtype=np.float64)


def unscaled_columns(inputs: ArrayLike) -> Sides:
    """κ(ĤU) ≤ κ(Ĝ)κ(D): what features of unequal variance can cost (bnp Sec. 3.3).

    It holds for any rank, since D is invertible.

    Args:
        inputs: H, one row per sample.
    """
    parts = matrices(inputs)
    left = condition_number(parts.augmented @ parts.centring)
    return Sides(left, condition_number(parts.normalized) * condition_number(np.diag(parts.scaling)))


def gain(inputs: ArrayLike, curvature: ArrayLike | None = None, *, form: Form = "corrected") -> Sides:
    """κ(ĤᵀSĤ)/κ(ĜᵀSĜ), the gain in the Hessian's conditioning, and its limit (bnp Sec. 3.3).

    Printed: "by as much as κ(D)²". That is the limit of what scaling gains, and reached by centred, orthogonal
    features. Centring gains too: with it the limit is κ(P)², P = UD, for Ĥ of any rank and L″ of any sign, since
    κ(EᵀBE) ≤ κ(B)κ(E)² for every symmetric B and invertible E.

    Args:
        inputs: H, one row per sample.
        curvature: L″ of each sample; all equal if not given.
        form: κ(P)² or, as printed, κ(D)².
    """
    check_form(form)
    parts = matrices(inputs)
    samples = len(parts.augmented)
    weights = np.ones(samples) if curvature is None else shaped(curvature, "curvature", (samples,))
    before, after = (condition_number((m.T * weights) @ m) for m in (parts.augmented, parts.normalized))
    factor = parts.preconditioner if form == "corrected" else np.diag(parts.scaling)
    return Sides(before / after, condition_number(factor) ** 2)


def product_conditioning(matrix: ArrayLike, curvature: ArrayLike) -> Sides:
    """κ(ĤᵀSĤ) ≤ κ(Ĥ)²κ(S), for Ĥ of any rank (bnp Prop. 11).

    Condition: S is symmetric positive definite. With L″ = 0 at some samples (a dead ReLU) or below 0 it fails: what
    kept Ĥ well-conditioned may be the rows that S takes out.

    Args:
        matrix: Ĥ.
        curvature: S, a symmetric matrix.
    """
    values = array(matrix, "matrix", 2)
    weights = symmetric(curvature, "curvature", len(values))
    spectrum = np.linalg.eigvalsh(weights)
    definite = spectrum[0] > len(spectrum) * np.finfo(np.float64).eps * spectrum[-1] > 0
    return Sides(
        condition_number(values.T @ weights @ values),
        condition_number(values) ** 2 * condition_number(weights),
        broken=() if definite else ("positive definite curvature",),
    )


def _two_groups(linked: NDArray[np.bool_]) -> bool:
    """Whether two groups can be made with no link inside of either."""
    group: dict[int, int] = {}

    def fits(one: int, side: int) -> bool:
        if one in group:
            return group[one] == side
        group[one] = side
        return all(fits(int(other), 1 - side) for other in np.flatnonzero(linked[one]) if other != one)

    return all(one in group or fits(one, 0) for one in range(len(linked)))
