"""The errata of the meanfield paper: the printed form fails, the corrected one holds."""

import math
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trimtab.probes import fisher_lambda_max
from trimtab.theory.mean_field import ACTIVATIONS, Conv, Dense, Pool, draw_network, mean_field

SIGMAS = {"sigma_w2": 2.0, "sigma_b2": 0.5}


def test_base_cases_of_the_input_are_printed_the_wrong_way_round() -> None:
    """Sec. 3.1.1 prints q̂⁰ = 0 and q̂⁰_xy = 1 for data of mean 0 and variance 1."""
    x = torch.randn(400, 100)
    gram = x @ x.T / 100
    assert float(gram.diag().mean()) == pytest.approx(1, abs=0.05)
    assert float((gram.sum() - gram.trace()) / (400 * 399)) == pytest.approx(0, abs=0.01)
    with pytest.raises(ValueError, match="q_hat0"):  # no data have them
        mean_field([Dense(3, 4), Dense(4, 1)], q_hat0=0.0, q_hat0_xy=1.0, **SIGMAS)


def test_the_variance_of_a_unit_is_not_q() -> None:
    """Eqs. 25, 42 and 43 divide by qˡ; BatchNorm divides by the variance over samples, qˡ − qˡ_xy."""
    torch.manual_seed(0)
    network = draw_network([Dense(300, 1000), Dense(1000, 1000), Dense(1000, 1)], gamma=1.0, **SIGMAS)
    h = network.node2(network.node1(network.node0(torch.randn(500, 300))))
    z = network.node3(h)
    found = float(z.detach().var(0, correction=0).mean())
    order = mean_field([Dense(300, 1000), Dense(1000, 1000), Dense(1000, 1)], norm="batch", **SIGMAS).layers[1]
    assert order.q - order.q_xy == pytest.approx(found, rel=0.03)
    assert order.q > 2 * found


def test_the_backward_recursion_of_a_convolution_needs_counts_of_positions() -> None:
    """Eqs. 123 = 124 and 116, 127: the mean over positions of ‖δ_α‖² falls with stride and flattening."""
    layers = [Conv(3, 200, 3, 2, size=13), Conv(200, 300, 3, 2), Dense(1200, 1)]
    exact, paper = (mean_field(layers, norm="batch", variant=v, **SIGMAS) for v in ("exact", "paper"))
    torch.manual_seed(0)
    network, z = draw_network(layers, gamma=1.0, **SIGMAS).train(), torch.zeros(0)

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal z
        z = output

    network.node3.register_forward_hook(keep)
    network.node4.eval()
    y = network(torch.randn(50, 3, 13, 13))
    with torch.no_grad():
        network.node4.running_mean.copy_(z.mean((0, 2, 3)))
        network.node4.running_var.copy_(z.var((0, 2, 3), correction=0))
    y = network(torch.randn(50, 3, 13, 13))
    (delta,) = torch.autograd.grad(y.sum(), z)
    found = float(delta.square().sum(1).mean())
    assert exact.layers[1].q_tilde == pytest.approx(found, rel=0.1)
    assert paper.layers[1].q_tilde > 1.5 * found  # although it divides by q, which is too large
    value = fisher_lambda_max(network, torch.randn(100, 3, 13, 13), outputs=0)
    assert mean_field(layers, norm="batch", samples=100, **SIGMAS).lambda_max == pytest.approx(value, rel=0.1)
    assert paper.lambda_max > 3 * value


def test_a_density_needs_its_minus_sign() -> None:
    """After eq. 9: exp(½‖f − y‖²) has no integral; exp(−½‖f − y‖²) has."""
    y = np.linspace(-30, 30, 6001)
    right, printed = (np.trapezoid(np.exp(sign * y**2 / 2), y) for sign in (-1, 1))
    assert right == pytest.approx(math.sqrt(2 * math.pi))
    assert printed > 1e100


def test_claim_6_6_needs_q_xy() -> None:
    """Eq. 118 and Claim 6.6 print q̃ˡ⁺¹ where q̃ˡ⁺¹_xy belongs, as eq. 143 has it: two layers up they differ."""
    layers = [Dense(200, 600), Dense(600, 600), Dense(600, 1)]
    deltas = []
    for seed in range(8):
        torch.manual_seed(seed)
        network = draw_network(layers, **SIGMAS)
        x = torch.randn(200, 200)
        z = network.node0(x).detach().requires_grad_()
        y = network.node4(network.node3(network.node2(network.node1(z))))
        (delta,) = torch.autograd.grad(y.sum(), z)
        total = delta.sum(0).square().sum() - delta.square().sum()
        deltas.append(float(total) / (200 * 199))
    result = mean_field(layers, **SIGMAS).layers
    c = result[0].q_xy / result[0].q
    slope = 2.0 * float(ACTIVATIONS["relu"].slope(1.0, 1.0, c))
    right, printed = slope * result[1].q_tilde_xy, slope * result[1].q_tilde
    assert right == pytest.approx(fmean(deltas), rel=0.08)
    assert printed > 1.25 * fmean(deltas)


