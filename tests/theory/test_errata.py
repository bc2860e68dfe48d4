"""The slips of the bnp and landscape papers: what is printed fails, what is right holds. docs/errata.md lists them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd.functional import hessian, jacobian

from tests.theory.bounds_cases import SEEDS, Array, generator, tensor, units
from tests.theory.test_bounds_descent import network, run
from trimtab.bnp.algorithm import transform
from trimtab.theory import bounds
from trimtab.theory.bounds.landscape import standardize

Unit = tuple[Array, float, Array, Array]

# --- landscape ---


@given(units())
@settings(deadline=None)
def test_theorem_4_1_and_eqs_9_and_17(unit: Unit) -> None:
    """1/√m ⟨∇L, ŷ⟩² → 1/m; then an equation."""
    activations, gamma, gradient, _ = unit
    assume(abs(gradient @ standardize(activations).standard) > 0.1)
    assert not bounds.lipschitzness(activations, gamma, gradient, form="printed").holds()
    assert bounds.lipschitzness(activations, gamma, gradient).holds()


def test_theorem_4_1_may_be_negative_as_printed() -> None:
    """A squared norm is not."""
    activations = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0])
    assert float(bounds.lipschitzness(activations, 1.0, activations, form="printed").right) < 0


@given(units())
@settings(deadline=None)
def test_theorem_4_2_is_an_equation(unit: Unit) -> None:
    assert bounds.smoothness(*unit).holds()
    assert bounds.smoothness(*unit, form="printed").holds()  # not wrong, but less than could be said


def test_theorem_4_2_second_part() -> None:
    """gᵀHg → γ²/σ²·gᵀHg: H = I preserves every norm, yet for γ > σ the printed form fails."""
    activations, gradient = np.array([1.0, -1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0, -1.0])
    sides = bounds.smoothness_by_gradient(activations, 2.0, gradient, np.eye(4), form="printed")
    assert not sides.broken
    assert not sides.holds()
    assert bounds.smoothness_by_gradient(activations, 2.0, gradient, np.eye(4)).holds()
    assert bounds.smoothness_by_gradient(activations, 0.5, gradient, np.eye(4), form="printed").holds()  # γ ≤ σ


def test_after_theorem_4_2_the_sign_of_the_inner_product() -> None:
    """ "⟨ŷ, g⟩ > 0 holds as long as the negative gradient points towards the minimum": it points there, and is −m."""
    unit = standardize(np.array([1.0, 4.0, 2.0, 0.0]))
    z, minimum = tensor(unit.standard), tensor(2 * unit.standard)
    gradient = jacobian(lambda v: 0.5 * (v - minimum).square().sum(), z)
    torch.testing.assert_close(z - gradient, minimum)
    assert unit.standard @ gradient.numpy() == pytest.approx(-4)
    sides = bounds.smoothness(unit.standard, 1.0, gradient.numpy() + np.array([1, -1, -1, 1]), np.zeros((4, 4)))
    assert float(sides.right) > 0  # and then BatchNorm adds to the curvature


@given(units(), st.floats(0.3, 3))
@settings(deadline=None)
def test_theorem_4_4(unit: Unit, radius: float) -> None:
    """g² − mμ_g² − λ²⟨∇L, ŷ⟩² → g − λ²mμ_g² − (λ²/m)⟨∇L, ŷ⟩²."""
    activations, gamma, gradient, _ = unit
    assert bounds.weight_lipschitzness(activations, gamma, gradient, radius).holds()


def test_theorem_4_4_fails_as_printed() -> None:
    activations, gradient = np.array([1.0, 2.0, 3.0, 6.0]), np.array([0.5, 0.1, -0.3, 0.2])
    assert not bounds.weight_lipschitzness(activations, 1.0, gradient, 1.0, form="printed").holds()
    assert bounds.weight_lipschitzness(activations, 1.0, gradient, 1.0).holds()


def test_eq_18_is_of_the_network_without_batchnorm() -> None:
    """g = max ‖∂L̂/∂W‖² → max ‖∂L/∂W‖²."""
    activations, gradient = np.array([1.0, 2.0, 3.0, 6.0]), np.array([0.5, 0.1, -0.3, 0.2])
    with_batchnorm = float(bounds.weight_lipschitzness(activations, 1.0, gradient, 2.0).left)
    assert with_batchnorm != pytest.approx(4 * float(gradient @ gradient))


@given(units())
@settings(deadline=None)
def test_eq_34(unit: Unit) -> None:
    """ĝĝᵀ → ŷĝᵀ, as in eq. 31."""
    activations, gamma, gradient, curved = unit
    normal = standardize(activations)
    size, y_hat = len(activations), normal.standard
    inner, ones = gradient @ y_hat, np.ones((size, size))

    def assembled(outer: Array) -> Array:
        """Eqs. 31 to 33."""
        first = size * curved - ones @ curved - np.eye(size) * inner / gamma
        first = first - np.outer(y_hat, y_hat) @ curved - outer / gamma
        through = gamma / normal.sigma * (np.eye(size) - ones / size - np.outer(y_hat, y_hat) / size)
        rest = np.outer(gradient - gradient.mean() - y_hat * inner / size, y_hat)
        return gamma / (size * normal.sigma) * first @ through - gamma / (size * normal.sigma**2) * rest

    right = bounds.bn_hessian(activations, gamma, gradient, curved)
    tolerance = 1e-9 * max(1.0, np.abs(right).max(), (gamma / normal.sigma) ** 2 * np.abs(curved).max() * size)
    np.testing.assert_allclose(assembled(np.outer(y_hat, gradient)), right, atol=tolerance)
    assert np.abs(assembled(np.outer(gradient, gradient)) - right).max() > tolerance


@given(units(), SEEDS)
@settings(deadline=None)
def test_eq_57(unit: Unit, seed: int) -> None:
    """ĝᵀ(I − ŷŷᵀ/m) → γ/σ·(ĝ − mean)ᵀ(I − ŷŷᵀ/m), on both sides of the Hessian."""
    activations, gamma, gradient, curved = unit
    normal = standardize(activations)
    size = len(activations)
    assume(abs(gamma / normal.sigma - 1) > 0.05 or abs(gradient.mean()) > 0.1)
    gram = (lambda x: x @ x.T)(generator(seed).normal(size=(size, 3)))
    through = bounds.bn_hessian(activations, gamma, gradient, curved)
    slope = bounds.bn_gradient(activations, gamma, gradient)
    beta = slope @ gram @ through @ gram @ slope
    removed = np.eye(size) - np.outer(normal.standard, normal.standard) / size
    right = gamma / normal.sigma * removed @ (gradient - gradient.mean())
    printed = removed @ gradient
    assert right @ gram @ through @ gram @ right == pytest.approx(beta, rel=1e-6)
    assume(abs(beta) > 1e-3)
    assert printed @ gram @ through @ gram @ printed != pytest.approx(beta, rel=1e-6)


@given(units(), st.floats(0.3, 3))
@settings(deadline=None)
def test_eq_58(unit: Unit, radius: float) -> None:
    """The maximum over ‖X‖ ≤ λ is not at X = λI: it is never below 0, and in general larger."""
    sides = bounds.claimed_curvature(*unit, radius)
    assert float(sides.left) > float(sides.right)
    assert not sides.holds()


def test_theorem_c_1() -> None:
    """Max β − λ⁴κ → (γ²/σ²) max β + λ⁴ max(0, −κ) + λ⁴(3√3/8)σ‖∇L̂‖³/(γ²√m): a linear loss breaks the printed form."""
    activations, gradient = np.array([1.0, 2.0, 3.0, 6.0]), np.array([0.0, 1.0, 0.5, 2.0])
    flat = np.zeros((4, 4))
    assert gradient @ standardize(activations).standard > 0
    printed = bounds.weight_smoothness(activations, 1.0, gradient, flat, 1.0, form="printed")
    assert float(printed.right) < 0 < float(printed.left)
    assert bounds.weight_smoothness(activations, 1.0, gradient, flat, 1.0).holds()


def test_theorem_c_1_fails_for_curved_convex_losses_too() -> None:
    rng, failures = generator(0), 0
    for _ in range(200):
        half = rng.normal(size=(6, 6))
        activations, gradient = rng.normal(size=6), rng.normal(size=6)
        unit = standardize(activations)
        gradient += max(0.0, 0.5 - float(gradient @ unit.standard)) * unit.standard  # ⟨g, ŷ⟩ > 0, as the paper wants
        case = (activations, 0.5 * unit.sigma, gradient, 0.05 * half @ half.T, 1.0)
        failures += not bounds.weight_smoothness(*case, form="printed").holds()
        assert bounds.weight_smoothness(*case).holds()
    assert failures > 10


def test_observation_4_3_needs_a_bias() -> None:
    """y = Wx → y = Wx + b: without b, a minimum over W is not even stationary once β may move."""
    x = np.array([[-1.0], [0.0], [1.0]])
    target = x[:, 0] + 1
    weight = np.array([1.0])  # the least squares over w alone
    gradient = x @ weight - target
    assert x.T @ gradient == pytest.approx(0)
    sides = bounds.kept_minima(x, weight, gradient, form="printed")
    assert not sides.holds()
    np.testing.assert_allclose(sides.right, 0, atol=1e-12)  # what stationary means without a bias
    np.testing.assert_allclose(sides.left, [0, 0, -3], atol=1e-12)  # ∂L̂/∂β is not 0
    assert bounds.kept_minima(x, weight, gradient).holds()
    fitted = np.column_stack([np.ones(3), x])
    residual = fitted @ np.linalg.lstsq(fitted, target**2, rcond=None)[0] - target**2
    np.testing.assert_allclose(bounds.kept_minima(x, weight, residual).left, 0, atol=1e-12)  # with one it is kept


# --- bnp ---


def test_theorem_1_needs_a_small_learning_rate() -> None:
    """ "Clearly, r < 1" → for 0 < α < 2/λ_max. Beyond, no start is near enough for all k."""
    loss, optimum = network(3)
    curved = hessian(loss, tensor(optimum)).numpy()
    learning_rate = 2.5 / np.linalg.eigvalsh(curved)[-1]
    for size in (1e-2, 1e-4):
        distances = run(loss, optimum, optimum + size * np.array([1.0, -1.0, 0.5]), learning_rate, 40)
        sides = bounds.contraction(np.array(distances)[np.array(distances) < 1e6], curved, learning_rate)
        assert sides.broken == ("a learning rate below 2/λ_max",)
        assert not sides.holds(0.05)


def test_section_3_3_the_gain_is_not_limited_by_scaling() -> None:
    """κ(D)² → κ(P)²: features of variance 1 and large mean have κ(D) = 1."""
    rng = generator(0)
    inputs = rng.normal(size=(20, 3))
    inputs = (inputs - inputs.mean(0)) / inputs.std(0) + 5
    printed = bounds.gain(inputs, form="printed")
    assert printed.right == pytest.approx(1)
    assert float(printed.left) > 1000
    assert bounds.gain(inputs).holds()


def sparse(size: int, draws: int = 400) -> Array:
    """Independent entries of mean 0 and variance 1, about one of them not 0: ±size with probability 1/size²."""
    rng = generator(size)
    return size * rng.choice([-1.0, 1.0], size=(draws, size, size)) * (rng.random((draws, size, size)) < size**-2.0)


def test_proposition_5_needs_a_fourth_moment() -> None:
    """C → C·(E g⁴)^¼: independence, mean 0 and variance 1 do not give a constant."""
    ratios = []
    for size in (10, 40, 90):
        draws = sparse(size)
        assert draws.var() == pytest.approx(1, rel=0.15)
        sides = bounds.normalized_norm(draws, form="printed")
        ratios.append(float(sides.left) / size**0.5)
        assert bounds.normalized_norm(draws).holds()
    assert not sides.holds()
    assert ratios[2] / ratios[0] == pytest.approx(3, rel=0.25)  # it grows like √n


def test_proposition_5_proof_the_largest_row() -> None:
    """E max‖gᵢ‖² = n → larger: N = 1000, n = 3."""
    rows = (generator(0).normal(size=(200, 1000, 3)) ** 2).sum(2)
    assert rows.mean() == pytest.approx(3, rel=0.01)
    assert rows.max(1).mean() == pytest.approx(17.6, abs=0.5)


def test_proposition_5_proof_the_norm_with_the_ones() -> None:
    """E‖[e, G]‖ = max(√N, E‖G‖) → ≤ √N + E‖G‖: random columns are not orthogonal to e."""
    draws = generator(0).normal(size=(400, 5, 3))
    with_ones = np.linalg.norm(np.concatenate([np.ones((400, 5, 1)), draws], 2), 2, axis=(1, 2)).mean()
    without = np.linalg.norm(draws, 2, axis=(1, 2)).mean()
    assert with_ones > 1.05 * max(5**0.5, without)
    assert with_ones <= 5**0.5 + without


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
@settings(deadline=None)
def test_proposition_6(n_in: int, n_out: int, batch: int) -> None:
    """2n′ → n′ and four operations on single numbers; test_bounds_operations.py counts them."""
    assert bounds.bnp_operations(n_in, n_out, batch).holds()
    printed = bounds.bnp_operations(n_in, n_out, batch, form="printed")
    assert float(printed.right) - float(printed.left) == n_out - 4


def test_after_proposition_6_the_cost_of_batchnorm() -> None:
    """24nN − 3n for the backward pass → 7nN + n, and 1 for 1 − ρ; test_bounds_operations.py counts them."""
    printed = bounds.bn_operations(100, 64, form="printed")
    assert not printed.holds()
    assert float(printed.right) - float(printed.left) == (24 * 64 - 3 - 7 * 64 - 1) * 100 - 1
    assert bounds.bn_operations(100, 64).holds()


def test_proposition_7() -> None:
    """b̂ = b − W diag(μ/σ) → b − W(μ/σ): the printed form is no vector of n′ entries."""
    rng = generator(0)
    inputs, weight, bias = rng.normal(size=(8, 3)) + 2, rng.normal(size=(2, 3)), rng.normal(size=2)
    mean, sigma = inputs.mean(0), inputs.std(0)
    assert (weight @ np.diag(mean / sigma)).shape != bias.shape
    expected = (inputs - mean) / sigma @ weight.T + bias
    np.testing.assert_allclose(inputs @ (weight / sigma).T + bias - weight @ (mean / sigma), expected)
    assert bounds.one_step(inputs, weight, bias, rng.normal(size=(8, 2)), 0.1).holds()


@given(SEEDS)
@settings(deadline=None)
def test_the_index_of_h_p(seed: int) -> None:
    """The column (j−1)k + v belongs to w(j, v) → w(v, j)."""
    rng = generator(seed)
    inputs, weight = rng.normal(size=(2, 2, 5, 4)), rng.normal(size=(2, 3, 3))
    outputs = F.conv2d(tensor(inputs), tensor(weight)[None], tensor([0.5]), padding="same")[:, 0].numpy()
    assert bounds.convolution_as_product(outputs, inputs, weight, 0.5).holds()
    assert not bounds.convolution_as_product(outputs, inputs, weight, 0.5, form="printed").holds()


def test_proposition_10_proof_the_padded_size() -> None:
    """r + (k−1)/2 → r + k − 1."""
    r, s, k = 5, 7, 3
    padded = F.pad(torch.zeros(1, 1, r, s), ((k - 1) // 2,) * 4)
    assert padded.shape[2:] == (r + k - 1, s + k - 1) != (r + (k - 1) // 2, s + (k - 1) // 2)
    assert F.conv2d(padded, torch.zeros(1, 1, k, k)).shape[2:] == (r, s)


def test_proposition_10_needs_a_kernel_that_is_not_too_large() -> None:
    """Any odd k → (k−1)/2 ≤ r, s: for 1×1 maps and k = 5 the printed bound is 0, the error is not."""
    sides = bounds.site_means(np.ones((1, 1, 1, 1)), 5)
    assert sides.broken
    assert np.max(sides.right) == 0
    assert np.max(sides.left) == 1
    assert bounds.site_means(np.ones((1, 1, 2, 2)), 5).holds()


@given(SEEDS)
@settings(deadline=None)
def test_eq_23(seed: int) -> None:
    """P with σ → with σ̃, which Algorithm 3 divides by."""
    rng = generator(seed)
    channels, sites = 3, 9
    mean, variance = rng.normal(size=channels), rng.uniform(0.1, 2, size=channels)
    weight, bias = rng.normal(size=(channels, sites)), rng.normal()
    scale = transform.regularized(tensor(variance)[None, None, :, None], 1e-2, 1e-4)
    ours = transform.precondition(
        tensor(weight)[None, None], tensor([bias])[None, :, None, None], tensor(mean)[None, None, :, None], scale, 1.0
    )
    stepped = np.append(ours[1].numpy().ravel(), ours[0].numpy().ravel())
    gradient = np.append(bias, weight.ravel())

    def by_eq_23(sigma: Array) -> Array:
        matrix = np.diag(np.append(1.0, np.repeat(1 / sigma, sites)))
        matrix[0, 1:] = -np.repeat(mean / sigma, sites)
        return matrix @ matrix.T @ gradient

    np.testing.assert_allclose(by_eq_23(np.sqrt(scale.numpy().ravel())), stepped, rtol=1e-9, atol=1e-9)
    assert not np.allclose(by_eq_23(np.sqrt(variance)), stepped, rtol=1e-4)
