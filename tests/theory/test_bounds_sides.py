"""What `Sides` says, and what bad input gets."""

from collections.abc import Callable

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
        (lambda: bounds.bnp_operations(0, 1, 1), "n_in must be a whole number"),
        (lambda: bounds.bnp_operations(3, 1.5, 1), "n_out must be a whole number"),  # type: ignore[arg-type]
        (lambda: bounds.bnp_operations(3, 1, True), "batch must be a whole number"),
        (lambda: bounds.bn_operations(3, 1.5), "batch must be a whole number"),  # type: ignore[arg-type]
        (lambda: bounds.optimal_learning_rate(np.diag([-2.0, 1.9])), "hessian has an eigenvalue below 0"),
        (lambda: bounds.optimal_learning_rate(np.diag([-1.0, 1.0])), "hessian has an eigenvalue below 0"),
        (lambda: bounds.seginer(np.ones((2, 3, 4)), constant=-1.0), "constant must be above 0"),
        (lambda: bounds.unfold(np.ones((1, 1, 4, 4)), 3.0), "kernel must be a whole number"),  # type: ignore[arg-type]
        (lambda: bounds.site_means(np.ones((1, 1, 4, 4)), 0), "kernel must be a whole number"),
        (
            lambda: bounds.convolution_hessian(np.eye(10), np.ones((2, 1, 3, 3)), 3, np.ones((3, 9, 9))),
            r"blocks must have the shape \(2, 9, 9\), not \(3, 9, 9\)",
        ),
        (lambda: bounds.centring([[1.0, 2.0], [3.0]]), "inputs must be an array of numbers"),
        (lambda: bounds.centring([["a", "b"]]), "inputs must be an array of numbers"),
        (lambda: bounds.contraction([1.0, 0.5], np.eye(2), "a"), "learning_rate must be a finite number"),  # type: ignore[arg-type]
        (lambda: bounds.claimed_curvature(Y, 1.0, GRADIENT, HESSIAN, 1e200), "radius must be at most 1e\\+75"),
        (lambda: bounds.weight_smoothness(Y, 1e200, GRADIENT, HESSIAN, 1.0), "gamma must be at most 1e\\+75"),
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


@pytest.mark.parametrize("gamma", [np.nan, np.inf, 1e200, "a"])
@pytest.mark.parametrize(
    "call",
    [
        lambda gamma: bounds.bn_gradient(Y, gamma, GRADIENT),
        lambda gamma: bounds.bn_hessian(Y, gamma, GRADIENT, HESSIAN),
        lambda gamma: bounds.lipschitzness(Y, gamma, GRADIENT),
        lambda gamma: bounds.smoothness(Y, gamma, GRADIENT, HESSIAN),
        lambda gamma: bounds.smoothness_by_gradient(Y, gamma, GRADIENT, HESSIAN),
        lambda gamma: bounds.weight_lipschitzness(Y, gamma, GRADIENT, 1.0),
        lambda gamma: bounds.claimed_curvature(Y, gamma, GRADIENT, HESSIAN, 1.0),
        lambda gamma: bounds.weight_smoothness(Y, gamma, GRADIENT, HESSIAN, 1.0),
    ],
)
def test_a_gamma_that_is_none_is_named(call: Callable[[object], object], gamma: object) -> None:
    with pytest.raises(ValueError, match="gamma must be"):
        call(gamma)


def test_at_gamma_0_both_sides_are_0_and_below_it_the_equations_hold_too() -> None:
    gradient = np.array([1.0, -2.0, 0.5, 3.0])
    assert not bounds.bn_hessian(Y, 0.0, gradient, HESSIAN).any()
    for gamma in (0.0, -1.3):
        for sides in (
            bounds.lipschitzness(Y, gamma, gradient),
            bounds.smoothness(Y, gamma, gradient, HESSIAN),
            bounds.weight_lipschitzness(Y, gamma, gradient, 2.0),
        ):
            assert sides.holds()
            assert (sides.left == 0) == (gamma == 0)
    sides = bounds.claimed_curvature(Y, 0.0, gradient, HESSIAN, 1.0)
    assert sides.left == sides.right == 0