def test_equations_52_and_53_have_a_stray_sigma_w2() -> None:
    """E σ²(γz) is γ²/2, as eq. 54 says; with the printed σ_w² = 2 it would be γ²."""
    gamma, z = 1.5, np.random.default_rng(0).standard_normal(200_000)
    mean = float(np.mean(np.maximum(gamma * z, 0) ** 2))
    assert mean == pytest.approx(gamma**2 / 2, rel=0.02)
    assert 2 * mean > 1.9 * gamma**2 / 2
    assert mean_field([Dense(3, 4), Dense(4, 1)], norm="batch", gamma=gamma, **SIGMAS).layers[1].q_hat == pytest.approx(
        gamma**2 / 2
    )


def test_equations_114_and_115_take_the_gradient_of_the_layer_above() -> None:
    """With the printed δˡ on both sides σ_w²γ²/(2 s²) would have to be 1; with δˡ⁺¹ it is the ratio of the two."""
    layers = [Dense(100, 50), Dense(50, 50), Dense(50, 1)]
    _, above, top = mean_field(layers, norm="batch", gamma=1.7, **SIGMAS).layers
    factor = 2.0 * 1.7**2 / (2 * (above.q - above.q_xy))
    assert above.q_tilde == pytest.approx(factor * top.q_tilde)
    assert factor != pytest.approx(1, rel=0.1)


def test_equations_95_to_98_sum_over_the_positions_of_the_layer_above() -> None:
    """α + δ leaves the image if α runs over K_l; over K_{l+1} it does not, and eq. 95 = eq. 96 holds."""
    h = torch.randn(6, 6, 4, dtype=torch.double)
    sites = [(i, j) for i in range(3) for j in range(3)]
    below, above = ([(i, j) for i in range(n) for j in range(n)] for n in (6, 4))
    with pytest.raises(IndexError):
        [h[a + i, b + j] for a, b in below for i, j in sites]
    pairs = [(p, q) for p in above for q in above if p != q]
    left = sum(float(h[p[0] + i, p[1] + j] @ h[q[0] + i, q[1] + j]) for p, q in pairs for i, j in sites)
    seen = [torch.stack([h[a + i, b + j] for a, b in above]) for i, j in sites]
    right = sum(float(x.sum(0) @ x.sum(0) - x.square().sum()) for x in seen)
    assert left == pytest.approx(right)


def test_equation_133_has_a_stray_gamma() -> None:
    """Without BatchNorm there is no γ; with the printed one, γ = 2, eq. 134 would not follow."""
    relu, q, c = ACTIVATIONS["relu"], 1.7, 0.6
    a, b = np.random.default_rng(0).multivariate_normal([0, 0], [[q, c], [c, q]], 200_000).T
    product = np.maximum(a, 0) * np.maximum(b, 0)
    assert float(relu.value(q, q, c)) == pytest.approx(product.mean(), rel=0.02)
    assert np.mean(np.maximum(2 * a, 0) * np.maximum(2 * b, 0)) > 3 * float(relu.value(q, q, c))


def test_equation_166_decouples_what_is_not_independent() -> None:
    """Eq. 45 and eq. 165 agree if q̂_αβ = q̂_xy; for samples with an image in common they do not."""
    layers = [Conv(3, 150, 3, size=8), Pool(None), Dense(150, 1)]
    same = mean_field(layers, norm="batch", q_hat0_xy=0.3, q_hat0_alphabeta=0.3, **SIGMAS).layers[0]
    assert same.term == pytest.approx(_decoupled(same))
    flat = [Conv(3, 150, 3, size=8), Dense(150 * 36, 1)]
    torch.manual_seed(0)
    values = []
    for _ in range(3):
        network = draw_network(flat, gamma=1.0, **SIGMAS)
        image = torch.randn(3, 8, 8)  # the same in all samples: q̂_xy = 0.5, and nothing at different positions
        x = (torch.randn(200, 3, 8, 8) + image) / math.sqrt(2)
        values.append(fisher_lambda_max(network, x, outputs=0))
    result = mean_field(flat, norm="batch", q_hat0_xy=0.5, bias_terms=True, samples=200, **SIGMAS)
    assert result.lambda_max == pytest.approx(fmean(values), rel=0.06)
    first = result.layers[0]
    assert _decoupled(first) < 0.1 * first.term


def _decoupled(order) -> float:
    """Eq. 45."""
    others = order.positions - 1
    back = others * order.q_tilde_alphabeta + order.q_tilde_xy
    return order.fan_in * back * (others * order.q_hat_alphabeta + order.q_hat_xy)
