"""bnp, Algorithms 2 and 3, Prop. 7 and Sec. 3.4: steps of BNP beside those of BatchNorm."""

import itertools
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

import trimtab
from trimtab.claims.experiments.bnp_draws import Rng, layer_inputs, tensor
from trimtab.claims.experiments.registry import Context, experiment
from trimtab.claims.findings import Findings
from trimtab.theory import bounds
from trimtab.theory.bounds.sides import Array, Sides

RHO, EPS1, EPS2 = 0.99, 1e-2, 1e-4
LR = 0.1
OUTPUTS = 3


@experiment("bnp-steps", "bnp: steps of BNP and of BatchNorm", small=0.3)
def steps(findings: Findings, context: Context) -> None:
    """Algorithms 2 and 3, Prop. 7, Sec. 3.4."""
    findings.check("algorithm-2", algorithm_2)
    for form, regularized in (("printed", False), ("corrected", True)):
        findings.check(f"algorithm-3-{form}", lambda rng, r=regularized: algorithm_3(rng, regularized=r))  # type: ignore[misc]
    findings.check("over-parametrized", over_parametrized)
    findings.check("merged-network", merged_network)
    findings.check("printed-bias-has-the-shape-of-a-bias", printed_bias)
    findings.check("step-dense", step_dense)
    findings.check("step-convolution", step_convolution)
    findings.check("second-step", lambda rng: Sides(1e-3, second_step(rng, same_batch=False)))
    findings.check("second-step-on-the-same-batch", lambda rng: second_step(rng, same_batch=True) < 1e-9)


def algorithm_2(rng: Rng) -> Sides:
    """BNP's first step on a dense layer against PPᵀ/q² as a matrix."""
    samples, n = (int(k) for k in rng.integers(2, 13, size=2))
    inputs = tensor(rng.normal(size=(samples, n)) * np.exp(rng.normal(size=n)) + rng.normal(size=n))
    layer = nn.Linear(n, OUTPUTS).double()
    mean, variance = inputs.mean(0).numpy(), inputs.var(0, correction=0).numpy()
    return _against_matrix(layer, inputs, mean, variance, max(n / samples, 1), rng, regularized=True)


def algorithm_3(rng: Rng, *, regularized: bool) -> Sides:
    """BNP's first step on a convolution against PPᵀ/q²: as printed in eq. 23 with σ, or with σ̃."""
    samples, channels = (int(k) for k in rng.integers(1, 5, size=2))
    height, width = (int(k) for k in rng.integers(3, 7, size=2))
    inputs = tensor(rng.normal(size=(samples, channels, height, width)) * rng.uniform(0.3, 3) + rng.normal())
    layer = nn.Conv2d(channels, OUTPUTS, 3, padding=1).double()
    variance, mean = torch.var_mean(inputs, (0, 2, 3), correction=0)
    of_mean, of_variance = (each.repeat_interleave(9).numpy() for each in (mean, variance))
    q2 = max(9 * channels / samples, (height * width) ** 0.5)
    return _against_matrix(layer, inputs, of_mean, of_variance, q2, rng, regularized=regularized)


def _against_matrix(
    layer: nn.Linear | nn.Conv2d,
    inputs: Tensor,
    mean: Array,
    variance: Array,
    q2: float,
    rng: Rng,
    *,
    regularized: bool,
) -> Sides:
    """Both gradients after a step, [b; w] of each output; running averages begin at 0 and 1."""
    with trimtab.BNP(layer, rho=RHO, eps1=EPS1, eps2=EPS2) as bnp:
        outputs = layer(inputs)
        (outputs * tensor(rng.normal(size=outputs.shape))).sum().backward()
        before = _gradients(layer)
        bnp.step()
    running, spread = (1 - RHO) * mean, RHO + (1 - RHO) * variance
    scale = spread + EPS1 * spread.max() + EPS2 if regularized else spread
    change = np.eye(len(mean) + 1)
    change[0, 1:] = -running
    change = change @ np.diag(np.append(1.0, 1 / np.sqrt(scale)))
    size = float((np.abs(change) @ np.abs(change).T @ np.abs(before).T).max()) / q2
    return Sides(_gradients(layer), before @ (change @ change.T) / q2, "==", size)


