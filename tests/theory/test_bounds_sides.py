"""What `Sides` says, and what bad input gets."""

import numpy as np
import pytest

from trimtab.theory import bounds


def test_an_inequality_holds_up_to_its_tolerance() -> None:
    assert bounds.Sides(1.0, 2.0).holds()
    assert bounds.Sides(1.0, 2.0).slack == 1.0
    assert bounds.Sides(1.0 + 1e-12, 1.0).holds()
    assert not bounds.Sides(1.01, 1.0).holds()
    assert bounds.Sides(1.01, 1.0).holds(0.02)


def test_every_entry_counts() -> None:
    sides = bounds.Sides(np.array([1.0, 3.0]), np.array([2.0, 2.0]))
    assert sides.slack == -1.0
    assert not sides.holds()


def test_an_equation_fails_on_both_sides() -> None:
    for left in (0.9, 1.1):
        sides = bounds.Sides(left, 1.0, "==")
        assert sides.slack == pytest.approx(-0.1)
        assert not sides.holds()


def test_rounding_is_measured_by_the_largest_term() -> None:
    assert not bounds.Sides(1e-8, 0.0, "==").holds()
    assert bounds.Sides(1e-8, 0.0, "==", scale=100.0).holds()


Y, GRADIENT, HESSIAN = np.arange(4.0), np.ones(4), np.eye(4)
ROWS = np.arange(12.0).reshape(6, 2) ** 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.centring(Y), "inputs must have 2 dimensions"),
        (lambda: bounds.centring(np.full((3, 2), np.nan)), "inputs has entries that are not finite"),
        (lambda: bounds.centring(np.ones((3, 2))), "inputs has a feature that does not vary"),
        (lambda: bounds.centring(np.ones((0, 2))), "inputs is empty"),
        (lambda: bounds.condition_number(np.zeros((2, 2))), "is 0 and has no condition number"),
        (lambda: bounds.van_der_sluis(np.array([[1.0, 0.0]])), "matrix has a column of zeros"),
        (lambda: bounds.van_der_sluis(ROWS, [1.0, 0.0]), "scaling must have no 0"),
        (lambda: bounds.gain(ROWS, form="right"), "form must be 'corrected' or 'printed', not 'right'"),  # type: ignore[arg-type]
        (lambda: bounds.gain(ROWS, np.ones(3)), r"curvature must have the shape \(6,\), not \(3,\)"),
        (lambda: bounds.product_conditioning(np.eye(2), [[0, 1], [0, 0]]), "curvature must be symmetric"),
        (lambda: bounds.contraction([1.0], np.eye(2), 0.1), "distances must be two or more"),
        (lambda: bounds.contraction([1.0, 0.5], np.eye(2), 0.0), "learning_rate must be above 0"),
        (lambda: bounds.contraction([1.0, 0.5], -np.eye(2), 0.1), "hessian has no eigenvalue above 0"),
        (lambda: bounds.unfold(np.ones((1, 1, 4, 4)), 2), "kernel must be an odd number above 0, not 2"),
        (lambda: bounds.bnp_operations(0, 1, 1), "n_in must be above 0"),
        (lambda: bounds.lipschitzness(np.ones(3), 1.0, np.ones(3)), "activations do not vary"),
        (lambda: bounds.lipschitzness(Y, 1.0, np.ones(3)), r"gradient must have the shape \(4,\)"),
        (lambda: bounds.smoothness(Y, 1.0, GRADIENT, np.eye(3)), r"hessian must have the shape \(4, 4\)"),
        (lambda: bounds.weight_lipschitzness(Y, 1.0, GRADIENT, -1.0), "radius must be above 0"),
        (lambda: bounds.weight_smoothness(Y, 0.0, GRADIENT, HESSIAN, 1.0), "gamma must be above 0"),
        (lambda: bounds.initialization(Y, np.zeros(4)), "optimum is 0"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
