"""The networks by name."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NoReturn

import torch
from torch import nn

from trimtab.nearest import nearest
from trimtab.networks.activations import ACTIVATIONS, HE_VARIANCES
from trimtab.networks.builder import Builder, Layer
from trimtab.networks.convolutional import cnn5, mf_conv, regcnn, small_cnn, vgg, vgg16
from trimtab.networks.dense import dln25, mlp
from trimtab.networks.initialize import INITS, initialize
from trimtab.networks.residual import RESNET18, RESNET110, preactivation_resnet, resnet
from trimtab.norms import Norm
from trimtab.norms.checks import check_flags, check_numbers

STEMS = ("cifar", "imagenet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of the registry.

    Attributes:
        description: One line.
        make: Called with a builder, the input's shape, the number of classes and, if `has_stem`, the stem.
        init: The initialization of its paper.
        input_shape: The default shape of one input.
        before_activation: Whether the norm stands before the activation whatever the `Norm` says, as published.
        spare_biases: Whether convolutions have no bias where the next norm takes it away, as published.
        has_stem: Whether there is a choice of stems.
        has_dropout: Whether there is dropout after each normalization.
        depth: How many layers it has, the output too, where that is a choice; then `make` takes `depth`.
        linear: Whether it has no activations.
    """

    description: str
    make: Callable[..., nn.Module]
    init: str
    input_shape: tuple[int, ...] = (3, 32, 32)
    before_activation: bool = False
    spare_biases: bool = False
    has_stem: bool = False
    has_dropout: bool = False
    depth: int | None = None
    linear: bool = False


_residual = partial(Network, init="he", before_activation=True, spare_biases=True)
_before = partial(Network, before_activation=True)

_REGISTRY: dict[str, Network] = {
    "mlp3x100": Network(
        description="fully connected, three layers of 100 (bnp)", make=partial(mlp, width=100, depth=4), init="glorot"
    ),
    "mlp2x100": Network(
        description="fully connected, two layers of 100 (bnp)", make=partial(mlp, width=100, depth=3), init="glorot"
    ),
    "deep-mlp": _before(
        description="fully connected, layers of 100, 25 in all or as --depth says (landscape)",
        make=partial(mlp, width=100),
        init="glorot",
        depth=25,
    ),
    "cnn5": Network(description="three convolutions of 32-64-32 and two dense layers (bnp)", make=cnn5, init="glorot"),
    "vgg": _before(description="VGG-like: 8 convolutions and three dense layers (landscape)", make=vgg, init="glorot"),
    "vgg16": _before(description="VGG16: 13 convolutions and a linear layer (meanfield)", make=vgg16, init="he"),
    "dln25": Network(
        description="deep linear network of 25 square layers (landscape)",
        make=dln25,
        init="glorot",
        input_shape=(10,),
        linear=True,
    ),
    "mf-mlp": _before(
        description="fully connected, three layers of 1000 and the output, or as --depth says (meanfield)",
        make=partial(mlp, width=1000),
        init="meanfield",
        depth=4,
    ),
    "mf-conv": _before(
        description="three convolutions of 30-60-90 with stride 2, and a linear layer (meanfield)",
        make=mf_conv,
        init="meanfield",
    ),
    "regcnn": _before(
        description="four convolutions of 32-32-64-64 and two dense layers (regularization)",
        make=regcnn,
        init="he",
        has_dropout=True,
    ),
    "resnet110": _residual(
        description="residual network of 110 layers for CIFAR (bnp)", make=partial(resnet, plan=RESNET110)
    ),
    "preact110": _residual(
        description="preactivation residual network of 110 layers for CIFAR (bnp)",
        make=partial(preactivation_resnet, plan=RESNET110),
    ),
    "resnet18": _residual(
        description="residual network of 18 layers (bnp)", make=partial(resnet, plan=RESNET18), has_stem=True
    ),
    "preact18": _residual(
        description="preactivation residual network of 18 layers (meanfield)",
        make=partial(preactivation_resnet, plan=RESNET18),
        has_stem=True,
    ),
    "small-cnn": Network(
        description="two convolutions of 16-32 and a linear layer, for 8×8 images",
        make=small_cnn,
        init="glorot",
        input_shape=(1, 8, 8),
    ),
    "small-mlp": Network(
        description="fully connected, three layers of 50 and the output, or as --depth says, for 8×8 images",
        make=partial(mlp, width=50),
        init="glorot",
        input_shape=(1, 8, 8),
        depth=4,
    ),
}

