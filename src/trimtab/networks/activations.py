"""The activation functions of networks by name, and the gains that initializations have for them."""

import math

import torch
from torch import Tensor, nn

ACTIVATIONS = {
    "relu": "max(0, x), as in the papers' networks",
    "leaky-relu": "x, and 0.01 x below 0",
    "elu": "x, and exp(x) − 1 below 0 (Clevert et al., 2016)",
    "selu": "1.0507 times x, and 1.7581 (exp(x) − 1) below 0 (Klambauer et al., 2017)",
    "gelu": "x times the normal distribution function of x",
    "silu": "x times the sigmoid of x",
    "softplus": "log(1 + exp(x))",
    "tanh": "hyperbolic tangent",
    "erf": "error function of x/√2, from −1 to 1 (regularization, App. 2)",
    "sigmoid": "1 / (1 + exp(−x))",
    "linear": "x itself",
}


class Erf(nn.Module):
    """erf(x/√2), the activation of the regularization paper's soft committee machines."""

    def forward(self, x: Tensor) -> Tensor:
        """The probability that a standard normal variable lies within ±x, with the sign of x."""
        return torch.erf(x * math.sqrt(0.5))


_MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "erf": Erf,
    "sigmoid": nn.Sigmoid,
    "linear": nn.Identity,
}
MODULES = tuple(_MODULES.values())
"""All of them; each does the same to every number."""

HE_VARIANCES = {
    "relu": 2.0,
    "leaky-relu": 2 / (1 + 0.01**2),
    "linear": 1.0,
    "selu": 1.0,
    "sigmoid": nn.init.calculate_gain("sigmoid") ** 2,
    "tanh": nn.init.calculate_gain("tanh") ** 2,
}
"""The variance of weights times fan-in, the square of the gain, that `he` has for an activation.

The first four keep the mean square of activations at 1 (He et al., 2015; for SELU Klambauer et al., 2017, where torch's
`calculate_gain` has 3/4); the others are the customary ones, which torch has.
"""


def make_activation(name: str) -> nn.Module:
    """The module of an activation."""
    return _MODULES[name]()
