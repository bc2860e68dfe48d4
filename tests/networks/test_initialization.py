"""What is drawn: variances against the formulas, scales, seeds, and the two small networks as they always were."""

import math

import pytest
import torch
from torch import nn

from tests.networks.helpers import SHAPES, layers
from trimtab.networks import NETWORKS, build

DEFAULTS = {
    **dict.fromkeys(["mlp3x100", "mlp2x100", "deep-mlp", "cnn5", "vgg", "dln25", "small-cnn", "small-mlp"], "glorot"),
    **dict.fromkeys(["vgg16", "regcnn", "resnet110", "preact110", "resnet18", "preact18"], "he"),
    **dict.fromkeys(["mf-mlp", "mf-conv"], "meanfield"),
}


def variance(init: str, layer: nn.Conv2d | nn.Linear, sigma_w2: float = 2.0) -> float:
    outputs, fan_in = layer.weight.shape[0], layer.weight[0].numel()
    sites = math.prod(layer.weight.shape[2:])
    return {"glorot": 2 / (fan_in + outputs * sites), "he": 2 / fan_in, "meanfield": sigma_w2 / fan_in}[init]


def check(model: nn.Module, init: str, *, scale: float = 1.0, sigma_w2: float = 2.0) -> None:
    """The mean of w² over its formula, pooled over all layers; five of its standard deviations are allowed."""
    ratios = torch.cat([(m.weight.detach() ** 2 / variance(init, m, sigma_w2)).flatten() for m in layers(model)])
    spread = math.sqrt((0.8 if init == "glorot" else 2.0) / len(ratios))  # Var w⁴/σ⁴: 9/5 − 1, and 3 − 1
    assert ratios.mean().item() == pytest.approx(scale**2, abs=5 * spread * scale**2)
    for m in layers(model):
        n = m.weight.numel()
        layer_ratio = (m.weight.detach() ** 2).mean().item() / variance(init, m, sigma_w2)
        assert layer_ratio == pytest.approx(scale**2, abs=6 * math.sqrt(2.0 / n) * scale**2)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_papers_initialization(name: str) -> None:
    torch.manual_seed(0)
    model = build(name)
    check(model, DEFAULTS[name])
    biases = [m.bias for m in layers(model) if m.bias is not None]
    if DEFAULTS[name] == "meanfield":
        drawn = torch.cat([bias.detach() for bias in biases])
        assert drawn.square().mean().item() == pytest.approx(0.5, abs=5 * 0.5 * math.sqrt(2 / len(drawn)))
        assert drawn.mean().item() == pytest.approx(0.0, abs=5 * math.sqrt(0.5 / len(drawn)))
    else:
        assert all(not bias.any() for bias in biases)


@pytest.mark.parametrize("init", ["glorot", "he", "meanfield"])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_another_initialization_and_its_scale(init: str, scale: float) -> None:
    torch.manual_seed(1)
    check(build("cnn5", init=init, init_scale=scale), init, scale=scale)


def test_glorot_is_uniform_and_the_others_are_not() -> None:
    torch.manual_seed(0)
    for init, bounded in (("glorot", True), ("he", False)):
        layer = layers(build("mlp3x100", init=init))[0]
        bound = math.sqrt(3 * variance(init, layer))
        largest = layer.weight.abs().max().item()
        assert (largest <= bound) == bounded
        assert largest > 0.999 * bound


def test_the_scale_multiplies_weights_and_not_biases() -> None:
    torch.manual_seed(2)
    plain = build("mf-conv")
    torch.manual_seed(2)
    scaled = build("mf-conv", init_scale=0.25)
    for a, b in zip(layers(plain), layers(scaled), strict=True):
        assert torch.equal(0.25 * a.weight, b.weight)
        assert a.bias is not None and b.bias is not None and torch.equal(a.bias, b.bias)


def test_mean_field_variances() -> None:
    torch.manual_seed(0)
    model = build("mf-mlp", sigma_w2=1.3, sigma_b2=0.0)
    check(model, "meanfield", sigma_w2=1.3)
    assert all(not m.bias.any() for m in layers(model) if m.bias is not None)
    wide = build("mf-mlp", "bn", sigma_b2=3.0)
    drawn = torch.cat([m.bias.detach() for m in layers(wide) if m.bias is not None])
    assert drawn.square().mean().item() == pytest.approx(3.0, abs=5 * 3.0 * math.sqrt(2 / len(drawn)))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    states = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        states.append(build(name, "bn", input_shape=SHAPES[name]).state_dict())
    one, same, other = states
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("norm", ["none", "bn", "ln"])
def test_the_small_networks_are_what_they_were(norm: str) -> None:
    def normalization(width: int, image: bool) -> list[nn.Module]:
        if norm == "none":
            return []
        if norm == "bn":
            return [nn.BatchNorm2d(width) if image else nn.BatchNorm1d(width)]
        return [nn.GroupNorm(1, width) if image else nn.LayerNorm(width)]

    def mlp() -> nn.Sequential:
        return nn.Sequential(
            *(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), *normalization(50, False)),
            *(nn.Linear(50, 50), nn.ReLU(), *normalization(50, False)),
            *(nn.Linear(50, 50), nn.ReLU(), *normalization(50, False)),
            nn.Linear(50, 10),
        )

    def cnn() -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), *normalization(16, True), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), *normalization(32, True), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(128, 10)),
        )

    for name, reference in (("small-mlp", mlp), ("small-cnn", cnn)):
        torch.manual_seed(5)
        expected = reference()
        for m in layers(expected):
            nn.init.xavier_uniform_(m.weight)
            assert m.bias is not None
            nn.init.zeros_(m.bias)
        torch.manual_seed(5)
        model = build(name, norm)
        x = torch.randn(6, 1, 8, 8)
        assert torch.equal(model(x), expected(x))
