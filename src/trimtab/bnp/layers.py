"""What a layer's input means to BNP, one small function per type of layer.

Another type is added in the same way, from anywhere:

    @trimtab.register_layer(MyLinear)
    def my_linear(layer, x, y, options):
        return Rows(Moments.of(x, columns=-1), samples=len(x), outputs=len(x))
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab.bnp import kernels
from trimtab.bnp.options import Options, Spatial
from trimtab.bnp.statistics import Moments, Rows, at_least_float32

Observe = Callable[[Any, Tensor, Tensor, Options], Rows]
Units = Callable[[Any, Tensor], Tensor]
F_ = TypeVar("F_", bound=Observe)


def output_first(layer: nn.Module, weight: Tensor) -> Tensor:
    """A weight of shape (outputs, inputs per group, *sites) in the layout of `transform`."""
    groups = getattr(layer, "groups", 1)
    outputs, inputs = weight.shape[:2]
    return weight.view(groups, outputs // groups, inputs, -1)


def input_first(layer: nn.Module, weight: Tensor) -> Tensor:
    """A weight of shape (inputs, outputs per group, *sites) in the layout of `transform`."""
    groups = getattr(layer, "groups", 1)
    inputs, outputs = weight.shape[:2]
    return weight.view(groups, inputs // groups, outputs, -1).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class LayerType:
    """How BNP treats one type of layer.

    Attributes:
        observe: The rows that one call of the layer shows.
        units: The view of a weight (or its gradient) as (groups, outputs, inputs, sites).
        spatial: The values of the option `spatial` that this type can do.
        by_shape: Whether inputs of one shape have rows that differ in nothing but their moments, which are those of
            `kernels.moments` with `kept`.
        operation: The function of torch.nn.functional that multiplies the weight; None for a registered type.
        methods: The names of the methods that lead to it.
        own: PyTorch's own implementations of these.
    """

    observe: Observe
    units: Units
    spatial: Collection[str]
    by_shape: bool = False
    operation: Callable[..., Tensor] | None = None
    methods: tuple[str, ...] = ()
    own: tuple[Any, ...] = ()

    def implementations(self, module: nn.Module) -> tuple[Any, ...]:
        """What implements `methods` in a module now: its own attribute, or else its class's."""
        return tuple([module.__dict__.get(name) or getattr(type(module), name) for name in self.methods])

    def is_overridden_in(self, module: nn.Module) -> bool:
        """Whether other code than PyTorch's own decides what the weight multiplies.

        That is so in a subclass with a `forward` of its own, and in an instance whose `forward` was replaced.
        """
        return self.implementations(module) != self.own


_TYPES: dict[type[nn.Module], LayerType] = {}
_LARGEST = 2**62  # of the numbers of rows


def register_layer(
    *types: type[nn.Module], units: Units = output_first, spatial: Collection[str] = ("channel", "site")
) -> Callable[[F_], F_]:
    """Teach BNP a type of layer: an affine map with parameters `weight` and, if it has one, `bias`.

    Decorates a function `(layer, x, y, options) -> Rows`, called with the layer, the input and the
    output of one call of it, and BNP's options. Subclasses are included unless registered themselves;
    registering a type again replaces what was there. Instances of `BNP` made later know it.

    Args:
        *types: The classes of layers.
        units: A function `(layer, weight) -> view` that lays a tensor of the weight's shape out as
            (groups, outputs, inputs, sites). It must be a view, since the result is written through it.
            `output_first` is that of `nn.Linear` and the convolutions; `input_first` exists too.
        spatial: The values of the option `spatial` that the function heeds; others are refused for it.

    Raises:
        TypeError: If one of these is something else.
        ValueError: If there is no such value of `spatial`.
    """
    if not types:
        raise TypeError("register_layer takes the classes of layers that the decorated function is for.")
    for cls in types:
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise TypeError(f"register_layer takes subclasses of torch.nn.Module, not {cls!r}.")
    if not callable(units):
        raise TypeError(f"units must be a function (layer, weight) -> view, not {units!r}.")
    if isinstance(spatial, str) or not isinstance(spatial, Collection) or not set(spatial) <= set(get_args(Spatial)):
        raise ValueError(f"spatial must be a list with 'channel', 'site' or both, not {spatial!r}.")

    def register(observe: F_) -> F_:
        if not callable(observe):
            raise TypeError(f"register_layer decorates a function (layer, x, y, options) -> Rows, not {observe!r}.")
        _add(types, LayerType(torch.no_grad()(observe), units, spatial))
        return observe

    return register


