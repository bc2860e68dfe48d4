"""The simulations against what they simulate: the limit of many inputs, autograd, least squares."""

import numpy as np
import pytest
import torch

from trimtab.theory.generalization import sgd_curve
from trimtab.theory.simulation import (
    batch_norm_gradient,
    linear_losses,
    measure_decay,
    simulate,
    simulate_linear,
    weight_norm_gradient,
)
from trimtab.theory.teacher_student import solve


@pytest.mark.parametrize(("method", "zeta"), [("bn", 0.1), ("wn", 0.0), ("sgd", 0.0)])
@pytest.mark.parametrize(
    ("inputs", "runs", "tolerance"), [(500, 16, 0.03), pytest.param(2000, 8, 0.02, marks=pytest.mark.slow)]
)
def test_many_inputs_are_as_the_limit(method: str, zeta: float, inputs: int, runs: int, tolerance: float) -> None:
    t = np.linspace(0, 6, 13)
    limit = solve(t, 1.0, method=method, zeta=zeta)
    found = simulate(t, 1.0, method=method, zeta=zeta, inputs=inputs, runs=runs)
    assert limit.overlap[-1] > 0.6
    for name in ("overlap", "gamma", "length"):
        assert np.abs(getattr(found, name).mean(axis=1) - getattr(limit, name)).max() < tolerance, name


@pytest.mark.parametrize(("method", "zeta"), [("bn", 0.25), ("wn", 0.0), ("sgd", 0.0)])
def test_erf_from_another_start(method: str, zeta: float) -> None:
    start = {"gamma": 1.0 if method == "sgd" else 1.5, "overlap": 0.3, "length": 0.7}
    t = [0.5, 1.0, 2.0, 4.0]
    limit = solve(t, 1.5, method=method, zeta=zeta, activation="erf", **start)
    runs = simulate(t, 1.5, method=method, zeta=zeta, activation="erf", inputs=500, runs=16, **start)
    for name in ("gamma", "overlap", "length"):
        assert np.abs(getattr(runs, name).mean(axis=1) - getattr(limit, name)).max() < 0.03, name


def test_simulation_starts_exactly_where_it_is_told() -> None:
    path = simulate([0.0, 0.1], 1.0, gamma=0.6, overlap=-0.4, length=2.0, inputs=50, runs=3)
    np.testing.assert_allclose(path.gamma[0], 0.6)
    np.testing.assert_allclose(path.overlap[0], -0.4)
    np.testing.assert_allclose(path.length[0], 2.0)


def test_gradient_through_the_statistics_is_autograd_s() -> None:
    rng = np.random.default_rng(0)
    h, y, gamma = rng.standard_normal((3, 7)), rng.standard_normal((3, 7)), rng.standard_normal((3, 1))
    leaf, scale = torch.tensor(h, requires_grad=True), torch.tensor(gamma, requires_grad=True)
    unit = (leaf - leaf.mean(1, keepdim=True)) / leaf.std(1, keepdim=True, correction=0)
    (0.5 * (scale * unit - torch.tensor(y)) ** 2).mean(1).sum().backward()
    by_h, by_gamma = batch_norm_gradient(h, y, gamma)
    np.testing.assert_allclose(by_h / 7, leaf.grad, atol=1e-12)
    np.testing.assert_allclose(by_gamma, scale.grad, atol=1e-12)


def test_gradient_of_weight_normalization_is_autograd_s() -> None:
    rng = np.random.default_rng(0)
    x, y, w, gamma = (rng.standard_normal(shape) for shape in ((7, 5), (1, 7), (1, 5), (1, 1)))
    leaf, scale = torch.tensor(w, requires_grad=True), torch.tensor(gamma, requires_grad=True)
    fitted = scale * 5**0.5 * leaf @ torch.tensor(x).T / leaf.norm()
    (0.5 * (fitted - torch.tensor(y)) ** 2).mean().backward()
    norm2 = (w**2).sum()
    pull, by_gamma, radial = weight_norm_gradient(w @ x.T, y, gamma, np.sqrt(5 / norm2))
    np.testing.assert_allclose(pull @ x / 7 + radial / norm2 * w, leaf.grad, atol=1e-12)
    np.testing.assert_allclose(by_gamma, scale.grad, atol=1e-12)


def test_the_end_of_the_way_is_that_of_the_run() -> None:
    told = {"inputs": 64, "batch_size": 8, "steps": 60, "eta": 2.0}
    for more in ({"method": "bn"}, {"method": "wn", "zeta": 0.1}, {"method": "sgd"}):
        way = linear_losses([0.5, 1.5], [10, 40], **told, **more)
        last = simulate_linear([0.5, 1.5], **told, **more)
        assert way.steps.tolist() == [10, 40, 60] and way.excess_risk.shape == (3, 2)
        np.testing.assert_array_equal(way.excess_risk[-1], last.excess_risk)
        np.testing.assert_array_equal(way.training_loss[-1], last.training_loss)
        np.testing.assert_allclose(way.validation_loss[-1], last.validation_loss)
        assert (way.training_loss[0] > way.training_loss[-1]).all()