NETWORKS: dict[str, str] = {name: network.description for name, network in _REGISTRY.items()}


def build(
    name: str,
    norm: Norm | str = "none",
    *,
    input_shape: Sequence[int] | None = None,
    classes: int = 10,
    norm_layers: Collection[int] | None = None,
    init: str | None = None,
    init_scale: float = 1.0,
    conv_bias: bool | None = None,
    stem: Literal["cifar", "imagenet"] = "cifar",
    dropout: float = 0.0,
    dropout_before: bool = False,
    sigma_w2: float = 2.0,
    sigma_b2: float = 0.5,
    activation: str | None = None,
    depth: int | None = None,
) -> nn.Module:
    """A network by name, its weights drawn from torch's global generator.

    Args:
        name: A key of `NETWORKS`.
        norm: What stands at the network's places for a normalization. It stands where its paper has it: before the
            activation in the residual, VGG, mean-field and regularization networks; after it in the others, unless
            the norm's `before_activation` is set.
        input_shape: The shape of one input; None: (3, 32, 32), and for `dln25` (10,), for the small ones (1, 8, 8).
        classes: The number of outputs.
        norm_layers: The places, counted from 0 in forward order, that get the norm; None: all of them.
        init: `glorot`, `he` or `meanfield`; None: as the network's paper says.
        init_scale: A factor for the initial weights, but not the biases.
        conv_bias: Whether convolutions have a bias. None: they do, except in residual networks where the norm that
            follows takes it away, as published.
        stem: For `resnet18` and `preact18`: 3×3 with stride 1, or 7×7 with stride 2 and pooling.
        dropout: For `regcnn`: the share dropped after each normalization.
        dropout_before: Whether it is dropped before each normalization instead.
        sigma_w2: For the initialization `meanfield`: the weights' variance times fan-in.
        sigma_b2: For the initialization `meanfield`: the biases' variance.
        activation: A key of `ACTIVATIONS`; None: `relu`, and nothing in `dln25`.
        depth: For `deep-mlp`, `mf-mlp` and `small-mlp`: how many layers there are, the output too; None: 25, 4 and 4.

    Raises:
        ValueError: For an unknown name, and for a norm or a setting that the network cannot have.
    """
    network = _find(name)
    init = network.init if init is None else init
    if not isinstance(init, str) or init not in INITS:
        _unknown("initialization", init, INITS)
    if not isinstance(stem, str) or stem not in STEMS:
        _unknown("stem", stem, STEMS)
    if stem != "cifar" and not network.has_stem:
        raise ValueError(f"{name} has no choice of stems: leave stem at 'cifar'.")
    if dropout and not network.has_dropout:
        raise ValueError(f"{name} has no dropout: leave dropout at 0.")
    check_flags(dropout_before=dropout_before)
    if dropout_before and not dropout:
        raise ValueError("dropout_before has no effect without dropout; set dropout too, or leave it out.")
    function = _activation(name, activation, init)
    layers = _depth(name, depth)
    if (sigma_w2, sigma_b2) != (2.0, 0.5) and init != "meanfield":
        raise ValueError(f"sigma_w2 and sigma_b2 belong to the initialization 'meanfield', not to {init!r}.")
    _check_numbers(init_scale=init_scale, sigma_w2=sigma_w2, sigma_b2=sigma_b2, dropout=dropout)
    if conv_bias is not None:
        check_flags(conv_bias=conv_bias)
    if norm_layers is not None and not isinstance(norm_layers, Collection):
        raise ValueError(f"norm_layers must be a list of places, not {norm_layers!r}.")

    builder = Builder(
        name,
        replace(Norm.parse(norm), before_activation=True) if network.before_activation else Norm.parse(norm),
        norm_layers=norm_layers,
        conv_bias=conv_bias,
        spare_biases=network.spare_biases,
        dropout=dropout,
        dropout_before=dropout_before,
        activation=function,
    )
    shape = _sizes(network.input_shape if input_shape is None else input_shape, classes)
    model = network.make(builder, shape, classes, **({"stem": stem} if network.has_stem else {}), **layers)

    def draw(layer: Layer) -> None:
        initialize(layer, init, scale=init_scale, sigma_w2=sigma_w2, sigma_b2=sigma_b2, activation=function)

    builder.finish(draw)
    return model


