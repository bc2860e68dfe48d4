"""Parameters like a model's: its numbers in random order, without what is chance in them."""

import math

import pytest
import torch
from torch import Tensor, nn

from trimtab.prediction.shuffling import Shuffle


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


def noise() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_shuffling_keeps_the_numbers() -> None:
    """About their mean, which is chance; or with it, where it is not."""
    values = {
        "weight": 3 * torch.randn(30, 40, generator=noise()),
        "scale": torch.ones(3),
        "positive": torch.rand(500) + 1,
        "one": torch.tensor([0.3]),
    }
    generator = noise()
    shuffle = Shuffle(values)
    found = shuffle(generator)
    for name in values:
        assert found[name].shape == values[name].shape
        about = values["weight"].mean() - found["weight"].mean() if name == "weight" else 0.0
        torch.testing.assert_close((found[name] + about).flatten().sort().values, values[name].flatten().sort().values)
    assert not torch.equal(found["positive"], values["positive"])
    means = torch.stack([shuffle(generator)["weight"].mean() for _ in range(400)])
    assert means.std() == pytest.approx(3 * 1200**-0.5, rel=0.15)


def initialize(model: nn.Module, kind: str) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and kind != "default":
            {
                "he": lambda w: nn.init.kaiming_normal_(w),
                "fan_out": lambda w: nn.init.kaiming_normal_(w, mode="fan_out"),
                "glorot": nn.init.xavier_uniform_,
                "0.02": lambda w: nn.init.normal_(w, std=0.02),
                "own": lambda w: nn.init.normal_(w, std=0.7 / math.sqrt(w.shape[1])),
            }[kind](module.weight)
            nn.init.zeros_(module.bias)


def network() -> nn.Sequential:
    """Its output layer has few weights, whose variance is off by chance; its first one shows the initialization."""
    return nn.Sequential(nn.Conv2d(3, 96, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 200), nn.ReLU(), nn.Linear(200, 2))


@pytest.mark.parametrize(
    ("kind", "variance"),
    [("default", 1 / 600), ("he", 2 / 200), ("fan_out", 2 / 2), ("glorot", 2 / 202), ("0.02", 0.0004)],
)
def test_a_variance_that_is_off_by_chance_is_that_of_the_initialization(kind: str, variance: float) -> None:
    torch.manual_seed(1)
    model = network()
    initialize(model, kind)
    with torch.no_grad():  # by 1.3 to 1.6 standard errors
        model[5].weight.mul_(math.sqrt(1.1 * variance / float(model[5].weight.square().mean())))
    found = Shuffle(parameters(model))(noise())
    assert float(found["5.weight"].var(correction=0)) == pytest.approx(variance, rel=1e-5)
    for name in ("0.weight", "3.weight"):  # of many weights chance leaves little
        assert float(found[name].var()) == pytest.approx(float(model.get_parameter(name).detach().var()), rel=0.1)


def test_a_scale_of_the_users_own_is_kept() -> None:
    torch.manual_seed(1)
    model = network()
    initialize(model, "own")
    found = Shuffle(parameters(model))(noise())
    for name, value in parameters(model).items():
        assert float(found[name].var(correction=0)) == pytest.approx(float(value.var(correction=0)), rel=1e-5)


def test_a_layer_that_is_scaled_on_purpose_is_kept() -> None:
    """A last layer of a tenth, say, in a network with PyTorch's default."""
    torch.manual_seed(1)
    model = network()
    with torch.no_grad():
        model[5].weight.mul_(0.1)
    found, own = Shuffle(parameters(model))(noise()), model[5].weight.detach()
    assert float(found["5.weight"].var(correction=0)) == pytest.approx(float(own.var(correction=0)), rel=1e-5)


def test_biases_go_by_the_fan_in_of_their_weights() -> None:
    torch.manual_seed(1)
    model = network()
    found = Shuffle(parameters(model))(noise())
    assert float(found["3.bias"].var(correction=0)) == pytest.approx(1 / (3 * 96), rel=1e-5)