def test_weight_normalization_with_a_decay_is_ridge_regression() -> None:
    """½ζγ² is ½ζ‖v‖²/N for the weights v = γ√N w/‖w‖ in use, so that the minimizer is ridge's with ζα."""
    told = {"inputs": 64, "batch_size": 32, "steps": 5000, "eta": 4.0, "seed": 3}
    found = simulate_linear([0.5, 2.0], method="wn", zeta=0.3, **told)
    rng = np.random.default_rng(3)
    teacher = rng.standard_normal(64, dtype=np.float32)
    teacher *= 8 / np.linalg.norm(teacher)
    x = rng.standard_normal((128, 64), dtype=np.float32) / 8
    y = x @ teacher + 0.5 * rng.standard_normal(128)
    for k, count in enumerate((32, 128)):
        v = np.linalg.solve(x[:count].T @ x[:count] + 0.3 * count / 64 * np.eye(64), x[:count].T @ y[:count])
        assert found.excess_risk[k] == pytest.approx(np.mean((v - teacher) ** 2), rel=0.02)
        assert found.training_loss[k] == pytest.approx(np.mean((x[:count] @ v - y[:count]) ** 2), rel=0.02)


@pytest.mark.parametrize("method", ["sgd", "bn", "wn"])
def test_trained_long_both_come_near_the_pseudo_inverse(method: str) -> None:
    """Away from α = 1, where nothing converges. BatchNorm's batch noise leaves it there too: see the docs."""
    found = simulate_linear([0.4, 2.5], method=method, inputs=512, steps=6000)
    curve = sgd_curve(found.alpha)
    np.testing.assert_allclose(found.excess_risk, curve.excess_risk, rtol=0.12)
    np.testing.assert_allclose(found.training_loss, curve.training_loss, atol=0.03)
    np.testing.assert_allclose(found.gap, found.validation_loss - found.training_loss)


def test_divergence_is_said() -> None:
    with pytest.raises(ValueError, match="the runs diverge before t = 400"):
        simulate([400.0], 8.0, method="sgd", inputs=10, runs=2)
    with pytest.raises(ValueError, match="eta = 500 is too large"):
        simulate_linear([1.0], method="sgd", inputs=64, eta=500.0)


def test_bad_input_is_named() -> None:
    for message, call in (
        ("inputs must be a whole number, 2 or larger", lambda: simulate([1.0], 1.0, inputs=1)),
        ("inputs must be a whole number", lambda: simulate([1.0], 1.0, inputs=50.0)),
        ("runs must be a whole number", lambda: simulate([1.0], 1.0, runs=0)),
        ("seed must be a whole number", lambda: simulate([1.0], 1.0, seed=-1)),
        ("activation must be", lambda: simulate([1.0], 1.0, activation="gelu")),
        ("zeta is BatchNorm's", lambda: simulate([1.0], 1.0, method="sgd", zeta=1.0)),
        ("method must be bn, wn or sgd", lambda: simulate_linear([1.0], method="gn", inputs=64)),
        ("zeta must be 0 or larger", lambda: simulate_linear([1.0], method="wn", inputs=64, zeta=-1.0)),
        ("zeta must be 0 or larger, and 0 unless method is wn", lambda: simulate_linear([1.0], inputs=64, zeta=0.1)),
        ("at must be at most steps = 10, not 11", lambda: linear_losses([1.0], [11], inputs=64, steps=10)),
        ("at must be a whole number", lambda: linear_losses([1.0], [0], inputs=64, steps=10)),
        ("batch_size must be", lambda: simulate_linear([1.0], batch_size=2, inputs=64)),
        ("noise_variance must be", lambda: simulate_linear([1.0], noise_variance=-1.0, inputs=64)),
        ("alpha must be", lambda: simulate_linear([0.1], inputs=64)),
        ("alpha must be a finite number or a list", lambda: simulate_linear([], inputs=64)),
        ("alpha must be a finite number or a list", lambda: simulate_linear("a", inputs=64)),
        ("steps must be a whole number", lambda: simulate_linear([1.0], inputs=64, steps=0)),
        ("steps must be a whole number", lambda: simulate_linear([1.0], inputs=64, steps=10.0)),
        ("inputs must be a whole number", lambda: simulate_linear([1.0], inputs=64.0)),
        ("batch_size must be a whole number", lambda: simulate_linear([1.0], inputs=64, batch_size=32.0)),
        ("eta must be positive", lambda: simulate_linear([1.0], inputs=64, eta=0.0)),
        ("length must be a finite number", lambda: simulate_linear([1.0], inputs=64, length=float("nan"))),
        ("noise_variance must be", lambda: simulate_linear([1.0], inputs=64, noise_variance="a")),
        ("batch_size must be a whole number, 4 or larger", lambda: measure_decay(3)),
        ("batches must be a whole number", lambda: measure_decay(8, batches=100.0)),
        ("points must be a whole number", lambda: measure_decay(8, points=True)),
        ("gamma must not be 0", lambda: measure_decay(8, gamma=0.0)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_numpy_numbers_are_whole_numbers() -> None:
    one, other = (
        simulate_linear([1.0], inputs=kind(64), batch_size=kind(8), steps=kind(20)) for kind in (int, np.int64)
    )
    np.testing.assert_array_equal(one.excess_risk, other.excess_risk)


def test_steps_to_look_at_are_a_list() -> None:
    with pytest.raises(ValueError, match=r"at must be a list of steps, not 5"):
        linear_losses([0.5], 5, inputs=16, batch_size=4, steps=8)  # type: ignore[arg-type]
