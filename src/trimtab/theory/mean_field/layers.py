"""Descriptions of layers, for `mean_field`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.theory.checks import whole
from trimtab.theory.mean_field.positions import Sites, Window


def pair(value: object, name: str, least: int = 1) -> Sites:
    """A whole number, or two of them for height and width.

    Raises:
        ValueError: If it is neither, or one is below `least`.
    """
    both = value if isinstance(value, Sequence) and not isinstance(value, str) else (value, value)
    try:
        first, second = (whole(n, name, least) for n in both)
    except ValueError:  # one is no such number, or they are not two
        raise ValueError(f"{name} must be a whole number, {least} or larger, or two of them, not {value!r}.") from None
    return first, second


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
        """Check the widths."""
        _set_widths(self, "width_in", "width_out")


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
        """Check all sizes."""
        _set_widths(self, "channels_in", "channels_out")
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
        """Check all sizes."""
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
    """A residual block: the output of its branch plus its input, or plus the output of its shortcut.

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
        layers: tuple[Any, ...] = tuple(branch) if isinstance(branch, Iterable) else ()
        if not layers or not all(isinstance(layer, Dense | Conv) for layer in layers):
            raise ValueError("branch must be a list of one or more Dense or Conv layers.")
        if shortcut is not None and not isinstance(shortcut, Dense | Conv):
            raise ValueError(f"shortcut must be None or one Dense or Conv layer, not {shortcut!r}.")
        if not isinstance(preactivation, bool):
            raise ValueError(f"preactivation must be True or False, not {preactivation!r}.")
        object.__setattr__(self, "branch", layers)
        object.__setattr__(self, "shortcut", shortcut)
        object.__setattr__(self, "preactivation", preactivation)


Layer = Dense | Conv | Pool | Residual


def _window(layer: Conv) -> Window:
    return Window(pair(layer.kernel, "kernel"), pair(layer.stride, "stride"), pair(layer.padding, "padding", least=0))


def _set_widths(layer: Dense | Conv, *names: str) -> None:
    """Convert widths to Python's int."""
    for name in names:
        object.__setattr__(layer, name, whole(getattr(layer, name), name))