def _gradients(layer: nn.Linear | nn.Conv2d) -> Array:
    bias, weight = layer.get_parameter("bias").grad, layer.get_parameter("weight").grad
    return np.column_stack([cast(Tensor, bias).numpy(), cast(Tensor, weight).flatten(1).numpy()])


def over_parametrized(rng: Rng) -> Sides:
    """Sec. 3.4."""
    inputs = layer_inputs(rng)
    n = inputs.shape[1]
    return bounds.over_parametrized(inputs, rng.normal(size=(4, n)), rng.normal(size=4), *rng.normal(size=(2, n)))


def merged_network(rng: Rng) -> Sides:
    """Prop. 7: a network with B₀,₁ after each activation, and the vanilla one with Ŵ = W diag(1/σ), b̂ = b − W(μ/σ)."""
    widths = [int(n) for n in rng.integers(2, 8, size=4)]
    batch = rng.normal(size=(int(rng.integers(4, 20)), widths[0])) + rng.normal()
    normalized = vanilla = batch
    for number, (n, n_out) in enumerate(itertools.pairwise(widths)):
        weight, bias = rng.normal(size=(n_out, n)), rng.normal(size=n_out)
        mean, sigma = normalized.mean(0), normalized.std(0)
        with_norm = (normalized - mean) / sigma @ weight.T + bias
        merged = vanilla @ (weight / sigma).T + bias - weight @ (mean / sigma)
        last = number == len(widths) - 2
        normalized, vanilla = (with_norm, merged) if last else (np.tanh(with_norm), np.tanh(merged))
    return Sides(vanilla, normalized, "==", float(np.abs(weight / sigma).sum() + np.abs(bias).max()))


def printed_bias(rng: Rng) -> bool:
    """Prop. 7 as printed: whether b − W diag(μ/σ) can be a bias, one number for each output."""
    n, n_out = (int(k) for k in rng.integers(1, 9, size=2))
    return (rng.normal(size=(n_out, n)) @ np.diag(rng.normal(size=n))).shape == rng.normal(size=n_out).shape


class _FrozenStatistics(nn.Module):
    """B₀,₁ with μ and σ of the batch, through which no gradient passes."""

    def forward(self, h: Tensor) -> Tensor:
        variance, mean = _moments(h)
        return (h - mean) / variance.sqrt()


def _moments(h: Tensor) -> tuple[Tensor, Tensor]:
    over = (0,) if h.ndim == 2 else (0, 2, 3)
    return torch.var_mean(h.detach(), over, correction=0, keepdim=True)


def _merged(layer: nn.Linear | nn.Conv2d, h: Tensor) -> tuple[Tensor, Tensor]:
    """Ŵ and b̂ for a batch of inputs of the layer."""
    variance, mean = (each.view(1, -1, *[1] * (h.ndim - 2)) for each in _moments(h))
    weight = layer.get_parameter("weight").detach() / variance.sqrt()
    return weight, layer.get_parameter("bias").detach() - (weight * mean).flatten(1).sum(1)


def _vanilla(layer: nn.Linear | nn.Conv2d, h: Tensor, like: nn.Linear | nn.Conv2d) -> nn.Linear | nn.Conv2d:
    with torch.no_grad():
        for parameter, value in zip((like.weight, like.bias), _merged(layer, h), strict=True):
            cast(Tensor, parameter).copy_(value)
    return like


def _step(model: nn.Module, loss: Callable[[], Tensor], learning_rate: float, *, preconditioned: bool = False) -> None:
    """A step of gradient descent; with BNP by the batch's own statistics, nothing added to the variance."""
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    if not preconditioned:
        loss().backward()
        optimizer.step()
    else:
        with trimtab.BNP(model, statistics="batch", eps1=0, eps2=0) as bnp:
            loss().backward()
            bnp.step()
            optimizer.step()
    optimizer.zero_grad()


