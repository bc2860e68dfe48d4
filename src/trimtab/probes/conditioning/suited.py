"""Which layers, units and rows of a model are measured, and which layers cannot be."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from trimtab import _torch
from trimtab.bnp.layers import LayerType, layer_type
from trimtab.bnp.options import Options
from trimtab.probes.conditioning.patches import can_unfold, groups_of, outputs_of


class Unsuited(Exception):  # noqa: N818
    """A layer cannot be measured; the words say why."""


def measurable(model: nn.Module, only: Sequence[str], options: Options) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The layers that BNP is for and that can be measured, and those that cannot be, with the reason.

    Args:
        model: The model.
        only: Names of layers to take; all if empty.
        options: BNP's.

    Raises:
        ValueError: If there is no layer of a name.
    """
    known = {name: module for name, module in model.named_modules() if layer_type(module) is not None}
    for name in only:
        if name not in known:
            raise ValueError(f"only: no layer is called {name!r}; the layers are {', '.join(map(repr, known))}.")
    owners: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        for _, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(id(parameter), set()).add(name)
    suited: dict[str, nn.Module] = {}
    left_out: dict[str, str] = {}
    for name in only or known:
        try:
            _check(name, known[name], owners, options)
            suited[name] = known[name]
        except Unsuited as reason:
            left_out[name] = str(reason)
    return suited, left_out


def _check(name: str, layer: nn.Module, owners: dict[int, set[str]], options: Options) -> None:
    """Raise if the layer cannot be measured."""
    for each in ("weight", "bias"):
        if is_parametrized(layer, each) or each in layer.__dict__:
            raise Unsuited(f"its {each} is computed from other parameters")
    weight = _torch.own_parameter(layer, "weight")
    if not can_unfold(layer):
        raise Unsuited(f"the rows of {type(layer).__name__} are not known")
    if weight is None or not weight.requires_grad:
        raise Unsuited("its weight is frozen")
    for parameter in (weight, _torch.own_parameter(layer, "bias")):
        if others := owners.get(id(parameter), set()) - {name}:
            raise Unsuited(f"it shares parameters with {', '.join(map(repr, sorted(others)))}")
    if not weight.numel():
        raise Unsuited("its weight is empty")
    if options.spatial not in kind_of(layer).spatial:
        raise Unsuited(f"spatial={options.spatial!r} is not defined for {type(layer).__name__}")


def kind_of(layer: nn.Module) -> LayerType:
    """What BNP knows of the type of a layer that it is for."""
    kind = layer_type(layer)
    assert kind is not None
    return kind


def spread_units(layer: nn.Module, most: int) -> dict[int, list[int]]:
    """Units spread evenly, the first one among them, by their group."""
    outputs, groups = outputs_of(layer), groups_of(layer)
    found: dict[int, list[int]] = {}
    for unit in sorted({index * outputs // most for index in range(most)}):
        found.setdefault(unit * groups // outputs, []).append(unit)
    return found


def some(count: int, most: int, seed: int) -> Tensor:
    """All numbers below `count`, or at most so many of them, at least one."""
    if count <= most:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[: max(most, 1)].sort().values
