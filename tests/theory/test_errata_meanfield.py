"""The errata of the meanfield paper: the printed form fails, the corrected one holds."""

import math
from statistics import fmean

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call

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
    """After eq. 9: by eq. 9 the Fisher matrix is also E ∇²(−log p); with exp(½‖f − y‖²) that is minus eq. 10."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    names = [name for name, _ in network.named_parameters()]
    sizes = [parameter.numel() for parameter in network.parameters()]
    start = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    x = torch.randn(4000, 3, dtype=torch.double)
    y = network(x).detach() + torch.randn(4000, 1, dtype=torch.double)  # drawn from the density itself

    def outputs(theta: Tensor) -> Tensor:
        parts = (part.view(network.get_parameter(n).shape) for n, part in zip(names, theta.split(sizes), strict=True))
        return functional_call(network, dict(zip(names, parts, strict=True)), (x,))

    rows = jacobian(lambda theta: outputs(theta).squeeze(1), start, vectorize=True)
    fisher = rows.T @ rows / len(x)  # eq. 10
    right, printed = (
        -hessian(lambda theta, sign=sign: sign * (outputs(theta) - y).square().mean() / 2, start) for sign in (-1, 1)
    )
    assert float((right - fisher).norm()) < 0.1 * float(fisher.norm())
    assert float(torch.linalg.eigvalsh(printed)[0]) < -0.9 * float(torch.linalg.eigvalsh(fisher)[-1])


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
    """q̂ is what the next layer's mean square, σ_b² + σ_w² q̂, is made of; with the printed σ_w² it would be larger."""
    gamma, (w, b) = 1.5, SIGMAS.values()
    torch.manual_seed(0)
    network = draw_network([Dense(300, 1500), Dense(1500, 1500), Dense(1500, 1)], gamma=gamma, **SIGMAS)
    h = network.node2(network.node1(network.node0(torch.randn(300, 300))))
    next_square = float(network.node3(h).detach().square().mean())
    z, weights = np.polynomial.hermite_e.hermegauss(64)
    integral = float(weights @ np.maximum(gamma * z, 0) ** 2 / weights.sum())  # of eq. 53, without the factor
    assert b + w * integral == pytest.approx(next_square, rel=0.04)
    assert b + w * (w * integral) > 1.5 * next_square
    exact = mean_field([Dense(3, 4), Dense(4, 1)], norm="batch", gamma=gamma, **SIGMAS)
    assert exact.layers[1].q_hat == pytest.approx(integral, rel=1e-6)


def test_equations_114_and_115_take_the_gradient_of_the_layer_above() -> None:
    """E‖δˡ‖² of a network is σ_w²γ²/(2s²) E‖δˡ⁺¹‖²; with δˡ on the right, as printed, the factor would have to be 1."""
    layers, gamma = [Dense(200, 800), Dense(800, 800), Dense(800, 800), Dense(800, 1)], 1.7
    torch.manual_seed(0)
    network, x = draw_network(layers, gamma=gamma, **SIGMAS), torch.randn(400, 200)
    for module in network.children():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = None  # the running statistics become those of this batch
    network(x)
    network.eval()
    kept: list[Tensor] = []
    for node in (network.node0, network.node3, network.node6):
        node.register_forward_hook(lambda module, inputs, output: kept.append(output))
    y = network(x)
    squares = [float(delta.square().sum(1).mean()) for delta in torch.autograd.grad(y.sum(), kept)]
    for level in (0, 1):
        s2 = float(kept[level].detach().var(0, correction=0).mean())
        factor = SIGMAS["sigma_w2"] * gamma**2 / (2 * s2)
        assert factor * squares[level + 1] == pytest.approx(squares[level], rel=0.08)
        assert factor * squares[level] != pytest.approx(squares[level], rel=0.25)


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
    """Without BatchNorm there is no γ: q_xy of the next layer is what the integral gives without one, and not with."""
    torch.manual_seed(0)
    layers, x = [Dense(300, 2000), Dense(2000, 2000), Dense(2000, 1)], torch.randn(2, 300)
    x[1] = 0.8 * x[0] + 0.6 * x[1]
    below, above = [], []
    for _ in range(4):
        network = draw_network(layers, **SIGMAS)
        z = network.node0(x).detach()
        below.append(z @ z.T / z.shape[1])
        z = network.node2(network.node1(z)).detach()
        above.append(float(z[0] @ z[1]) / z.shape[1])
    (q, c), (_, q2) = torch.stack(below).mean(0).tolist()
    draws = np.random.default_rng(0).multivariate_normal([0, 0], [[q, c], [c, q2]], 400_000).T

    def next_product(gamma: float) -> float:
        return SIGMAS["sigma_b2"] + SIGMAS["sigma_w2"] * float(np.mean(np.prod(np.maximum(gamma * draws, 0), axis=0)))

    assert next_product(1.0) == pytest.approx(fmean(above), rel=0.05)
    assert next_product(1.5) > 1.5 * fmean(above)
    value = float(ACTIVATIONS["relu"].value(q, q2, c))
    assert SIGMAS["sigma_b2"] + SIGMAS["sigma_w2"] * value == pytest.approx(fmean(above), rel=0.05)


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
