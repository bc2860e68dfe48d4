"""Descriptions of layers, for `mean_field`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.theory.mean_field.positions import Sites, Window


def pair(value: object, name: str, least: int = 1) -> Sites:
    """A whole number, or two of them for height and width.

    Raises:
        ValueError: If it is neither, or one is below `least`.
    """
    both = (value, value) if isinstance(value, int) else value
    if not isinstance(both, Sequence) or len(both) != 2 or not all(_whole(n, least) for n in both):
        raise ValueError(f"{name} must be a whole number, {least} or larger, or two of them, not {value!r}.")
    return both[0], both[1]


@dataclass(frozen=True)
class Dense:
    """A fully connected layer; after a convolution it reads the flattened feature map.

    Args:
        width_in: Inputs.
        width_out: Outputs.
    """

    width_in: int
    width_out: int

    def __post_init__(self) -> None:
        """Refuse what is no width."""
        _check_widths(width_in=self.width_in, width_out=self.width_out)


@dataclass(frozen=True)
class Conv:
    """A convolution of images.

    Args:
        channels_in: Input channels.
        channels_out: Output channels.
        kernel: Sites in height and width.
        stride: Steps in height and width.
        padding: Zeros on each side.
        size: Height and width of the input. The first layer must say it; later ones follow.
    """

    channels_in: int
    channels_out: int
    kernel: int | Sites = 3
    stride: int | Sites = 1
    padding: int | Sites = 0
    size: int | Sites | None = None

    def __post_init__(self) -> None:
        """Refuse what is no convolution."""
        _check_widths(channels_in=self.channels_in, channels_out=self.channels_out)
        _ = self.window
        if self.size is not None:
            pair(self.size, "size")

    @property
    def window(self) -> Window:
        """Kernel, stride and padding, in height and width each."""
        return _window(self)


@dataclass(frozen=True)
class Pool:
    """A mean over windows.

    Args:
        kernel: Sites in height and width; None: the whole feature map.
        stride: Steps; None: as large as the kernel.
    """

    kernel: int | Sites | None = 2
    stride: int | Sites | None = None

    def __post_init__(self) -> None:
        """Refuse what is no window."""
        if self.kernel is not None:
            pair(self.kernel, "kernel")
        if self.stride is not None:
            pair(self.stride, "stride")

    def window(self, size: Sites) -> Window:
        """The window on a feature map of that size."""
        kernel = size if self.kernel is None else pair(self.kernel, "kernel")
        return Window(kernel, kernel if self.stride is None else pair(self.stride, "stride"))


@dataclass(frozen=True)
class MaxPool(Pool):
    """The largest value of each window."""


@dataclass(frozen=True)
class Residual:
    """A block whose output is that of its branch plus its input, or plus what the shortcut makes of it.

    The layers of the branch and of the shortcut are linear at their end: normalization and activation stand between the
    branch's layers only. With `preactivation` they stand before the first of them too (He et al., 2016b), otherwise
    after the sum (the activation alone; the normalization is then that of the branch's last layer, as in He et al.,
    2016a).

    Args:
        branch: Dense or convolutional layers.
        shortcut: One layer, where the shape changes; None: the input as it is.
        preactivation: Where normalization and activation stand.
    """

    branch: tuple[Dense | Conv, ...]
    shortcut: Dense | Conv | None = None
    preactivation: bool = True

    def __init__(
        self, branch: Sequence[Dense | Conv], shortcut: Dense | Conv | None = None, preactivation: bool = True
    ) -> None:
        layers: tuple[Any, ...] = tuple(branch)
        if not layers or not all(isinstance(layer, Dense | Conv) for layer in layers):
            raise ValueError("branch must be one or more Dense or Conv layers.")
        object.__setattr__(self, "branch", layers)
        object.__setattr__(self, "shortcut", shortcut)
        object.__setattr__(self, "preactivation", preactivation)


Layer = Dense | Conv | Pool | Residual


def _window(layer: Conv) -> Window:
    return Window(pair(layer.kernel, "kernel"), pair(layer.stride, "stride"), pair(layer.padding, "padding", least=0))


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_widths(**widths: object) -> None:
    for name, value in widths.items():
        if not _whole(value, 1):
            raise ValueError(f"{name} must be a whole number, 1 or larger, not {value!r}.")
