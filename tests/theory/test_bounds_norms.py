"""bnp Prop. 5 and Lemma A2, on random matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.theory.bounds_cases import Array, batches, generator
from trimtab.theory import bounds


@pytest.mark.parametrize(("samples", "width"), [(4, 3), (4, 64), (64, 4), (64, 64), (3, 100)])
@pytest.mark.parametrize("distribution", ["normal", "signs", "uniform"])
def test_one_constant_does_for_all_widths(samples: int, width: int, distribution: str) -> None:
    rng, shape = generator(0), (40, samples, width)
    draws = {
        "normal": lambda: rng.normal(size=shape),
        "signs": lambda: rng.choice([-1.0, 1.0], size=shape),
        "uniform": lambda: rng.uniform(-(3**0.5), 3**0.5, size=shape),
    }[distribution]()
    sides = bounds.normalized_norm(draws)
    with_ones = np.concatenate([np.ones((40, samples, 1)), draws], axis=2)
    expected = np.mean([np.linalg.svd(m, compute_uv=False)[0] for m in with_ones]) / max(width / samples, 1) ** 0.5
    assert sides.left == pytest.approx(expected)
    assert sides.holds()
    assert not sides.broken
    assert bounds.normalized_norm(draws, form="printed").holds()


def test_correlated_features_break_it() -> None:
    """Copies of one normalized feature: ‖Ĝ‖ = √(nN)."""
    column = np.array([1.0, -1.0] * 32)
    for width in (4, 16, 64):
        sides = bounds.normalized_norm(np.repeat(column[None, :, None], width, axis=2))
        assert sides.left == pytest.approx((width * 64) ** 0.5)
        assert sides.holds() == (width <= 9)


def test_fewer_than_three_features_are_named() -> None:
    assert bounds.normalized_norm(np.ones((1, 5, 2))).broken == ("n at least 3",)


@given(batches())
@settings(deadline=None)
def test_the_ones_are_orthogonal_to_centred_columns(inputs: Array) -> None:
    sides = bounds.orthogonal_norm((inputs - inputs.mean(0)) / inputs.std(0))
    assert not sides.broken
    assert sides.holds()
    shifted = bounds.orthogonal_norm(np.abs(inputs))
    assert shifted.broken
    assert not shifted.holds()


@given(st.integers(3, 30), st.integers(3, 30), st.integers(0, 99))
@settings(deadline=None)
def test_seginer(rows: int, columns: int, seed: int) -> None:
    draws = generator(seed).normal(size=(20, rows, columns))
    sides = bounds.seginer(draws)
    assert sides.holds()
    assert not sides.broken
    # Each row and each column is at most the norm of the whole, whatever the constant.
    assert float(sides.right) / 4 <= 2 * float(sides.left)


def test_the_order_has_a_limit() -> None:
    draws = generator(0).normal(size=(5, 4, 4))
    assert bounds.seginer(draws, 2.7).broken == ()
    assert bounds.seginer(draws, 2.8).broken == ("k at most 2 log max(m, n)",)
