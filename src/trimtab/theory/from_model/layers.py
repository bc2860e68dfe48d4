"""Layers with parameters as mean-field operations: what is read off weights, biases, γ and β."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from trimtab.norms import LpNorm, MeanOnlyBatchNorm, NoisyBatchNorm, VarianceOnlyBatchNorm
from trimtab.norms.ghost import GhostBatchNorm
from trimtab.theory.from_model.parameters import finite_values, significant_mean
from trimtab.theory.mean_field.operations import Affine, Normalize
from trimtab.theory.mean_field.positions import Window

Note = Callable[[str, str, str], None]
"""Called for each property of a layer that the operation does not have, with its name and what follows the name: of one
layer, and of several."""


def gain(name: str, values: Tensor | None, layer: nn.Module | None, note: Note) -> float:
    """The square of the factor between a trained parameter and what is used of it; 0 if nothing is trained.

    Args:
        name: The name of the parameter.
        values: What is used, with its graph of gradients.
        layer: The module whose own parameter of that last name it is, if it is one.
        note: Called if it is not the parameter times a number: a gradient of 1 is taken then.
    """
    if values is None or not values.requires_grad:
        return 0.0
    computed = layer is not None and is_parametrized(layer, name.rpartition(".")[2])
    if not computed and values.is_leaf:
        return 1.0
    leaves = _leaves(values)
    if not computed and len(leaves) == 1 and leaves[0].numel() == values.numel():
        (slope,) = torch.autograd.grad(values.sum(), leaves[0], retain_graph=True)
        factor = slope.flatten()[0]
        norms = values.square().sum(), (factor * leaves[0]).square().sum()  # the same after any change of shape
        if torch.equal(slope, factor.expand_as(slope)) and torch.allclose(*norms):
            return float(factor) ** 2
    note(
        name,
        " is computed from other parameters; the gradient is taken as the weight's own.",
        " are computed from other parameters; the gradients are taken as the weights' own.",
    )
    return 1.0


def _leaves(values: Tensor) -> list[Tensor]:
    """The parameters that a tensor is computed from."""
    found: dict[int, Tensor] = {}
    seen, nodes = set(), [values.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            found[id(variable)] = variable
        nodes += [below for below, _ in node.next_functions]
    return list(found.values())


def affine(
    name: str, weight: Tensor, bias: Tensor | None, window: Window, note: Note, layer: nn.Module | None = None
) -> Affine:
    """A linear layer or a convolution, with the variances of its weights and biases.

    Raises:
        ValueError: If a parameter is empty or not finite.
    """
    weights = finite_values(f"{name}.weight", weight)
    gains = gain(f"{name}.weight", weight, layer, note), gain(f"{name}.bias", bias, layer, note)
    if mean := significant_mean(weights):
        text = f"a mean of {mean:.3g}, which mean field takes for 0; measure it instead."
        note(f"{name}.weight", f" has {text}", f" have {text}")
    fan_in = weights[0].numel()
    sigma_b2, offset = 0.0, 0.0
    if bias is not None:
        offsets = finite_values(f"{name}.bias", bias)
        sigma_b2, offset = float(offsets.square().mean()), significant_mean(offsets)
    trained = tuple(which for which, square in zip(("weight", "bias"), gains, strict=True) if square)
    sigma_w2 = float(weights.square().mean()) * fan_in
    return Affine(name, len(weights), fan_in, sigma_w2, sigma_b2, window, trained, offset, gains)


def normalization(
    name: str,
    gamma: Tensor | None,
    beta: Tensor | None,
    *,
    eps: float,
    frozen: bool,
    divide: Literal["batch", "sample", "position", "square"] | None = "batch",
    centre: bool = True,
    own: bool = False,
    group: int | None = None,
) -> Normalize:
    """A normalization, with the mean squares of its γ and β; see `Normalize` for the other arguments.

    Raises:
        ValueError: If a parameter is empty or not finite.
    """
    gamma2, beta2, offset = 1.0, 0.0, 0.0
    if gamma is not None:
        gamma2 = float(finite_values(f"{name}.weight", gamma).square().mean())
    if beta is not None:
        offsets = finite_values(f"{name}.bias", beta)
        beta2, offset = float(offsets.square().mean()), significant_mean(offsets)
    trained = tuple(which for which, p in (("gamma", gamma), ("beta", beta)) if p is not None and p.requires_grad)
    return Normalize(name, gamma2, beta2, offset, eps, centre, divide, frozen, trained, own, group)


def of_batch(name: str, module: nn.Module, note: Note) -> dict[str, Any]:
    """Which statistics a normalization over samples uses, as arguments of `normalization`."""
    if isinstance(module, MeanOnlyBatchNorm):
        return {"divide": None}
    if isinstance(module, VarianceOnlyBatchNorm):
        return {"centre": False}
    if isinstance(module, LpNorm) and module.p == 2:
        return {"divide": "square"}
    if isinstance(module, GhostBatchNorm | NoisyBatchNorm | LpNorm):
        kind = type(module).__name__
        whole = "taken for BatchNorm of the whole batch."
        note(name, f" ({kind}) is {whole}", f" ({kind}) are {whole}")
    return {}
