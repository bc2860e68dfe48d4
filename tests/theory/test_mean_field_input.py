"""What mean field takes, and what it says of what makes no sense."""

import math

import numpy as np
import pytest
import torch

from trimtab.theory.mean_field import Conv, Dense, LeakyReLU, MaxPool, Pool, Residual, draw_network, mean_field

MLP = [Dense(784, 1000), Dense(1000, 1000), Dense(1000, 1000), Dense(1000, 10)]
SIGMAS = {"sigma_w2": 2.0, "sigma_b2": 0.5}


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"sigma_w2": -1.0}, "sigma_w2"),
        ({"sigma_b2": math.nan}, "sigma_b2"),
        ({"sigma_w2": [1.0, 2.0]}, "sigma_w2"),
        ({"gamma": [1.0]}, "gamma"),
        ({"gamma": math.inf}, "gamma"),
        ({"norm": "layer"}, "norm"),
        ({"variant": "other"}, "variant"),
        ({"statistics": "running"}, "statistics"),
        ({"positions": "some"}, "positions"),
        ({"samples": 0}, "samples"),
        ({"q_hat0": -1.0}, "q_hat0"),
        ({"q_hat0_xy": 2.0}, "q_hat0_xy must be no larger in size than q_hat0"),
        ({"q_hat0_xy": -3.0}, "q_hat0_xy must be no larger in size than q_hat0"),
        ({"q_hat0_alphabeta": 50.0}, "q_hat0_alphabeta must be no larger in size than q_hat0"),
        ({"q_hat0_alphabeta": "a"}, "q_hat0_alphabeta must be a finite number"),
        ({"q_hat0_xy": 1.0}, "the eigenvalue is not a finite number"),
        ({"activation": "step"}, "activation"),
        ({"samples": 1.5}, "samples must be a whole number"),
        ({"samples": math.nan}, "samples must be a whole number"),
        ({"samples": True}, "samples must be a whole number"),
        ({"gamma": None}, "gamma must be one number"),
        ({"gamma": [[1.0], [1.0, 2.0]]}, "gamma must be one number or 3"),
        ({"gamma": 1e200}, r"gamma must be at most 1e\+150"),
        ({"gamma": 1e80}, "gamma are so large"),
        ({"sigma_w2": "a"}, "sigma_w2 must be one number or 4"),
        ({"sigma_b2": None}, "sigma_b2 must be finite"),
        ({"variant": "paper", "positions": "grid"}, "positions must not be 'grid' with variant='paper'"),
        ({"variant": "paper", "statistics": "batch"}, "statistics must be 'frozen' with variant='paper'"),
        ({"norm": None, "gamma": math.nan}, "gamma must be finite"),
        ({"norm": None, "gamma": [1.0, 1.0]}, "gamma must be one number or 3"),
        ({"norm": None, "gamma": 2.0}, "gamma is that of a normalization, and norm is None"),
    ],
)
def test_bad_input_is_named(told, name) -> None:
    with pytest.raises(ValueError, match=name):
        mean_field(MLP, **{"norm": "batch", **SIGMAS, **told})


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (math.tanh, "activation must work on numpy arrays"),
        (torch.tanh, "activation must work on numpy arrays"),
        (LeakyReLU, "activation must work on numpy arrays"),
        (np.log, "activation must be finite for all numbers"),
        (np.sum, "activation must return an array of the shape that it gets"),
    ],
)
def test_a_function_that_is_no_activation_is_named(function, words) -> None:
    with pytest.raises(ValueError, match=words):
        mean_field([Dense(3, 4), Dense(4, 1)], activation=function, **SIGMAS)


@pytest.mark.parametrize("function", [np.abs, np.sin, "gelu", "silu", LeakyReLU(-0.1)])
def test_the_largest_of_what_falls_somewhere_is_not_known(function) -> None:
    layers = [Conv(3, 4, 3, size=8), MaxPool(2), Dense(36, 1)]
    with pytest.raises(ValueError, match="activation must not fall anywhere"):
        mean_field(layers, activation=function, **SIGMAS)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "linear", "erf", "tanh", "sigmoid", "softplus"])
def test_the_largest_of_what_does_not_fall_is_known(name: str) -> None:
    layers = [Conv(3, 4, 3, size=8), MaxPool(2), Dense(36, 1)]
    assert mean_field(layers, activation=name, **SIGMAS).lambda_max > 0


def test_whole_numbers_may_be_numpys() -> None:
    plain = [Conv(3, 4, 3, 1, 1, size=(8, 6)), Pool((2, 3)), Dense(32, 5), Dense(5, 1)]
    n = np.int64
    numpys = [
        Conv(n(3), np.int32(4), n(3), n(1), (n(1), n(1)), size=(n(8), n(6))),
        Pool((n(2), n(3))),
        Dense(n(32), np.uint8(5)),
        Dense(n(5), n(1)),
    ]
    assert numpys[2] == plain[2] and type(numpys[2].width_in) is int
    one, other = (mean_field(layers, samples=n(7), **SIGMAS) for layers in (plain, numpys))
    assert one == other
    assert draw_network(numpys, **SIGMAS)(torch.randn(2, 3, 8, 6)).shape == (2, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dense(0, 3), "width_in"),
        (lambda: Dense(3, True), "width_out"),
        (lambda: Conv(3, 0), "channels_out"),
        (lambda: Conv(3, 4, kernel=0), "kernel"),
        (lambda: Conv(3, 4, stride=(1, 2, 3)), "stride"),
        (lambda: Conv(3, 4, padding=-1), "padding"),
        (lambda: Conv(3, 4, size=0), "size"),
        (lambda: Pool(0), "kernel"),
        (lambda: Dense(3.0, 4), "width_in"),
        (lambda: Conv(3, 4, kernel="ab"), "kernel"),
        (lambda: Residual([]), "branch"),
        (lambda: Residual(Dense(3, 3)), "branch must be a list"),
        (lambda: Residual([Dense(3, 3)], shortcut="x"), "shortcut must be None or one Dense or Conv"),
        (lambda: Residual([Dense(3, 3)], preactivation="x"), "preactivation must be True or False"),
        (lambda: mean_field(Dense(3, 4), **SIGMAS), "layers must be a list"),
        (lambda: mean_field([], **SIGMAS), "layers"),
        (lambda: mean_field([Dense(3, 3), Pool(2)], **SIGMAS), "layers must end"),
        (lambda: mean_field([Conv(3, 4), Dense(4, 1)], **SIGMAS), "size of its input"),
        (lambda: mean_field([Dense(3, 4), Dense(5, 1)], **SIGMAS), "layer 2 reads 5"),
        (lambda: mean_field([Dense(3, 4), Conv(4, 1)], **SIGMAS), "no image"),
        (lambda: mean_field([Conv(3, 4, 9, size=8), Dense(4, 1)], **SIGMAS), "does not fit"),
        (lambda: mean_field([Dense(3, 4), Residual([Dense(4, 5)]), Dense(5, 1)], **SIGMAS), "shortcut"),
        (lambda: mean_field([Dense(3, 4), Residual([Dense(4, 4)]), Dense(4, 1)], variant="paper", **SIGMAS), "paper"),
    ],
)
def test_bad_layers_are_named(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()