def places(name: str, depth: int | None = None) -> int:
    """How many places for a normalization a network has; of those whose depth is a choice, at that depth."""
    network = _find(name)
    builder = Builder(name, Norm())
    with torch.device("meta"):  # no memory, no random numbers
        network.make(builder, network.input_shape, 10, **_depth(name, depth))
    return builder.places


def input_shape(name: str) -> tuple[int, ...]:
    """The shape of one input that a network has in its paper."""
    return _find(name).input_shape


def _find(name: str) -> Network:
    if not isinstance(name, str) or name not in _REGISTRY:
        _unknown("network", name, _REGISTRY)
    return _REGISTRY[name]


def _activation(network: str, name: str | None, init: str) -> str:
    """The activation of a network, checked.

    Raises:
        ValueError: If there is none of that name, the network has none, or the initialization has no gain for it.
    """
    if name is not None and (not isinstance(name, str) or name not in ACTIVATIONS):
        _unknown("activation", name, ACTIVATIONS)
    if name is not None and _REGISTRY[network].linear:
        raise ValueError(f"{network} is linear and has no activation: leave activation out.")
    if name is not None and init == "he" and name not in HE_VARIANCES:
        raise ValueError(
            f"The initialization 'he' has no gain for the activation {name!r}; take init 'glorot', which has none for "
            "any, or 'meanfield' with a sigma_w2 of yours."
        )
    return name or "relu"


def _depth(network: str, depth: int | None) -> dict[str, int]:
    """The depth as `make` takes it, if it takes one.

    Raises:
        ValueError: If it is none, or the network has no choice.
    """
    usual = _REGISTRY[network].depth
    if depth is None:
        return {} if usual is None else {"depth": usual}
    if usual is None:
        some = ", ".join(name for name, one in _REGISTRY.items() if one.depth is not None)
        raise ValueError(f"{network} has a depth of its own: leave depth out, or take one of {some}.")
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 2:
        raise ValueError(f"depth must be a whole number, 2 or larger, not {depth!r}.")
    return {"depth": depth}


def _unknown(kind: str, name: object, known: Collection[str]) -> NoReturn:
    near = nearest(name, known)
    guess = f"; did you mean {near!r}?" if near else "."
    raise ValueError(f"There is no {kind} {name!r}{guess} Known are: {', '.join(known)}.")


def _sizes(input_shape: Sequence[int], classes: int) -> tuple[int, ...]:
    """The shape of an input, checked."""
    shape = tuple(input_shape) if isinstance(input_shape, Sequence) else ()
    if not shape or any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in shape):
        raise ValueError(f"input_shape must be positive whole numbers, not {input_shape!r}.")
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 1:
        raise ValueError(f"classes must be a positive whole number, not {classes!r}.")
    return shape


def _check_numbers(*, init_scale: float, sigma_w2: float, sigma_b2: float, dropout: float) -> None:
    check_numbers(init_scale=init_scale, sigma_w2=sigma_w2, sigma_b2=sigma_b2, dropout=dropout)
    for name, value in (("init_scale", init_scale), ("sigma_w2", sigma_w2)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number above 0, not {value!r}.")
    if not (sigma_b2 >= 0 and math.isfinite(sigma_b2)):
        raise ValueError(f"sigma_b2 must be a finite number, 0 or larger, not {sigma_b2!r}.")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be a number in [0, 1), not {dropout!r}.")
