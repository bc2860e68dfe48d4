"""bnp Theorem 4, Lemma A1, Prop. 11 and Sec. 3.3, with condition numbers from numpy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.theory.bounds_cases import SEEDS, Array, batches, generator
from trimtab.theory import bounds
from trimtab.theory.bounds.inputs import matrices


def augmented(inputs: Array) -> Array:
    return np.column_stack([np.ones(len(inputs)), inputs])


def normalized(inputs: Array) -> Array:
    return augmented((inputs - inputs.mean(0)) / inputs.std(0))


@given(batches())
@settings(deadline=None)
def test_centring_never_worsens_the_conditioning(inputs: Array) -> None:
    sides = bounds.centring(inputs)
    np.testing.assert_allclose(sides.right, np.linalg.cond(augmented(inputs)), rtol=1e-6)
    np.testing.assert_allclose(sides.left, np.linalg.cond(augmented(inputs - inputs.mean(0))), rtol=1e-6)
    assert not sides.broken
    assert sides.holds()


@given(batches())
@settings(deadline=None)
def test_centring_is_strict_where_the_mean_meets_the_first_component(inputs: Array) -> None:
    if bounds.centring_is_strict(inputs, 1e-3):
        assert bounds.centring(inputs).slack > 0
    assert not bounds.centring_is_strict(np.vstack([inputs, -inputs]))


def test_centring_is_not_strict_for_an_orthogonal_mean() -> None:
    """The largest eigenvalue stays where it is; the smallest may not, so that κ may improve all the same."""
    inputs = np.array([[3.0, 1.0], [-3.0, 1.0], [3.0, 2.0], [-3.0, 2.0]])
    assert not bounds.centring_is_strict(inputs)
    assert bounds.centring(inputs).holds()


def test_centring_fails_without_full_column_rank() -> None:
    rng = generator(0)
    outcomes = []
    for _ in range(200):
        width = int(rng.integers(3, 10))
        inputs = rng.normal(size=(int(rng.integers(2, width)), width)) * np.exp(rng.normal(size=width))
        outcomes.append(bounds.centring(inputs + rng.normal(size=width)))
    assert all(sides.broken == ("full column rank",) for sides in outcomes)
    assert 10 < sum(not sides.holds() for sides in outcomes) < 100


@given(batches(), SEEDS)
@settings(deadline=None)
def test_equal_norms_are_almost_the_best_scaling(inputs: Array, seed: int) -> None:
    matrix = augmented(inputs - inputs.mean(0))
    scaling = np.exp(2 * generator(seed).normal(size=matrix.shape[1]))
    sides = bounds.van_der_sluis(matrix, scaling)
    np.testing.assert_allclose(sides.left, np.linalg.cond(normalized(inputs)), rtol=1e-7)
    expected = np.sqrt(matrix.shape[1]) * np.linalg.cond(matrix * scaling)
    np.testing.assert_allclose(sides.right, expected, rtol=1e-6)
    assert sides.holds()


@given(st.integers(1, 4), st.integers(1, 7), st.integers(2, 8), SEEDS)
@settings(deadline=None)
def test_equal_norms_need_no_full_column_rank(rank: int, rows: int, columns: int, seed: int) -> None:
    """The paper assumes it; the proof in the docstring does not."""
    rng = generator(seed)
    matrix = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns)) * np.exp(rng.normal(size=columns))
    assert bounds.van_der_sluis(matrix, np.exp(rng.normal(size=columns))).holds()


@given(batches(width=4))
@settings(deadline=None)
def test_the_best_scaling_is_within_its_bounds(inputs: Array) -> None:
    sides = bounds.column_scaling(inputs)
    assert sides.holds()
    best = float(sides.right) / np.sqrt(inputs.shape[1] + 1)
    assert best <= float(sides.left) * (1 + 1e-9)  # no worse than where the search began


@given(SEEDS, st.integers(1, 3), st.integers(1, 3))
@settings(deadline=None)
def test_the_search_finds_the_known_best_scaling(seed: int, first: int, second: int) -> None:
    """With Property A equal norms are best, so that there is nothing to find (the paper, after Theorem 4)."""
    rng = generator(seed)
    basis = np.linalg.qr(rng.normal(size=(8, first + second)))[0]
    mixing = np.eye(first + second)
    mixing[:first, first:] = 0.3 * rng.normal(size=(first, second))
    matrix = basis @ np.linalg.cholesky(mixing + mixing.T + first * second * np.eye(first + second)).T
    matrix /= np.linalg.norm(matrix, axis=0)
    gram = matrix.T @ matrix
    np.testing.assert_allclose(gram[:first, :first], np.eye(first), atol=1e-12)
    stretched = matrix * np.exp(rng.normal(size=first + second))
    found = bounds.condition_number(stretched * bounds.best_scaling(stretched))
    np.testing.assert_allclose(found, np.linalg.cond(matrix), rtol=1e-6)


@given(batches())
@settings(deadline=None)
def test_unequal_variances_cost_at_most_their_ratio(inputs: Array) -> None:
    sides = bounds.unscaled_columns(inputs)
    spread = np.concatenate([[1.0], inputs.std(0)])
    np.testing.assert_allclose(sides.right, np.linalg.cond(normalized(inputs)) * spread.max() / spread.min(), rtol=1e-7)
    assert sides.holds()
    assert bounds.unscaled_columns(np.hstack([inputs, inputs * 3])).holds()  # of any rank


@given(batches(), SEEDS)
@settings(deadline=None)
def test_the_gain_is_within_the_conditioning_of_the_change_of_variables(inputs: Array, seed: int) -> None:
    curvature = generator(seed).normal(size=len(inputs))  # of any sign
    sides = bounds.gain(inputs, curvature)
    before, after = ((m.T * curvature) @ m for m in (augmented(inputs), normalized(inputs)))
    np.testing.assert_allclose(sides.left, np.linalg.cond(before) / np.linalg.cond(after), rtol=1e-4)
    np.testing.assert_allclose(sides.right, np.linalg.cond(matrices(inputs).preconditioner) ** 2, rtol=1e-6)
    assert sides.holds(1e-6)
    assert bounds.gain(inputs[: inputs.shape[1]] if inputs.shape[1] > 1 else inputs).holds(1e-6)  # of any rank


@given(SEEDS, st.integers(1, 5))
@settings(deadline=None)
def test_scaling_gains_all_of_it_for_orthogonal_centred_features(seed: int, width: int) -> None:
    rng = generator(seed)
    columns = np.linalg.qr(np.column_stack([np.ones(9), rng.normal(size=(9, width))]))[0][:, 1:]
    sides = bounds.gain(columns * 3 * np.exp(rng.normal(size=width)), form="printed")
    np.testing.assert_allclose(sides.left, sides.right, rtol=1e-7)


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), SEEDS)
@settings(deadline=None)
def test_the_product_is_conditioned_by_its_factors(rows: int, columns: int, rank: int, seed: int) -> None:
    """Of any rank, with S symmetric positive definite."""
    rng = generator(seed)
    matrix = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    half = rng.normal(size=(rows, rows))
    curvature = half @ half.T + 0.1 * np.eye(rows)
    sides = bounds.product_conditioning(matrix, curvature)
    assert not sides.broken
    assert sides.holds(1e-6)
    if rank >= columns <= rows:
        np.testing.assert_allclose(sides.left, np.linalg.cond(matrix.T @ curvature @ matrix), rtol=1e-4)


def test_the_product_is_not_with_samples_taken_out() -> None:
    matrix = np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    sides = bounds.product_conditioning(matrix, np.diag([1.0, 1.0, 0.0]))
    assert sides.broken == ("positive definite curvature",)
    assert not sides.holds()
