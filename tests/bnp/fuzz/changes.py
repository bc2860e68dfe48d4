"""What happens to a model, its gradients and the state of BNP in the middle of training."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import trimtab
from tests.bnp.fuzz import tensors
from tests.bnp.fuzz.draw import Draw

Change = Callable[[Draw, nn.Module, nn.Module], None]
"""Changes a layer of a model; its arguments are the choices to make, the model and the layer."""


def parameters(layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter | None]:
    weight = layer._parameters["weight"]
    assert weight is not None
    return weight, layer._parameters.get("bias")


# ---- The model ------------------------------------------------------------------------------------------------------


def threads(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    torch.set_num_threads(draw.number(1, 3))


def another_type(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    draw.pick([model, layer]).to(draw.pick([torch.float64, torch.float32, torch.bfloat16, torch.float16]))


def another_memory_format(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    weight, _ = parameters(layer)
    if weight.ndim in (4, 5):
        layer.to(memory_format=torch.channels_last if weight.ndim == 4 else torch.channels_last_3d)
    weight.data = tensors.channels_last(weight.data) if draw.chance(0.5) else tensors.transposed(weight.data)


def to_meta(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    draw.pick([model, layer]).to("meta")


def another_shape(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    """As when a layer is grown or pruned by hand."""
    weight, bias = parameters(layer)
    for parameter in [weight] if bias is None or draw.chance(0.5) else [weight, bias]:
        shape = list(parameter.shape)
        if shape:
            shape[draw.number(0, len(shape) - 1)] += draw.pick([-1, 1, 40])
        data = torch.ones([max(0, n) for n in shape], dtype=parameter.dtype)
        if draw.chance(0.5):
            parameter.data = data
        else:
            name = "weight" if parameter is weight else "bias"
            layer._parameters[name] = nn.Parameter(data)


def other_groups(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    if hasattr(layer, "groups"):
        layer.groups = draw.pick([1, 2, 3])  # type: ignore[assignment]


def frozen(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    weight, bias = parameters(layer)
    parameter = weight if bias is None or draw.chance(0.5) else bias
    parameter.requires_grad_(not parameter.requires_grad)


def without_bias(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    weight, bias = parameters(layer)
    layer._parameters["bias"] = nn.Parameter(weight.detach().new_zeros(len(weight))) if bias is None else None


def bias_of_another_type(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    _, bias = parameters(layer)
    if bias is not None:
        bias.data = bias.data.to(draw.pick([torch.float64, torch.bfloat16]))


MODEL: list[Change] = [
    threads,
    another_type,
    another_memory_format,
    to_meta,
    another_shape,
    other_groups,
    frozen,
    without_bias,
    bias_of_another_type,
]

# ---- Gradients ------------------------------------------------------------------------------------------------------


def _one(draw: Draw, layer: nn.Module) -> nn.Parameter | None:
    """A parameter that has a gradient."""
    weight, bias = parameters(layer)
    chosen = weight if bias is None or draw.chance(0.6) else bias
    return chosen if chosen.grad is not None and chosen.grad.layout is torch.strided else None


def laid_out_otherwise(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    # What is written to overlapping memory depends on the number of threads.
    parameter, name = _one(draw, layer), draw.pick([name for name in tensors.LAYOUTS if name != "overlapping"])
    if parameter is not None and parameter.grad is not None and not parameter.grad.is_meta:
        parameter.grad = tensors.LAYOUTS[name](parameter.grad.detach())


def with_other_data(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    """Of another type or shape, which torch does not notice."""
    parameter = _one(draw, layer)
    kind, by = draw.pick(["type", "size", "order"]), draw.pick([-1, 1])
    dtype = draw.pick([torch.float64, torch.float32, torch.bfloat16, torch.int64])
    if parameter is None or parameter.grad is None or parameter.grad.is_meta:
        return
    grad = parameter.grad.detach()
    if kind == "type":
        data = grad.to(dtype)
    elif kind == "size":
        data = torch.ones([max(0, n + by) for n in grad.shape], dtype=grad.dtype)
    else:
        data = tensors.exact(grad.permute(*range(grad.ndim)[::-1]))
    parameter.grad.data = data


def sparse(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    parameter = _one(draw, layer)
    if parameter is not None and parameter.grad is not None and not parameter.grad.is_meta:
        parameter.grad = parameter.grad.detach().to_sparse()


def without(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    parameter = _one(draw, layer)
    if parameter is not None:
        parameter.grad = None


def not_finite(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    parameter, at, value = _one(draw, layer), draw.number(0, 1 << 30), draw.pick([float("nan"), float("inf")])
    if parameter is not None and parameter.grad is not None and parameter.grad.numel() and not parameter.grad.is_meta:
        grad = parameter.grad.detach().clone(memory_format=torch.contiguous_format)
        grad.view(-1)[at % grad.numel()] = value
        parameter.grad = grad


def the_weight_itself(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    """As a user may do for weight decay alone."""
    weight, _ = parameters(layer)
    if weight.grad is not None:
        weight.grad = weight.detach()


def zeros_without_memory(draw: Draw, model: nn.Module, layer: nn.Module) -> None:
    parameter = _one(draw, layer)
    if parameter is not None and parameter.grad is not None and parameter.grad.is_cpu:
        parameter.grad = torch._efficientzerotensor(parameter.grad.shape, dtype=parameter.grad.dtype)


GRADIENTS: list[Change] = [
    laid_out_otherwise,
    laid_out_otherwise,
    laid_out_otherwise,
    with_other_data,
    sparse,
    without,
    not_finite,
    the_weight_itself,
    zeros_without_memory,
]

# ---- The state of BNP -----------------------------------------------------------------------------------------------

_SPOILS: list[Callable[[Tensor], Any]] = [
    Tensor.double,
    Tensor.float,
    Tensor.half,
    Tensor.int,
    Tensor.bool,
    lambda t: t.to(torch.complex64),
    lambda t: t.to("meta"),
    Tensor.to_sparse,
    lambda t: t[..., :1].clone().expand(t.shape) if t.ndim else t,
    lambda t: tensors.with_gaps(t),
    lambda t: t.new_ones((*t.shape, 1)),
    lambda t: t.new_ones((*t.shape[:-1], t.shape[-1] + 1)) if t.ndim else t.new_ones(2),
    lambda t: t.to(torch.float64).sub(5).to(t.dtype),
    lambda t: t * float("nan") if t.is_floating_point() else t - 10,
    Tensor.tolist,
    lambda t: None,
]


def state(draw: Draw, bnp: trimtab.BNP) -> None:
    """Save and load; now and then with something else in it, which BNP takes over rightly or refuses."""
    saved = bnp.state_dict()
    spoil = draw.pick(_SPOILS) if draw.chance(0.5) else None
    part = draw.pick(["running", "pending"])
    name = draw.pick(["mean", "variance", "weight", "steps", "skipped"])
    if spoil is not None:
        for layer in saved["layers"].values():
            value = None if layer[part] is None else layer[part].get(name)
            if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:  # it has no numbers
                layer[part][name] = spoil(value.as_subclass(Tensor))
    bnp.load_state_dict(saved)
