"""Fully connected networks."""

import math

from torch import nn

from trimtab.networks.builder import Builder


def mlp(builder: Builder, shape: tuple[int, ...], classes: int, *, width: int, depth: int) -> nn.Sequential:
    """So many layers, all but the output of one width and with an activation; the input is flattened.

    `mlp3x100` (bnp, Sec. 5, after Ioffe and Szegedy, 2015): three layers of 100, normalized after the activation.
    `mlp2x100` (bnp, Sec. 5, condition numbers and times): two layers of 100. Glorot uniform, zero biases (App. B).
    With `before_activation` the norm moves before the activation.

    `mf-mlp` (meanfield, Sec. 4): L = 4 layers, three of 1000 units and the output, so that "4 layers of 1000" counts
    the output as one; normalized before the activation (eq. 13), with the biases of eq. 11 there too, which have no
    effect under BN while it trains.

    `deep-mlp`: 24 layers of 100 and the output, or as many as `depth` says, for claims on plain deep networks
    (landscape, Secs. 3 and 5, which has none of its own). Normalized before the activation as the VGG is; Glorot.

    `small-mlp`: three layers of 50, for the demo.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for _ in range(depth - 1):
        layers += builder.hidden(builder.dense(inputs, width))
        inputs = width
    return nn.Sequential(*layers, builder.plain(inputs, classes))


def dln25(builder: Builder, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The deep linear network of 25 square layers (landscape, App. A.1).

    There are no biases, as in ‖W₁…W_k x − Ax‖². The paper does not say where its BatchNorm stands: we put it between
    the layers, 24 places, and not after the last, whose output has to fit Ax at any scale.
    """
    if shape != (classes,):
        raise ValueError(
            f"{builder.network} has square layers only: give input_shape=({classes},) with classes={classes}, "
            f"not input_shape={shape}."
        )
    layers: list[nn.Module] = []
    for _ in range(24):
        layers += builder.hidden(builder.dense(classes, classes, bias=False), activation=False)
    return nn.Sequential(*layers, builder.plain(classes, classes, bias=False))
