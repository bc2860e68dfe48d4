"""The size of an image after convolutions and poolings."""

from collections.abc import Sequence
from itertools import count

from torch import nn


def image(network: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of an input shape, which must be that of an image."""
    if len(shape) != 3:
        raise ValueError(f"{network} takes images: input_shape must be (channels, height, width), not {tuple(shape)}.")
    channels, height, width = shape
    return channels, height, width


def flattened(network: str, layers: Sequence[nn.Module], shape: Sequence[int]) -> int:
    """The number of outputs of the last layer for one image.

    Raises:
        ValueError: If the image is too small; the error says the smallest size.
    """
    height, width = _size(layers, shape[1]), _size(layers, shape[2])
    if height < 1 or width < 1:
        least = next(size for size in count(1) if _size(layers, size) >= 1)
        raise ValueError(
            f"{network} takes images of at least {least}×{least}, not {shape[1]}×{shape[2]}: "
            "its convolutions and poolings leave nothing of smaller ones."
        )
    channels = [layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d)][-1]
    return channels * height * width


def _size(layers: Sequence[nn.Module], size: int) -> int:
    """The length of one side after square convolutions and poolings; 0 or less once nothing is left."""
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d) and size >= 1:
            kernel, stride, padding = (_side(n) for n in (layer.kernel_size, layer.stride, layer.padding))
            size = (size + 2 * padding - kernel) // stride + 1
    return size


def _side(value: object) -> int:
    side = value[0] if isinstance(value, tuple) else value
    assert isinstance(side, int)
    return side
