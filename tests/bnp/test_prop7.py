"""Prop. 7: a BN network without gradient through its statistics takes BNP's step on the network it amounts to."""

import itertools

import torch
from torch import Tensor, nn

import trimtab


class FrozenStatisticsBatchNorm(nn.Module):
    """B₀,₁ with μ and σ of the batch, through which no gradient passes."""

    def __init__(self, channels: bool) -> None:
        super().__init__()
        self.dims = (0, 2, 3) if channels else (0,)

    def forward(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            variance, mean = torch.var_mean(h, self.dims, correction=0, keepdim=True)
        return (h - mean) / variance.sqrt()


def merged(layer: nn.Linear, h: Tensor) -> nn.Linear:
    """The vanilla layer with Ŵ = W diag(1/σ), b̂ = b − W (μ/σ)."""
    variance, mean = torch.var_mean(h, 0, correction=0)
    plain = nn.Linear(layer.in_features, layer.out_features).double()
    with torch.no_grad():
        plain.weight.copy_(layer.weight / variance.sqrt())
        plain.bias.copy_(layer.bias - layer.weight @ (mean / variance.sqrt()))
    return plain


def test_one_step_of_a_deep_network() -> None:
    """All layers at once; N ≥ n, so that q² = 1, and ε₁ = ε₂ = 0, with the batch's own statistics."""
    torch.manual_seed(0)
    widths = [7, 6, 5, 3]
    x, target = 1 + 3 * torch.randn(32, 7, dtype=torch.float64), torch.randn(32, 3, dtype=torch.float64)
    layers = [nn.Linear(a, b).double() for a, b in itertools.pairwise(widths)]
    inputs: list[Tensor] = []
    modules: list[nn.Module] = []
    for layer in layers:
        modules += [FrozenStatisticsBatchNorm(channels=False), layer, nn.Tanh()]
    bn = nn.Sequential(*modules[:-1])
    hooks = [m.register_forward_hook(lambda _m, a, _y: inputs.append(a[0].detach())) for m in bn[::3]]
    bn(x)
    for hook in hooks:
        hook.remove()

    vanilla_layers = [merged(layer, h) for layer, h in zip(layers, inputs, strict=True)]
    vanilla = nn.Sequential(*[m for layer in vanilla_layers for m in (layer, nn.Tanh())][:-1])
    torch.testing.assert_close(bn(x), vanilla(x), rtol=1e-12, atol=1e-12)

    lr = 0.1
    (bn(x) - target).square().mean().backward()
    torch.optim.SGD(bn.parameters(), lr=lr).step()
    optimizer = torch.optim.SGD(vanilla.parameters(), lr=lr)
    with trimtab.BNP(vanilla, statistics="batch", eps1=0, eps2=0) as bnp:
        bnp.attach(optimizer)
        (vanilla(x) - target).square().mean().backward()
        optimizer.step()

    for layer, plain, h in zip(layers, vanilla_layers, inputs, strict=True):
        expected = merged(layer, h)  # the trained BN layer, merged with the statistics of that step
        torch.testing.assert_close(plain.weight, expected.weight, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(plain.bias, expected.bias, rtol=1e-11, atol=1e-12)


def second_step(seed: int, *, same_batch: bool) -> float:
    """How far BN's layer, merged with its last statistics, is from BNP's after two steps, relative to it."""
    torch.manual_seed(seed)
    batches = [1 + 3 * torch.randn(32, 7, dtype=torch.float64) for _ in range(2)]
    target, lr = torch.randn(32, 3, dtype=torch.float64), 0.1
    if same_batch:
        batches[1] = batches[0]
    layer = nn.Linear(7, 3).double()
    bn, plain = nn.Sequential(FrozenStatisticsBatchNorm(channels=False), layer), merged(layer, batches[0])
    slow, fast = (torch.optim.SGD(m.parameters(), lr) for m in (bn, plain))
    with trimtab.BNP(plain, statistics="batch", eps1=0, eps2=0) as bnp:
        bnp.attach(fast)
        for x in batches:
            for model, optimizer in ((bn, slow), (plain, fast)):
                optimizer.zero_grad()
                (model(x) - target).square().mean().backward()
                optimizer.step()
    expected = nn.utils.parameters_to_vector(merged(layer, batches[1]).parameters()).detach()
    found = nn.utils.parameters_to_vector(plain.parameters()).detach()
    return float((found - expected).norm() / expected.norm())


def test_a_second_step_on_another_batch_differs() -> None:
    """After Prop. 7: the network that BN amounts to changes with the batch, and BNP's does not. One layer shows it."""
    assert min(second_step(seed, same_batch=False) for seed in range(20)) > 1e-3
    assert max(second_step(seed, same_batch=True) for seed in range(20)) < 1e-11


def test_one_step_of_a_convolution() -> None:
    """Per channel, as BN does it in a CNN; q² = √(r s) is taken out through the learning rate."""
    torch.manual_seed(0)
    x = 1 + 2 * torch.randn(16, 3, 6, 6, dtype=torch.float64)
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    conv = nn.Conv2d(3, 4, 3).double()
    bn = nn.Sequential(FrozenStatisticsBatchNorm(channels=True), conv)
    plain = nn.Conv2d(3, 4, 3).double()

    def merge() -> tuple[Tensor, Tensor]:
        scaled = conv.weight.detach() / variance.sqrt()[:, None, None]
        return scaled, conv.bias.detach() - (scaled * mean[:, None, None]).sum((1, 2, 3))

    with torch.no_grad():
        for parameter, value in zip(plain.parameters(), merge(), strict=True):
            parameter.copy_(value)
    torch.testing.assert_close(bn(x), plain(x), rtol=1e-12, atol=1e-12)

    bn(x).pow(3).mean().backward()
    torch.optim.SGD(conv.parameters(), lr=0.1).step()
    positions = 4 * 4
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1 * positions**0.5)
    with trimtab.BNP(plain, statistics="batch", eps1=0, eps2=0) as bnp:
        plain(x).pow(3).mean().backward()
        bnp.step()
        optimizer.step()
    for ours, theirs in zip(plain.parameters(), merge(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-11, atol=1e-12)
