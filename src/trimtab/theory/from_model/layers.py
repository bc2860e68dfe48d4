"""Layers with parameters as mean-field operations: what is read off Linear, Conv and normalization layers."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from trimtab import _torch
from trimtab.norms import LpNorm, MeanOnlyBatchNorm, NoisyBatchNorm, VarianceOnlyBatchNorm
from trimtab.norms.ghost import GhostBatchNorm
from trimtab.theory.from_model.parameters import finite_values, names_of_trained, significant_mean
from trimtab.theory.from_model.tracing import SAMPLE, conv_window
from trimtab.theory.mean_field.operations import Affine, Normalize
from trimtab.theory.mean_field.positions import Window

Note = Callable[[str], None]
"""Called with a sentence for each property of a layer that the operation does not have."""

_PLAIN_FORWARDS = (nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward)


def affine(name: str, layer: nn.Linear | nn.Conv1d | nn.Conv2d, note: Note) -> Affine:
    """A linear layer or a convolution, with the variances of its weights and biases.

    Raises:
        ValueError: If a parameter is empty or not finite.
    """
    weight = finite_values(f"{name}.weight", layer.weight)
    if is_parametrized(layer, "weight"):
        note(f"{name}.weight is computed from other parameters; the gradient is taken as the weight's own.")
    if mean := significant_mean(weight):
        note(f"{name}.weight has a mean of {mean:.3g}, which mean field takes for 0; measure it instead.")
    window = Window((1, 1))
    if not isinstance(layer, nn.Linear):
        window = conv_window(layer)
        if any(window.padding) and layer.padding_mode != "zeros":
            note(f"{name} pads by {layer.padding_mode!r}; zeros are assumed.")
    fan_in = weight[0].numel()
    sigma_b2, bias = 0.0, 0.0
    if layer.bias is not None:
        offsets = finite_values(f"{name}.bias", layer.bias)
        sigma_b2, bias = float(offsets.square().mean()), significant_mean(offsets)
    trained = names_of_trained(weight=layer.weight, bias=layer.bias)
    sigma_w2 = float(weight.square().mean()) * fan_in
    return Affine(name, len(weight), fan_in, sigma_w2, sigma_b2, window, trained, bias)


def normalization(name: str, module: Any, note: Note, *, frozen: bool) -> Normalize:
    """A normalization layer, with the mean squares of its γ and β.

    Args:
        name: The name of the layer.
        module: The layer.
        note: Called with a sentence for each property of the layer that the operation does not have.
        frozen: Whether the gradient does not pass through the statistics.

    Raises:
        ValueError: If a parameter is empty or not finite.
    """
    gamma2, beta2, beta = 1.0, 0.0, 0.0
    if module.weight is not None:
        gamma2 = float(finite_values(f"{name}.weight", module.weight).square().mean())
    if module.bias is not None:
        offsets = finite_values(f"{name}.bias", module.bias)
        beta2, beta = float(offsets.square().mean()), significant_mean(offsets)
    trained = names_of_trained(gamma=module.weight, beta=module.bias)
    kind = type(module).__name__
    options: dict[str, Any] = {}
    if isinstance(module, SAMPLE):
        options = {"divide": "sample"}
        if not isinstance(module, nn.LayerNorm) and getattr(module, "num_groups", 0) != 1:
            note(f"{name} ({kind}) is taken for a LayerNorm.")
    elif isinstance(module, MeanOnlyBatchNorm):
        options = {"divide": None}
    elif isinstance(module, VarianceOnlyBatchNorm):
        options = {"centre": False}
    elif isinstance(module, LpNorm) and module.p == 2:
        options = {"divide": "square"}
    elif isinstance(module, GhostBatchNorm | NoisyBatchNorm | LpNorm):
        note(f"{name} ({kind}) is taken for a BatchNorm of the whole batch.")
    elif isinstance(module, _torch.BATCH_NORMS) and type(module).forward not in _PLAIN_FORWARDS:
        note(f"{name} ({kind}) is taken for plain BatchNorm; what else its forward does is left out.")
    return Normalize(name, gamma2, beta2, beta, eps=module.eps, frozen=frozen, parameters=trained, **options)
