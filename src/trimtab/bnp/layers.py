"""What a layer's input means to BNP, one small function per type of layer.

Another type is added in the same way, from anywhere:

    @trimtab.register_layer(MyLinear)
    def my_linear(layer, x, y, options):
        return Rows(Moments.of(x, columns=-1), samples=len(x), positions=len(x))
"""

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.algorithm.moments import Moments, Rows, at_least_float32
from trimtab.bnp.options import Options, Spatial
from trimtab.renamed import renamed_arguments


class InputColumns(NamedTuple):
    """Rows whose moments are still to be computed: those of the entries of a tensor.

    Attributes:
        x: The tensor.
        dim: The dimension of its columns; all others are rows.
        samples: As in `Rows`.
        positions: As in `Rows`.
        zeros: As in `Rows`.
    """

    x: Tensor
    dim: int
    samples: int
    positions: int
    zeros: int = 0

    def rows(self, moments: Moments | None = None) -> Rows:
        """The rows, with these moments or (None) with those that are computed in plain PyTorch."""
        if moments is None:
            moments = Moments.of(self.x, columns=self.dim)
        return Rows(moments, self.samples, self.positions, self.zeros)


Observe = Callable[[Any, Tensor, Tensor, Options], Rows | InputColumns]
View = Callable[[Any, Tensor], Tensor]
F_ = TypeVar("F_", bound=Callable[[Any, Tensor, Tensor, Options], Rows])


