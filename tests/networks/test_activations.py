"""Activations by name, the gains of `he`, depth, and dropout on either side of a norm."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.networks.helpers import layers
from trimtab.networks import ACTIVATIONS, build, places
from trimtab.networks.activations import HE_VARIANCES, make_activation
from trimtab.theory.from_model import mean_field_prediction
from trimtab.theory.mean_field import Dense, mean_field
from trimtab.theory.mean_field import activations as theory


def mean_square(module: nn.Module) -> float:
    """E φ(z)² for standard normal z, by Gauss–Hermite quadrature on either side of 0, where some have a kink."""
    z = torch.linspace(-12, 12, 480_001, dtype=torch.float64)
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(torch.trapezoid(module(z).square() * density, z))


@pytest.mark.parametrize("name", ["relu", "leaky-relu", "linear", "selu"])
def test_he_keeps_the_mean_square(name: str) -> None:
    assert HE_VARIANCES[name] * mean_square(make_activation(name)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", ["relu", "linear", "sigmoid", "tanh"])
def test_he_has_torchs_gains_but_for_selu(name: str) -> None:
    assert HE_VARIANCES[name] == pytest.approx(nn.init.calculate_gain(name) ** 2)


@pytest.mark.parametrize("name", HE_VARIANCES)
def test_he_draws_with_the_gain_of_the_activation(name: str) -> None:
    torch.manual_seed(0)
    for layer in layers(build("small-cnn", init="he", activation=name)):
        ratio = layer.weight.square().mean().item() * layer.weight[0].numel() / HE_VARIANCES[name]
        assert ratio == pytest.approx(1.0, abs=6 * math.sqrt(2 / layer.weight.numel()))


@pytest.mark.parametrize("name", sorted({name.replace("_", "-") for name in theory.ACTIVATIONS} & ACTIVATIONS.keys()))
def test_each_is_the_function_that_mean_field_has_by_that_name(name: str) -> None:
    x = np.linspace(-5, 5, 101)
    ours = make_activation(name)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, theory.activation(name.replace("-", "_")).phi(x), atol=1e-12)


@pytest.mark.parametrize("name", ["cnn5", "vgg", "mf-conv", "resnet18", "preact18", "deep-mlp"])
def test_all_activations_of_a_network_are_replaced(name: str) -> None:
    def count(model: nn.Module, kind: type[nn.Module]) -> int:
        return sum(type(module) is kind for module in model.modules())

    torch.manual_seed(0)
    usual = build(name, "bn", init="glorot")
    torch.manual_seed(0)
    other = build(name, "bn", init="glorot", activation="tanh")
    assert count(other, nn.Tanh) == count(usual, nn.ReLU) > 0
    assert count(other, nn.ReLU) == 0
    for ours, theirs in zip(usual.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_linear_network_is_the_product_of_its_matrices() -> None:
    torch.manual_seed(0)
    model = build("deep-mlp", activation="linear", depth=10, input_shape=(7,), classes=3).double()
    x = torch.randn(5, 7, dtype=torch.float64)
    product = x
    for layer in layers(model):
        product = product @ layer.weight.T
    torch.testing.assert_close(model(x), product)


@pytest.mark.parametrize("depth", [2, 10, 24, 25, 50])
def test_depth_counts_the_layers_with_weights(depth: int) -> None:
    model = build("deep-mlp", "bn", depth=depth, input_shape=(7,))
    assert len(layers(model)) == depth
    assert places("deep-mlp", depth) == depth - 1 == sum(isinstance(m, nn.BatchNorm1d) for m in model.modules())


@pytest.mark.parametrize("norm", ["bn", "ln"])
def test_dropout_before_the_norm(norm: str) -> None:
    def kinds(**settings: bool) -> list[str]:
        model = build("regcnn", norm, input_shape=(1, 4, 4), dropout=0.5, **settings)
        return [type(module).__name__ for module in model.children()][:4]

    before, after = kinds(dropout_before=True), kinds()
    assert before == [after[0], "Dropout", after[1], "ReLU"]
    assert after[2] == "Dropout"


@pytest.mark.parametrize("norm", ["none", "bn"])
@pytest.mark.parametrize("name", [*theory.ACTIVATIONS, "elu", "selu"])
def test_mean_field_reads_the_activation_of_a_network(name: str, norm: str) -> None:
    """The prediction from the model is that of the recursions, but for the variance of the weights as drawn."""
    torch.manual_seed(0)
    module = make_activation(name.replace("_", "-"))
    known = name in theory.ACTIVATIONS
    model = build("mf-mlp", norm, activation=name.replace("_", "-"), depth=3, input_shape=(200,), sigma_b2=0.1)
    found = mean_field_prediction(model, (200,), statistics="frozen")
    function = name if known else lambda x: module(torch.as_tensor(x, dtype=torch.float64)).numpy()
    expected = mean_field(
        [Dense(200, 1000), Dense(1000, 1000), Dense(1000, 10)],
        sigma_w2=2.0,
        sigma_b2=0.1,
        norm="batch" if norm == "bn" else None,
        activation=function,
        bias_terms=True,
    )
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=0.05)