def _add(types: Iterable[type[nn.Module]], what: LayerType) -> None:
    for cls in types:
        _TYPES[cls] = what


def layer_type(module: nn.Module) -> LayerType | None:
    """What is known of a module's type, by the nearest class it inherits from; None if nothing."""
    return next((_TYPES[cls] for cls in type(module).__mro__ if cls in _TYPES), None)


def linear(layer: nn.Linear, x: Tensor, y: Tensor, options: Options) -> Rows:
    """Algorithm 2; over extra dimensions a 1×1 convolution, or more samples if `tokens` says so."""
    rows = x.shape[:-1].numel()
    samples = x.shape[0] if x.ndim > 1 and options.tokens == "positions" else rows
    return Rows(kernels.moments(x, -1, options, kept=kept(layer, x)), samples=samples, outputs=rows)


def convolution(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, y: Tensor, options: Options) -> Rows:
    """Algorithm 3, with eqs. 21 and 22 per channel or eqs. 19 and 20 per site."""
    x, outputs = _batched(layer, x, y)
    if options.spatial == "site":
        moments = _site_moments(layer, x)
    else:
        moments = kernels.moments(x, 1, options, kept=kept(layer, x))
    return Rows(moments, samples=x.shape[0], outputs=outputs)


def transposed_convolution(
    layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, x: Tensor, y: Tensor, options: Options
) -> Rows:
    """A convolution of the input with zeros inserted: they are rows like the others.

    With τ = input positions / output positions the columns then have mean τμ and variance
    τ(σ² + μ²) − τ²μ². Padding that crops the output below the size of the input inserts none: τ = 1.
    """
    x, outputs = _batched(layer, x, y)
    moments = kernels.moments(x, 1, options)
    return Rows(moments, samples=x.shape[0], outputs=outputs, zeros=outputs - moments.count)


# What is asked by autograd itself before it keeps a tensor: functions that pack it away, or None.
_packing: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
_KEEPING = frozenset({nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d})


def kept(layer: nn.Module, x: Tensor) -> bool:
    """Whether autograd keeps a layer's input until the backward and forbids to change it.

    Not if the layer does something to it first, and not if what is kept is packed away, as for checkpointing.
    """
    if torch.compiler.is_compiling() or not x.is_cuda or type(layer) not in _KEEPING:
        return False
    return getattr(layer, "padding_mode", "zeros") == "zeros" and kept_now(x)


def kept_now(x: Tensor) -> bool:
    """The part of `kept` that is not decided by the layer: whether it is so at this moment."""
    if torch.is_autocast_enabled("cuda") and x.dtype is not torch.get_autocast_dtype("cuda"):
        return False
    return _packing is not None and _packing(False) is None and not _is_wrapped(x)


