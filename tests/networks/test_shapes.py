"""What comes out for which inputs."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trimtab.networks import NETWORKS, build

IMAGES = [(1, 28, 28), (3, 32, 32), (1, 8, 8)]
LEAST = {"cnn5": 18, "mf-conv": 15, "vgg": 32, "vgg16": 32, "regcnn": 2, "small-cnn": 4}


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "dln25"])
def test_output(name: str, shape: tuple[int, int, int]) -> None:
    if shape[1] < LEAST.get(name, 1):
        with pytest.raises(ValueError, match=f"{name} takes images of at least {LEAST[name]}×{LEAST[name]}"):
            build(name, input_shape=shape, classes=7)
        return
    model = build(name, input_shape=shape, classes=7).eval()
    assert model(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "stem", "size", "pooled"),
    [
        *((name, "cifar", 32, (512, 4, 4)) for name in ("resnet18", "preact18")),
        *((name, "imagenet", 64, (512, 2, 2)) for name in ("resnet18", "preact18")),
        *((name, "cifar", 32, (64, 8, 8)) for name in ("resnet110", "preact110")),
    ],
)
def test_what_a_residual_network_pools(name: str, stem: Any, size: int, pooled: tuple[int, int, int]) -> None:
    model = build(name, "bn", stem=stem, input_shape=(3, size, size)).eval()
    seen: list[torch.Size] = []
    pool = next(m for m in model.modules() if isinstance(m, nn.AdaptiveAvgPool2d))
    pool.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape))
    assert model(torch.randn(1, 3, size, size)).shape == (1, 10)
    assert seen == [(1, *pooled)]


def test_dln25_is_a_product_of_matrices() -> None:
    model = build("dln25", init_scale=2.0).double()
    product = torch.eye(10, dtype=torch.float64)
    matrices = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    assert len(matrices) == 25
    for matrix in matrices:
        product = matrix @ product
    x = torch.randn(3, 10, dtype=torch.float64)
    torch.testing.assert_close(model(x), x @ product.T)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["cnn5", "mf-conv", "regcnn", "small-cnn"]),
    channels=st.integers(1, 4),
    more=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    classes=st.integers(1, 12),
    batch=st.integers(1, 3),
)
def test_any_size_from_the_smallest_on(
    name: str, channels: int, more: tuple[int, int], classes: int, batch: int
) -> None:
    height, width = (LEAST[name] + extra for extra in more)
    model = build(name, input_shape=(channels, height, width), classes=classes)
    assert model(torch.randn(batch, channels, height, width)).shape == (batch, classes)


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(["mlp2x100", "mlp3x100", "small-mlp"]),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_fully_connected_networks_flatten_anything(name: str, shape: list[int]) -> None:
    assert build(name, input_shape=shape)(torch.randn(2, *shape)).shape == (2, 10)


def test_the_shortcut_without_parameters_skips_positions_and_adds_zeros() -> None:
    model = build("resnet110")
    shortcut = next(m for m in model.modules() if type(m).__name__ == "PaddedShortcut")
    x = torch.randn(2, 16, 5, 6)
    y = shortcut(x)
    assert y.shape == (2, 32, 3, 3)
    for row in range(3):
        for column in range(3):
            torch.testing.assert_close(y[:, :16, row, column], x[:, :, 2 * row, 2 * column])
    assert not y[:, 16:].any()
