"""Initialization of weights and biases."""

import math

from torch import nn

from trimtab.networks.activations import HE_VARIANCES

INITS = {
    "glorot": "uniform, variance 2 / (fan-in + fan-out), biases zero (Glorot and Bengio, 2010)",
    "he": "normal, variance 2 / fan-in for ReLU, else as the activation needs, biases zero (He et al., 2015)",
    "meanfield": "normal, variance sigma_w2 / fan-in, biases normal, variance sigma_b2 (meanfield, eq. 12)",
}


def initialize(
    layer: nn.Conv2d | nn.Linear,
    init: str,
    *,
    scale: float = 1.0,
    sigma_w2: float = 2.0,
    sigma_b2: float = 0.5,
    activation: str = "relu",
) -> None:
    """Initialize the weight and the bias of a layer.

    The fan-in of a convolution counts its kernel sites, as `N_l = C_l |F_{l+1}|` of the meanfield paper does.

    Args:
        layer: A convolution or dense layer.
        init: A name in `INITS`.
        scale: A factor for the weights, but not the biases.
        sigma_w2: The weights' variance times fan-in, for `meanfield`.
        sigma_b2: The biases' variance, for `meanfield`.
        activation: That of the network, for `he`: a name in `HE_VARIANCES`.
    """
    weight, bias = layer.weight, layer.bias
    if init == "glorot":
        nn.init.xavier_uniform_(weight)
    else:
        variance = sigma_w2 if init == "meanfield" else HE_VARIANCES[activation]
        nn.init.normal_(weight, std=math.sqrt(variance / weight[0].numel()))
    if scale != 1.0:
        weight.data.mul_(scale)
    if bias is None:
        return
    if init == "meanfield":
        nn.init.normal_(bias, std=math.sqrt(sigma_b2))
    else:
        nn.init.zeros_(bias)