def _batched(layer: Any, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The input with its batch dimension, and the output positions of the batch."""
    space = len(layer.kernel_size)
    if x.ndim == space + 1:  # one sample without a batch dimension
        x = x.unsqueeze(0)
    return x, x.shape[0] * y.shape[-space:].numel()


def _site_moments(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Moments:
    """Moments per channel and kernel site: of all the entries that this site's weight multiplies."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    windows = F.pad(at_least_float32(x.detach()), _padding(layer), mode=mode)
    space = len(layer.kernel_size)
    for dim in range(space):
        size, stride, dilation = layer.kernel_size[dim], layer.stride[dim], layer.dilation[dim]
        windows = windows.unfold(2 + dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return Moments.of(windows, columns=[1, *range(-space, 0)])


def _padding(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """Padding before and after, last dimension first, as `torch.nn.functional.pad` wants it."""
    amounts: list[int] = []
    for dim in reversed(range(len(layer.kernel_size))):
        if layer.padding == "same":
            total = layer.dilation[dim] * (layer.kernel_size[dim] - 1)
            amounts += [total // 2, total - total // 2]
        elif layer.padding == "valid":
            amounts += [0, 0]
        else:
            amounts += [int(layer.padding[dim])] * 2
    return amounts


def column_shapes(weight: Tensor, units: tuple[int, int, int, int]) -> list[tuple[int, ...]]:
    """The shapes that the moments of a layer's rows may have: one number for each input, or for each of its sites."""
    groups, _, inputs, sites = units
    return [(groups * inputs,), (groups * inputs, sites), (groups * inputs, *weight.shape[2:])]


def misfit(rows: Any, weight: Tensor, units: tuple[int, int, int, int]) -> str | None:
    """Why rows cannot be those of a layer with this weight, in a few words; None if they can.

    Args:
        rows: What a function for a type of layer has returned.
        weight: The layer's weight.
        units: Its shape as (groups, outputs, inputs, sites).
    """
    if not isinstance(rows, Rows) or not isinstance(rows.moments, Moments):
        return f"the function registered for its type returned {type(rows).__name__} instead of Rows of Moments"
    moments, (groups, _, inputs, _) = rows.moments, units
    if isinstance(moments, kernels.KernelMoments):
        shapes, devices = [moments.shape], [moments.device]  # the rest is as the kernels write it
    else:
        found = (moments.mean, moments.variance)
        if not all(isinstance(x, Tensor) and x.layout is torch.strided and x.is_floating_point() for x in found):
            return "the mean and the variance of its rows are not tensors of floating-point numbers"
        types = {x.dtype for x in found}
        if len(types) > 1 or types & {torch.float16, torch.bfloat16}:
            return "the mean and the variance of its rows are not both float32 or both float64"
        shapes, devices = [x.shape for x in found], [x.device for x in found]
    if any((device.type == "meta") is not weight.is_meta for device in devices):
        return "the mean and the variance of its rows are on another device than its weight"
    for shape in shapes:
        if shape not in column_shapes(weight, units):
            return f"its rows have columns of shape {tuple(shape)}, but its weight has {groups * inputs} inputs"
    if len(set(shapes)) > 1:
        return "the mean and the variance of its rows have different shapes"
    if isinstance(moments.count, int) and moments.count == 0:
        return None  # there are no rows
    for name, number in (("count", moments.count), ("samples", rows.samples), ("outputs", rows.outputs)):
        if not _is_number(number, above=0):
            return f"its rows have {name}={number!r}, which is not a positive number"
    if not _is_number(rows.zeros, above=-_LARGEST):
        return f"its rows have zeros={rows.zeros!r}, which is not a number"
    return None


def _is_number(value: Any, above: int) -> bool:
    """Whether it is a number in a reasonable range, or a tensor that may be one: a GPU's are not asked for."""
    if isinstance(value, Tensor):
        if value.ndim or value.is_complex():
            return False
        if not value.is_cpu or type(value) is not Tensor or torch.compiler.is_compiling():
            return True
        value = value.item()
    return isinstance(value, int | float) and above < value < _LARGEST


def _add_torch_type(cls: Any, operation: Callable[..., Tensor], *methods: str, **how: Any) -> None:
    """A type of PyTorch's own, whose `methods` lead to the `operation`."""
    found = [getattr(cls, name) for name in methods]
    # What somebody has put in the place of PyTorch's own before this was imported is not PyTorch's own.
    own = tuple([method if method.__module__.startswith("torch.") else None for method in found])
    _add([cls], LayerType(**how, operation=operation, methods=methods, own=own))


# These need not be told to leave no trace in autograd: they detach what they compute with.
_BY_OUTPUT: dict[str, Any] = {"units": output_first, "spatial": ("channel", "site"), "by_shape": True}
_add_torch_type(nn.Linear, F.linear, "forward", observe=linear, **_BY_OUTPUT)
_add_torch_type(nn.Conv1d, F.conv1d, "forward", "_conv_forward", observe=convolution, **_BY_OUTPUT)
_add_torch_type(nn.Conv2d, F.conv2d, "forward", "_conv_forward", observe=convolution, **_BY_OUTPUT)
_add_torch_type(nn.Conv3d, F.conv3d, "forward", "_conv_forward", observe=convolution, **_BY_OUTPUT)
_BY_INPUT: dict[str, Any] = {"units": input_first, "spatial": ("channel",)}
_add_torch_type(nn.ConvTranspose1d, F.conv_transpose1d, "forward", observe=transposed_convolution, **_BY_INPUT)
_add_torch_type(nn.ConvTranspose2d, F.conv_transpose2d, "forward", observe=transposed_convolution, **_BY_INPUT)
_add_torch_type(nn.ConvTranspose3d, F.conv_transpose3d, "forward", observe=transposed_convolution, **_BY_INPUT)
