"""Parameter counts against the published ones, and against sums written by hand."""

from itertools import pairwise

import pytest

from tests.networks.helpers import count
from trimtab.networks import NETWORKS, build, places


def test_resnet18_for_imagenet() -> None:
    # torchvision and others: 11,689,512
    stem, output = 3 * 64 * 49, 512 * 1000 + 1000
    first = 4 * 64 * 64 * 9
    others = sum(w * w // 2 * 9 + 3 * w * w * 9 + w * w // 2 for w in (128, 256, 512))
    norms = 2 * (64 + 4 * 64 + 5 * (128 + 256 + 512))
    assert stem + first + others + norms + output == 11_689_512
    model = build("resnet18", "bn", stem="imagenet", classes=1000, input_shape=(3, 224, 224))
    assert count(model) == 11_689_512


def test_resnet18_for_cifar() -> None:
    # as commonly published for CIFAR-10: the ImageNet count with another stem and output
    assert 11_689_512 - 3 * 64 * (49 - 9) - 513 * 1000 + 513 * 10 == 11_173_962
    assert count(build("resnet18", "bn")) == 11_173_962


@pytest.mark.parametrize("name", ["resnet110", "preact110"])
def test_resnet110_with_option_a(name: str) -> None:
    # 1.7M in He et al. (2016a, Table 6; 2016b). Exactly: option A has 1,727,962 parameters, γ and β of BN counted;
    # 1,730,714, also found, is option B, with two 1×1 projections and their norms more.
    convolutions = 3 * 16 * 9 + 36 * 16 * 16 * 9 + (16 + 35 * 32) * 32 * 9 + (32 + 35 * 64) * 64 * 9
    norms = 2 * (37 * 16 + 36 * 32 + 36 * 64)
    assert convolutions + norms + 64 * 10 + 10 == 1_727_962
    assert 1_727_962 + (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64) == 1_730_714
    assert count(build(name, "bn")) == 1_727_962


@pytest.mark.parametrize(("stem", "kernel"), [("cifar", 3), ("imagenet", 7)])
def test_preact18(stem: str, kernel: int) -> None:
    convolutions = 3 * 64 * kernel**2 + 4 * 64 * 64 * 9
    convolutions += sum(w * w // 2 * 9 + 3 * w * w * 9 + w * w // 2 for w in (128, 256, 512))
    # one norm before each convolution but the stem and the projections, and one before pooling
    norms = 2 * ((4 + 1) * 64 + (3 + 1) * 128 + (3 + 1) * 256 + 3 * 512 + 512)
    assert count(build("preact18", "bn", stem=stem)) == convolutions + norms + 5130  # type: ignore[arg-type]


def test_vgg16() -> None:
    # as commonly published for CIFAR-10, with BN and biases: 14,728,266
    widths = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = sum((9 * i + 1) * o for i, o in pairwise(widths))
    assert convolutions + 2 * sum(widths[1:]) + 512 * 10 + 10 == 14_728_266
    assert count(build("vgg16", "bn")) == 14_728_266
    assert count(build("vgg16", "none")) == 14_728_266 - 2 * 4224


def test_vgg() -> None:
    widths = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    convolutions = sum((9 * i + 1) * o for i, o in pairwise(widths))
    assert count(build("vgg", "none")) == convolutions + 2 * 513 * 512 + 513 * 10
    assert count(build("vgg", "bn")) == convolutions + 2 * 513 * 512 + 513 * 10 + 2 * sum(widths[1:])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp3x100", 3073 * 100 + 2 * 101 * 100 + 101 * 10),
        ("mlp2x100", 3073 * 100 + 101 * 100 + 101 * 10),
        ("deep-mlp", 3073 * 100 + 23 * 101 * 100 + 101 * 10),
        # 32×32 → 30 → 15 → 13 → 6 → 4
        ("cnn5", 28 * 32 + 289 * 64 + 577 * 32 + (4 * 4 * 32 + 1) * 64 + 65 * 10),
        ("dln25", 25 * 10 * 10),
        ("mf-mlp", 3073 * 1000 + 2 * 1001 * 1000 + 1001 * 10),
        # 32×32 → 15 → 7 → 3
        ("mf-conv", 28 * 30 + 271 * 60 + 541 * 90 + (3 * 3 * 90 + 1) * 10),
        ("regcnn", 28 * 32 + 289 * 32 + 289 * 64 + 577 * 64 + (16 * 16 * 64 + 1) * 512 + 513 * 10),
        ("small-cnn", 10 * 16 + 145 * 32 + (2 * 2 * 32 + 1) * 10),
        ("small-mlp", 65 * 50 + 2 * 51 * 50 + 51 * 10),
    ],
)
def test_without_a_norm(name: str, expected: int) -> None:
    assert count(build(name)) == expected


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("mlp3x100", [100] * 3),
        ("mlp2x100", [100] * 2),
        ("deep-mlp", [100] * 24),
        ("cnn5", [32, 64, 32, 64]),
        ("dln25", [10] * 24),
        ("mf-mlp", [1000] * 3),
        ("mf-conv", [30, 60, 90]),
        ("regcnn", [32, 32, 64, 64, 512]),
        ("small-cnn", [16, 32]),
        ("small-mlp", [50] * 3),
    ],
)
def test_each_place_holds_a_norm_of_its_width(name: str, widths: list[int]) -> None:
    assert places(name) == len(widths)
    assert count(build(name, "bn")) - count(build(name)) == 2 * sum(widths)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("vgg", 8), ("vgg16", 13), ("resnet110", 109), ("preact110", 109), ("resnet18", 20), ("preact18", 17)],
)
def test_places(name: str, expected: int) -> None:
    assert places(name) == expected


def test_every_network_is_counted() -> None:
    assert set(NETWORKS) == {
        *("mlp3x100", "mlp2x100", "deep-mlp", "cnn5", "vgg", "vgg16", "dln25", "mf-mlp", "mf-conv", "regcnn"),
        *("resnet110", "preact110", "resnet18", "preact18", "small-cnn", "small-mlp"),
    }
