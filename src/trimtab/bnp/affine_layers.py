"""Scales and shifts of channels, taken into the weights of the layer before or after them.

All of it is computed in float64 and rounded once.
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _torch

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)


def scale_and_shift(batchnorm: Any) -> tuple[Tensor, Tensor]:
    """What a BatchNorm multiplies each channel with in evaluation, and what it adds then.

    Raises:
        ValueError: If that is not finite, or it has no running statistics; for the end of a sentence.
    """
    if batchnorm.running_mean is None or batchnorm.running_var is None:
        raise ValueError("it has no running statistics, so that it normalizes by each batch also in evaluation")
    scale = torch.rsqrt(batchnorm.running_var.double() + batchnorm.eps)
    if batchnorm.weight is not None:
        scale = scale * batchnorm.weight.detach().double()
    shift = -batchnorm.running_mean.double() * scale
    if batchnorm.bias is not None:
        shift = shift + batchnorm.bias.detach().double()
    if not (scale.isfinite().all() and shift.isfinite().all()):
        raise ValueError("its statistics or parameters are not finite")
    return scale, shift


def outputs_of(layer: Any) -> int:
    """The number of features or channels that a layer puts out."""
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


def inputs_of(layer: Any) -> int:
    """The number of features or channels that a layer takes."""
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)


def apply_to_outputs(layer: Any, scale: Tensor, shift: Tensor) -> None:
    """Change weight and bias so that each output comes scaled and shifted."""
    weight = layer.weight.detach().double()
    if isinstance(layer, TRANSPOSED):  # (inputs, outputs of a group, *kernel)
        grouped = weight.view(layer.groups, -1, *weight.shape[1:])
        weight = (grouped * _like(scale.view(layer.groups, 1, -1), grouped)).view(weight.shape)
    else:
        weight = weight * _like(scale, weight)
    bias = 0.0 if layer.bias is None else layer.bias.detach().double() * scale
    _set(layer, weight, shift + bias)


def apply_to_inputs(layer: Any, scale: Tensor, shift: Tensor) -> None:
    """Change weight and bias so that the layer does what it did before to inputs that come scaled and shifted.

    That is possible if `edge_problem` has no objection to the shift.
    """
    weight = layer.weight.detach().double()
    summed = weight.flatten(2).sum(2) if weight.ndim > 2 else weight
    if isinstance(layer, TRANSPOSED):
        groups = layer.groups
        added = (summed.view(groups, -1, summed.shape[1]) * shift.view(groups, -1, 1)).sum(1).flatten()
        weight = weight * _like(scale, weight)
    else:
        # One row for each output: the inputs of its group.
        groups = 1 if isinstance(layer, nn.Linear) else layer.groups
        scales, shifts = (x.view(groups, -1).repeat_interleave(len(weight) // groups, 0) for x in (scale, shift))
        added = (summed * shifts).sum(1)
        weight = weight * _like(scales, weight)
    _set(layer, weight, added if layer.bias is None else added + layer.bias.detach().double())


def edge_problem(layer: Any, shift: Tensor) -> str:
    """Why a shift of the inputs is not the same at all outputs of a layer, as a bias is; empty if it is."""
    if not shift.any() or isinstance(layer, nn.Linear):
        return ""
    if isinstance(layer, TRANSPOSED):
        ones = (*layer.kernel_size, *layer.stride)
        nothing = (*layer.padding, *layer.output_padding)
        plain = all(n == 1 for n in ones) and not any(nothing)
        return "" if plain else "is a transposed convolution, which spreads the shift unevenly over its outputs"
    if layer.padding_mode != "zeros":  # it pads with what it finds there, shifted too
        return ""
    padding = layer.padding
    if padding == "same":
        padding = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    padded = padding != "valid" and any(padding)
    return "pads with zeros, which the shift of the BatchNorm would not reach" if padded else ""


def computed_parameter(layer: nn.Module) -> str:
    """The name of a parameter that is computed from others, as under weight normalization; empty if none is."""
    own = dict(layer.named_parameters(recurse=False))
    names = [name for name in ("weight", "bias") if name not in own and getattr(layer, name, None) is not None]
    return names[0] if names else ""


def has_own_forward(layer: nn.Module) -> bool:
    """Whether a layer's forward is not that of torch's layer."""
    kind: Any = next(kind for kind in LAYERS if isinstance(layer, kind))
    names = _torch.CONVOLUTION_METHODS if issubclass(kind, CONVOLUTIONS) else ("forward",)
    return any(name in vars(layer) or getattr(type(layer), name) is not getattr(kind, name) for name in names)


def has_hooks(module: nn.Module) -> bool:
    """Whether something of the user's own runs with each call of a module, which may change what comes in or out."""
    for register in (module.register_forward_hook, module.register_forward_pre_hook):
        handle = register(lambda *_: None)  # it knows the others
        hooks = handle.hooks_dict_ref()
        handle.remove()
        if hooks:
            return True
    return False


def _like(values: Tensor, tensor: Tensor) -> Tensor:
    """Values for the first dimensions, shaped to act on a tensor."""
    return values.view(*values.shape, *itertools.repeat(1, tensor.ndim - values.ndim))


def _set(layer: Any, weight: Tensor, bias: Tensor) -> None:
    dtype = layer.weight.dtype
    if any(x.isfinite().all() and not x.to(dtype).isfinite().all() for x in (weight, bias)):
        raise ValueError(f"The folded weights are too large for {dtype}; convert the model to float32 first.")
    with torch.no_grad():
        layer.weight.copy_(weight)
        if layer.bias is not None:
            layer.bias.copy_(bias)
        elif bias.any():
            layer.bias = nn.Parameter(bias.to(dtype), requires_grad=layer.weight.requires_grad)
