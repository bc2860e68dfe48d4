"""Plain convolutional networks, each one a row of layers."""

from torch import nn

from trimtab.networks.builder import Builder
from trimtab.networks.shapes import flattened, image

# Where a VGG pools; numbers are channels.
POOL = "pool"
VGG_A = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)
VGG_D = (64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL, 512, 512, 512, POOL, 512, 512, 512, POOL)


def small_cnn(builder: Builder, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Two convolutions with pooling and a linear layer, normalized after the activation, for the demo."""
    return _pooled(builder, shape, classes, (16, POOL, 32, POOL), padding=1)


def cnn5(builder: Builder, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The 5-layer CNN: three 3×3 convolutions of 32-64-32 filters and two dense layers (bnp, Sec. 5 and App. B).

    The rest is from the tutorial that the paper names (TensorFlow, 2019): no padding, ReLU, 2×2 max-pooling after the
    first two convolutions, 64 units in the first dense layer. The paper normalizes fully connected networks after the
    activation and does not say it for this one; we do the same, and normalize before pooling. Places: the three
    convolutions and the first dense layer. Glorot uniform, zero biases.
    """
    return _pooled(builder, shape, classes, (32, POOL, 64, POOL, 32), padding=0, dense=(64,), normalize_dense=True)


def regcnn(builder: Builder, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """conv(3,32)-conv(3,32)-conv(3,64)-conv(3,64)-pool(2,2)-fc(512)-fc(10) (regularization, Sec. 5).

    Left open there, and chosen: padding that keeps the size; ReLU; normalization before the activation, as in the
    paper's Sec. 1.1, at all layers but the last (five places); He normal weights, zero biases. Dropout is put directly
    after the normalization (Sec. 5, "BN with dropout"), or after the layer where only its weight is normalized; for
    ReLU it does not matter on which side of the activation.
    """
    return _pooled(builder, shape, classes, (32, 32, 64, 64, POOL), padding=1, dense=(512,), normalize_dense=True)


def vgg(builder: Builder, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The "VGG-like network" for CIFAR-10 (landscape, App. A.1).

    The paper says no more than that and "standard Glorot initialization". Chosen: configuration A of Simonyan and
    Zisserman (2014), 8 convolutions, with two dense layers of 512 in the place of its 4096; normalization between each
    convolution and its ReLU, as VGG is commonly published with BatchNorm, and none in the dense layers; zero biases.
    """
    return _pooled(builder, shape, classes, VGG_A, padding=1, dense=(512, 512))


def vgg16(builder: Builder, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """VGG16 for 32×32 images (meanfield, Sec. 6.5): configuration D of Simonyan and Zisserman (2014).

    The paper does not say how it is fitted to CIFAR-10. Chosen, as is common: the 13 convolutions with biases,
    normalized before the ReLU, and one linear layer; He normal weights, zero biases.
    """
    return _pooled(builder, shape, classes, VGG_D, padding=1)


def mf_conv(builder: Builder, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Three convolutions of 30-60-90 channels, filter 3, stride 2, and a linear output layer (meanfield, Sec. 4).

    No padding, as in the example of its Sec. 6.2, and as the theory needs it. Normalized before the activation
    (eq. 13), except at the output. Weights and biases as in eq. 12.
    """
    channels, _, _ = image(builder.network, shape)
    layers: list[nn.Module] = []
    for filters in (30, 60, 90):
        layers += builder.hidden(builder.conv(channels, filters, 3, stride=2))
        channels = filters
    features = flattened(builder.network, layers, shape)
    return nn.Sequential(*layers, nn.Flatten(), builder.plain(features, classes))


def _pooled(
    builder: Builder,
    shape: tuple[int, ...],
    classes: int,
    plan: tuple[int | str, ...],
    *,
    padding: int,
    dense: tuple[int, ...] = (),
    normalize_dense: bool = False,
) -> nn.Sequential:
    """3×3 convolutions and 2×2 max-poolings by a plan, then dense layers."""
    channels, _, _ = image(builder.network, shape)
    layers: list[nn.Module] = []
    for step in plan:
        if isinstance(step, int):
            layers += builder.hidden(builder.conv(channels, step, 3, padding=padding))
            channels = step
        else:
            layers.append(nn.MaxPool2d(2))
    features = flattened(builder.network, layers, shape)
    layers.append(nn.Flatten())
    for width in dense:
        if normalize_dense:
            layers += builder.hidden(builder.dense(features, width))
        else:
            layers += [builder.plain(features, width), builder.activation()]
        features = width
    return nn.Sequential(*layers, builder.plain(features, classes))
