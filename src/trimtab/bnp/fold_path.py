"""The way from a BatchNorm to a layer: what a scale and a shift of its channels pass through unchanged."""

import operator
from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from trimtab import _torch

MAXIMA = (*_torch.MAX_POOLS, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
ADAPTIVE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
MAX_FUNCTIONS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_KEEPING_SAMPLES = (F.relu, torch.relu, operator.add, operator.iadd, F.dropout, *MAX_FUNCTIONS)
MEAN_FUNCTIONS = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)


class refused(Exception):  # noqa: N801, N818
    """A BatchNorm does not go in this direction; the text says why."""


class Path:
    """A way through operations that commute with a scale and a shift of each channel.

    Attributes:
        backwards: Whether it leads to the layer before, against the order of the calls.
        flat: Whether there is a flatten on the way.
        pooled: Whether there is a pooling on the way.
        images: Whether something on the way is for images only.
    """

    def __init__(self, scale: Tensor, shift: Tensor, *, backwards: bool) -> None:
        self.backwards = backwards
        self.flat = self.pooled = self.images = False
        self._falling, self._shifted = bool((scale < 0).any()), bool(shift.any())

    def copy(self) -> "Path":
        """The same way so far."""
        return copy(self)

    def through(self, node: fx.Node, module: nn.Module | None) -> str | None:
        """Go on through a call: empty if the scale and the shift pass it, None if it is nothing that they could pass.

        Otherwise the reason why they do not, for the end of a sentence.
        """
        if self.flattens(node, module):
            if self.backwards and self.pooled:
                return "stands before a pooling, which is then one over features"
            self.flat = True
            return ""
        if isinstance(module, (nn.Identity, *_torch.DROPOUTS)):
            return ""
        if node.target is F.dropout:
            given = _given(node, ("input", "p", "training", "inplace"))
            return "" if given.get("training", True) is False else "drops at random in evaluation too"
        maxima = isinstance(module, MAXIMA) or node.target in MAX_FUNCTIONS
        if maxima or isinstance(module, (*_torch.AVERAGE_POOLS, nn.Upsample)) or node.target in MEAN_FUNCTIONS:
            return self._through_pooling(node, module, maxima)
        if _is_mean_over_image(node):
            self.flat, self.images = self.flat or not node.kwargs.get("keepdim"), True
            self.pooled = True
            return ""
        return None

    def _through_pooling(self, node: fx.Node, module: nn.Module | None, maxima: bool) -> str:
        self.pooled = True
        if self.flat and not self.backwards:
            return "pools over features"
        if maxima and self._falling:
            return "takes maxima, while the BatchNorm multiplies some channels by negative numbers"
        if maxima and (getattr(module, "return_indices", False) or node.kwargs.get("return_indices")):
            return "returns indices too"
        pads = isinstance(module, _torch.AVERAGE_POOLS) and not isinstance(module, ADAPTIVE) and _adds_zeros(module)
        return "averages over zeros of its padding, which the shift would not reach" if pads and self._shifted else ""

    def misfit(self, batchnorm: Any, layer: nn.Module | None, width: int, channels: int) -> str:
        """Why the channels of a BatchNorm are not those of the layer at the end of the way; empty if they are.

        Args:
            batchnorm: The BatchNorm.
            layer: The layer.
            width: Features or channels of the layer on the side of the BatchNorm.
            channels: How many of them, or a divisor, the BatchNorm must have.
        """
        images = isinstance(batchnorm, nn.BatchNorm2d | nn.BatchNorm3d)
        if self.images and not isinstance(layer if self.backwards else batchnorm, _FOR_IMAGES):
            return "is not a layer of images, over which the mean is taken"
        if isinstance(layer, nn.Linear):
            if not self.flat and (images or self.pooled):
                return "takes features in the last dimension, which are not the channels of the BatchNorm"
            flat = self.flat and not self.backwards
            fits = width % batchnorm.num_features == 0 if flat else width == batchnorm.num_features
        else:
            if self.flat and not self.backwards:
                return "reads what was flattened before it"
            fits = width == batchnorm.num_features
        return "" if fits else f"has {width} features or channels, not the {batchnorm.num_features} of the BatchNorm"

    @staticmethod
    def flattens(node: fx.Node, module: nn.Module | None) -> bool:
        """Whether a call makes (samples, everything) of its input, in the order of its channels."""
        if isinstance(module, nn.Flatten):
            return module.start_dim == 1 and module.end_dim == -1
        if node.target in (torch.flatten, "flatten"):
            given = _given(node, ("input", "start_dim", "end_dim"))
            return (given.get("start_dim", 0), given.get("end_dim", -1)) == (1, -1)
        if node.target in ("view", "reshape", torch.reshape):
            shape = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], Sequence) else node.args[1:]
            rest = len(shape) == 2 and isinstance(shape[1], int) and shape[1] == -1
            return rest and _is_number_of_samples(shape[0], node.args[0])
        return False


_FOR_IMAGES = (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d)


def _adds_zeros(pool: Any) -> bool:
    """Whether averages are not over the values of their window alone."""
    padding = pool.padding if isinstance(pool.padding, tuple) else (pool.padding,)
    return getattr(pool, "divisor_override", None) is not None or (any(padding) and pool.count_include_pad)


def _is_mean_over_image(node: fx.Node) -> bool:
    """Whether it is x.mean((2, 3))."""
    if node.target not in (torch.mean, "mean"):
        return False
    dims = _given(node, ("input", "dim", "keepdim")).get("dim")
    return isinstance(dims, Sequence) and sorted(dims) in ([2, 3], [-2, -1])


def _is_number_of_samples(number: Any, value: Any) -> bool:
    """Whether it is x.size(0) or x.shape[0] of the value, or of what modules and sums made the value from.

    Others, such as the input of a model that makes images of videos, may have fewer samples, each with more in it.
    """
    if not isinstance(number, fx.Node):
        return False
    if number.target == "size" and number.args[1:] == (0,):
        source = number.args[0]
    elif number.target is operator.getitem and number.args[1] == 0 and isinstance(number.args[0], fx.Node):
        shape = number.args[0]
        of_shape = shape.target == "size" and len(shape.args) == 1
        of_shape = of_shape or (shape.target is getattr and shape.args[1] == "shape")
        source = shape.args[0] if of_shape else None
    else:
        return False
    at = value
    while isinstance(at, fx.Node) and at is not source:
        kept = at.op == "call_module" or at.target in _KEEPING_SAMPLES
        at = at.args[0] if kept and at.args else None
    return isinstance(at, fx.Node)


def _given(node: fx.Node, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}