def output_first(layer: nn.Module, weight: Tensor) -> Tensor:
    """The canonical view of a weight of shape (outputs, inputs per group, *sites): the layout of `transform`."""
    groups = getattr(layer, "groups", 1)
    outputs, inputs = weight.shape[:2]
    return weight.view(groups, outputs // groups, inputs, -1)


def input_first(layer: nn.Module, weight: Tensor) -> Tensor:
    """The canonical view of a weight of shape (inputs, outputs per group, *sites): the layout of `transform`."""
    groups = getattr(layer, "groups", 1)
    inputs, outputs = weight.shape[:2]
    return weight.view(groups, inputs // groups, outputs, -1).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class LayerType:
    """How BNP treats one type of layer.

    Attributes:
        observe: The rows that one call of the layer shows.
        view: The canonical view of a weight (or its gradient): (groups, outputs, inputs, sites).
        spatial: The values of the option `spatial` that this type can do.
        operation: The function of torch.nn.functional that multiplies the weight; None for a registered type.
        methods: The names of the methods that lead to it.
        own: PyTorch's own implementations of these.
    """

    observe: Observe
    view: View
    spatial: Collection[str]
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


@renamed_arguments(units="view")
def register_layer(
    *types: type[nn.Module], view: View = output_first, spatial: Collection[str] = ("channel", "site")
) -> Callable[[F_], F_]:
    """Teach BNP a type of layer: an affine map with parameters `weight` and, if it has one, `bias`.

    Decorates a function `(layer, x, y, options) -> Rows`, called with the layer, the input and the
    output of one call of it, and BNP's options. Subclasses are included unless registered themselves;
    registering a type again replaces what was there. Instances of `BNP` made later know it.

    Args:
        *types: The classes of layers.
        view: A function `(layer, weight) -> tensor` that gives the canonical view of a tensor of the weight's shape:
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
    if not callable(view):
        raise TypeError(f"view must be a function (layer, weight) -> tensor, not {view!r}.")
    if isinstance(spatial, str) or not isinstance(spatial, Collection) or not set(spatial) <= set(get_args(Spatial)):
        raise ValueError(f"spatial must be a list with 'channel', 'site' or both, not {spatial!r}.")

    def register(observe: F_) -> F_:
        if not callable(observe) or not _takes_four(observe):
            raise TypeError(f"register_layer decorates a function (layer, x, y, options) -> Rows, not {observe!r}.")
        _add(types, LayerType(torch.no_grad()(observe), view, spatial))
        return observe

    return register


def _takes_four(function: Callable[..., Any]) -> bool:
    """Whether it can be called with four arguments, as far as that can be told."""
    try:
        inspect.signature(function).bind(None, None, None, None)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        pass
    return True


def _add(types: Iterable[type[nn.Module]], what: LayerType) -> None:
    for cls in types:
        _TYPES[cls] = what


def layer_type(module: nn.Module) -> LayerType | None:
    """What is known of a module's type, by the nearest class it inherits from; None if nothing."""
    for cls in type(module).__mro__:
        known = _TYPES.get(cls) or _TYPES_ELSEWHERE.get(f"{cls.__module__}.{cls.__qualname__}")
        if known is not None:
            return known
    return None


def linear(layer: nn.Linear, x: Tensor, y: Tensor, options: Options) -> InputColumns:
    """Algorithm 2; over extra dimensions a 1×1 convolution, or more samples if `tokens` says so."""
    shape = x.shape
    rows = shape[0] if len(shape) == 2 else shape[:-1].numel()
    samples = shape[0] if len(shape) > 1 and options.tokens == "positions" else rows
    return InputColumns(x, -1, samples, rows)


def convolution(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, y: Tensor, options: Options
) -> Rows | InputColumns:
    """Algorithm 3, with eqs. 21 and 22 per channel or eqs. 19 and 20 per site."""
    x, positions = _batched(layer, x, y)
    if options.spatial == "site":
        return Rows(_site_moments(layer, x), samples=x.shape[0], positions=positions)
    return InputColumns(x, 1, x.shape[0], positions)


def transposed_convolution(
    layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, x: Tensor, y: Tensor, options: Options
) -> InputColumns:
    """A convolution of the input with zeros inserted: they are rows like the others.

    With τ = input positions / output positions the columns then have mean τμ and variance
    τ(σ² + μ²) − τ²μ². Padding that crops the output below the size of the input inserts none: τ = 1.
    """
    x, positions = _batched(layer, x, y)
    return InputColumns(x, 1, x.shape[0], positions, positions - x.numel() // max(1, x.shape[1]))


_KEEPING = frozenset({nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d})


def is_kept(layer: Any, x: Tensor) -> bool:
    """Whether autograd keeps this input of a layer, as it is, until the backward, on a GPU.

    Not if the layer makes another tensor of it first, or autocast does, and not if what is kept is packed away, as for
    checkpointing.
    """
    if type(layer) not in _KEEPING or layer.__dict__.get("padding_mode", "zeros") != "zeros":  # Linear has none
        return False
    if torch.is_autocast_enabled() and x.dtype is not torch.get_autocast_dtype("cuda"):
        return False
    return not _torch.packs_saved_tensors() and not _torch.is_wrapped(x)


def _batched(layer: Any, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """The input with its batch dimension, and the output positions of the batch."""
    space = len(layer.kernel_size)
    if x.ndim == space + 1:  # one sample without a batch dimension
        x = x.unsqueeze(0)
    return x, x.shape[0] * y.shape[-space:].numel()


def _site_moments(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Moments:
    """Moments per channel and kernel site: of all the entries that this site's weight multiplies."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    windows = F.pad(at_least_float32(x.detach()), padding_of(layer), mode=mode)
    space = len(layer.kernel_size)
    for dim in range(space):
        size, stride, dilation = layer.kernel_size[dim], layer.stride[dim], layer.dilation[dim]
        windows = windows.unfold(2 + dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return Moments.of(windows, columns=[1, *range(-space, 0)])


def padding_of(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
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


def _add_torch_type(cls: Any, operation: Callable[..., Tensor], *methods: str, **how: Any) -> None:
    """A type of PyTorch's own, whose `methods` lead to the `operation`."""
    found = [getattr(cls, name) for name in methods]
    # What somebody has put in the place of PyTorch's own before this was imported is not PyTorch's own.
    own = tuple([method if method.__module__.startswith("torch.") else None for method in found])
    _add([cls], LayerType(**how, operation=operation, methods=methods, own=own))


_BY_OUTPUT: dict[str, Any] = {"view": output_first, "spatial": ("channel", "site")}
_add_torch_type(nn.Linear, F.linear, "forward", observe=linear, **_BY_OUTPUT)
_add_torch_type(nn.Conv1d, F.conv1d, *_torch.CONVOLUTION_METHODS, observe=convolution, **_BY_OUTPUT)
_add_torch_type(nn.Conv2d, F.conv2d, *_torch.CONVOLUTION_METHODS, observe=convolution, **_BY_OUTPUT)
_add_torch_type(nn.Conv3d, F.conv3d, *_torch.CONVOLUTION_METHODS, observe=convolution, **_BY_OUTPUT)
_BY_INPUT: dict[str, Any] = {"view": input_first, "spatial": ("channel",)}
_add_torch_type(nn.ConvTranspose1d, F.conv_transpose1d, "forward", observe=transposed_convolution, **_BY_INPUT)
_add_torch_type(nn.ConvTranspose2d, F.conv_transpose2d, "forward", observe=transposed_convolution, **_BY_INPUT)
_add_torch_type(nn.ConvTranspose3d, F.conv_transpose3d, "forward", observe=transposed_convolution, **_BY_INPUT)

# Types of other packages, by name: none of these is imported here.
_TYPES_ELSEWHERE = {
    # The layers of GPT-2: a Linear whose weight is transposed.
    "transformers.pytorch_utils.Conv1D": LayerType(linear, input_first, ("channel", "site")),
}
