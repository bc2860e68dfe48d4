"""One sentence for each mistake."""

import math
from typing import Any

import pytest

from trimtab.networks import build, places


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("resnet111", "resnet110"), ("cnn", "cnn5"), ("mfmlp", "mf-mlp"), ("VGG16", "vgg16")]
)
def test_unknown_network(wrong: str, nearest: str) -> None:
    for call in (build, places):
        with pytest.raises(ValueError, match=f"no network '{wrong}'; did you mean '{nearest}'"):
            call(wrong)


def test_unknown_norm() -> None:
    with pytest.raises(ValueError, match="did you mean 'bn"):
        build("cnn5", "bnn")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cnn5", {"init": "xavier"}, "no initialization 'xavier'. Known are: glorot, he"),
        ("resnet18", {"stem": "imagent"}, "no stem 'imagent'; did you mean 'imagenet'"),
        ("resnet110", {"stem": "imagenet"}, "resnet110 has no choice of stems"),
        ("cnn5", {"dropout": 0.5}, "cnn5 has no dropout"),
        ("regcnn", {"dropout_before": True}, "dropout_before has no effect without dropout"),
        ("cnn5", {"activation": "rely"}, "no activation 'rely'; did you mean 'relu'"),
        ("cnn5", {"activation": 3}, "no activation 3"),
        ("regcnn", {"activation": "elu"}, "'he' has no gain for the activation 'elu'; take init 'glorot'"),
        ("cnn5", {"activation": "gelu", "init": "he"}, "'he' has no gain for the activation 'gelu'"),
        ("dln25", {"activation": "tanh"}, "dln25 is linear and has no activation"),
        ("mlp3x100", {"depth": 10}, "mlp3x100 has a depth of its own: leave depth out, or take one of deep-mlp"),
        ("deep-mlp", {"depth": 1}, "depth must be a whole number, 2 or larger, not 1"),
        ("deep-mlp", {"depth": 2.0}, "depth must be a whole number"),
        ("deep-mlp", {"depth": 3, "norm_layers": [2]}, "norm_layers has 2, but the places of deep-mlp .* are 0 to 1"),
        ("regcnn", {"dropout": 1.0}, r"dropout must be a number in \[0, 1\)"),
        ("regcnn", {"dropout": -0.1}, r"dropout must be a number in \[0, 1\)"),
        ("cnn5", {"sigma_w2": 1.0}, "belong to the initialization 'meanfield', not to 'glorot'"),
        ("mf-conv", {"sigma_w2": 0.0}, "sigma_w2 must be a finite number above 0"),
        ("mf-conv", {"sigma_b2": -1.0}, "sigma_b2 must be a finite number, 0 or larger"),
        ("cnn5", {"init_scale": math.nan}, "init_scale must be a finite number above 0"),
        ("cnn5", {"init_scale": math.inf}, "init_scale must be a finite number above 0"),
        ("cnn5", {"classes": 0}, "classes must be a positive whole number"),
        ("cnn5", {"input_shape": (3, 0, 32)}, "input_shape must be positive whole numbers"),
        ("mlp3x100", {"input_shape": ()}, "input_shape must be positive whole numbers"),
        ("cnn5", {"input_shape": (3072,)}, r"cnn5 takes images: .* not \(3072,\)"),
        ("resnet18", {"input_shape": (32, 32)}, "resnet18 takes images"),
        ("dln25", {"input_shape": (3, 32, 32)}, r"square layers only: give input_shape=\(10,\)"),
        ("dln25", {"input_shape": (10,), "classes": 5}, r"square layers only: give input_shape=\(5,\)"),
        ("cnn5", {"norm_layers": [0, 4]}, "norm_layers has 4, but the places of cnn5 .* are 0 to 3"),
        ("cnn5", {"norm_layers": [-1]}, "norm_layers has -1"),
    ],
)
def test_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, **settings)
