"""Descent split into length and direction: against the minimizer, autograd and plain descent's known rate."""

import numpy as np
import pytest
import torch

from trimtab.theory.length_direction import least_squares_descents


def problem(seed: int, n: int = 10, kappa: float = 30.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    matrix = basis @ np.diag(np.geomspace(1, kappa, n)) @ basis.T
    return (matrix + matrix.T) / 2, rng.normal(size=n), rng.normal(size=n)


@pytest.mark.parametrize("seed", range(3))
def test_both_reach_the_minimum_and_plain_descent_at_its_rate(seed: int) -> None:
    found = least_squares_descents(*problem(seed), steps=400)
    assert found.plain[-1] < 1e-9 * found.plain[0] and found.split[-1] < 1e-9 * found.plain[0]
    assert (np.diff(found.split) <= 1e-12).all()
    assert found.plain[100] <= found.plain[0] * (29 / 31) ** 200 * 30  # the error in w, squared, times κ
    fast, slow = found.steps_to(1e-3), found.steps_to(1e-6)
    assert 0 < fast[0] < slow[0] and 0 < fast[1] < slow[1]
    assert found.steps_to(0.0)[0] == np.inf or found.plain.min() == 0


def test_a_step_is_autograd_s() -> None:
    """g is the best for the direction, and v moves against the gradient of the loss with that g."""
    matrix, u, start = problem(5)
    found = least_squares_descents(matrix, u, start, steps=1)
    s, target = torch.tensor(matrix), torch.tensor(u)
    v = torch.tensor(start, requires_grad=True)
    g = (target @ v / (v @ s @ v).sqrt()).detach()
    w = g * v / (v @ s @ v).sqrt()
    loss = 0.5 * w @ s @ w - target @ w
    best = float(-0.5 * target @ torch.linalg.solve(s, target))
    assert found.split[0] == pytest.approx(loss.item() - best)
    (slope,) = torch.autograd.grad(loss, v)
    size = float(v.detach() @ s @ v.detach())
    there = v.detach() - size / (2 * 30 * abs(loss.item())) * slope
    value = -0.5 * (target @ there) ** 2 / (there @ s @ there)
    assert found.split[1] == pytest.approx(value.item() - best)


def test_bad_input() -> None:
    for words, call in (
        ("positive definite", lambda: least_squares_descents(-np.eye(2), [1, 1], [1, 1])),
        ("orthogonal", lambda: least_squares_descents(np.eye(2), [1, 0], [0, 1])),
        ("steps must be", lambda: least_squares_descents(np.eye(2), [1, 0], [1, 1], steps=0)),
        ("target", lambda: least_squares_descents(np.eye(2), [1, 0, 3], [1, 1])),
    ):
        with pytest.raises(ValueError, match=words):
            call()