def step_dense(rng: Rng) -> Sides:
    """Prop. 7: all layers of a network at once; N ≥ n, so that q² = 1, ε₁ = ε₂ = 0, the batch's own statistics."""
    torch.manual_seed(int(rng.integers(2**31)))
    widths = [int(n) for n in rng.integers(2, 8, size=4)]
    x = 1 + 3 * torch.randn(32, widths[0], dtype=torch.float64)
    target = torch.randn(32, widths[-1], dtype=torch.float64)
    layers = [nn.Linear(a, b).double() for a, b in itertools.pairwise(widths)]
    inputs, h = [], x
    for layer in layers:
        inputs.append(h)
        h = torch.tanh(layer(_FrozenStatistics()(h))).detach()
    plain = [
        _vanilla(layer, each, nn.Linear(layer.in_features, layer.out_features).double())
        for layer, each in zip(layers, inputs, strict=True)
    ]
    bn = nn.Sequential(*[m for layer in layers for m in (_FrozenStatistics(), layer, nn.Tanh())][:-1])
    vanilla = nn.Sequential(*[m for layer in plain for m in (layer, nn.Tanh())][:-1])
    _step(bn, lambda: (bn(x) - target).square().mean(), LR)
    _step(vanilla, lambda: (vanilla(x) - target).square().mean(), LR, preconditioned=True)
    left = [torch.cat([each.weight.flatten(), cast(Tensor, each.bias)]) for each in plain]
    right = [torch.cat([p.flatten() for p in _merged(a, b)]) for a, b in zip(layers, inputs, strict=True)]
    return Sides(torch.cat(left).detach().numpy(), torch.cat(right).numpy(), "==")


def step_convolution(rng: Rng) -> Sides:
    """Prop. 7 for a convolution, per channel; q² = √(r s) is taken out through the learning rate."""
    torch.manual_seed(int(rng.integers(2**31)))
    channels, size = int(rng.integers(1, 4)), int(rng.integers(4, 8))
    x = 1 + 2 * torch.randn(32, channels, size, size, dtype=torch.float64)
    conv, plain = (nn.Conv2d(channels, 4, 3).double() for _ in range(2))
    _vanilla(conv, x, plain)
    bn = nn.Sequential(_FrozenStatistics(), conv)
    _step(bn, lambda: bn(x).pow(3).mean(), LR)
    _step(plain, lambda: plain(x).pow(3).mean(), LR * (size - 2), preconditioned=True)  # √(r s) of the output
    right = _merged(conv, x)
    found = torch.cat([plain.weight.flatten(), cast(Tensor, plain.bias)]).detach()
    return Sides(found.numpy(), torch.cat([each.flatten() for each in right]).numpy(), "==")


def second_step(rng: Rng, *, same_batch: bool) -> float:
    """How far BN's layer, merged with its last statistics, is from BNP's after two steps, relative to it."""
    torch.manual_seed(int(rng.integers(2**31)))
    batches = [1 + 3 * torch.randn(32, 7, dtype=torch.float64) for _ in range(2)]
    if same_batch:
        batches[1] = batches[0]
    target, layer = torch.randn(32, 3, dtype=torch.float64), nn.Linear(7, 3).double()
    bn, plain = nn.Sequential(_FrozenStatistics(), layer), _vanilla(layer, batches[0], nn.Linear(7, 3).double())
    for x in batches:
        _step(bn, lambda x=x: (bn(x) - target).square().mean(), LR)  # type: ignore[misc]
        _step(plain, lambda x=x: (plain(x) - target).square().mean(), LR, preconditioned=True)  # type: ignore[misc]
    expected = torch.cat([each.flatten() for each in _merged(layer, batches[1])])
    found = torch.cat([plain.weight.flatten(), cast(Tensor, plain.bias)]).detach()
    return float((found - expected).norm() / expected.norm())
