"""The norm of normalized inputs, to which q² brings the layers: bnp Prop. 5 and Lemma A2."""

import numpy as np
from numpy.typing import ArrayLike

from trimtab.theory.bounds.sides import Array, Form, Sides, array, check_form, positive


def normalized_norm(draws: ArrayLike, *, constant: float = 3.0, form: Form = "corrected") -> Sides:
    """E‖Ĝ‖/q ≤ C√N with q² = max(n/N, 1): layers of any width get Hessians of like size (bnp Prop. 5).

    Conditions: entries that are independent, with mean 0, variance 1, and n ≥ 3. Correlated features break it: n
    copies of one feature have ‖Ĝ‖ = √(nN). As printed C depends on nothing, which independence and unit variance do
    not give: rare large entries make E‖Ĝ‖ grow like √(nN) too. The corrected form has C·(E g⁴)^¼ in the place of C
    (Latała's bound on the norm of independent entries).

    Args:
        draws: G, (draws, N, n); the expectation is the mean over the draws.
        constant: C. The paper names none; 3 is enough for Gaussian entries.
        form: With the fourth moment or, as printed, without.
    """
    check_form(form)
    values = array(draws, "draws", 3)
    _, samples, width = values.shape
    with_ones = np.concatenate([np.ones((*values.shape[:2], 1)), values], axis=2)
    left = float(_norms(with_ones).mean()) / max(width / samples, 1) ** 0.5
    factor = float((values**4).mean()) ** 0.25 if form == "corrected" else 1.0
    right = positive(constant, "constant") * factor * np.sqrt(samples)
    return Sides(left, right, broken=() if width >= 3 else ("n at least 3",))


def orthogonal_norm(normalized: ArrayLike) -> Sides:
    """‖[e, G]‖ = max(√N, ‖G‖), since e is orthogonal to centred columns (bnp Sec. 3.3, before Prop. 5).

    Condition: the columns of G have mean 0 exactly. For independent random entries, as in Prop. 5, it is only ≥.

    Args:
        normalized: G, one row per sample.
    """
    values = array(normalized, "normalized", 2)
    left = np.linalg.norm(np.column_stack([np.ones(len(values)), values]), 2)
    right = max(np.sqrt(len(values)), float(np.linalg.norm(values, 2)))
    centred = np.allclose(values.mean(0), 0, rtol=0, atol=1e-10 * np.abs(values).max())
    return Sides(float(left), right, "==", broken=() if centred else ("centred columns",))


def seginer(draws: ArrayLike, order: float = 2.0, *, constant: float = 2.0) -> Sides:
    """E‖G‖ᵏ ≤ Cᵏ(E max‖row‖ᵏ + E max‖column‖ᵏ) (bnp Lemma A2, of Seginer).

    Conditions: independent entries of mean 0, all of one distribution; k ≤ 2 log max(m, n). The expected maximum of
    the rows is more than the expectation of one row, n, which the paper's proof of Prop. 5 puts for it.

    Args:
        draws: G, (draws, m, n); expectations are means over the draws.
        order: k.
        constant: C, which exists but is named nowhere; 2 is enough for Gaussian entries.
    """
    values = array(draws, "draws", 3)
    rows, columns = (np.linalg.norm(values, axis=axis).max(1) for axis in (2, 1))
    powers = _norms(values) ** positive(order, "order")
    right = positive(constant, "constant") ** order * float((rows**order).mean() + (columns**order).mean())
    limit = 2 * np.log(max(values.shape[1:]))
    return Sides(float(powers.mean()), right, broken=() if order <= limit else ("k at most 2 log max(m, n)",))


def _norms(values: Array) -> Array:
    return np.asarray(np.linalg.norm(values, 2, axis=(1, 2)), dtype=np.float64)
