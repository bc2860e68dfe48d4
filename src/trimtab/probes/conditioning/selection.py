"""Which layers, units and rows of a model are measured, and which layers cannot be."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trimtab import _torch
from trimtab.bnp.layers import LayerType, layer_type
from trimtab.bnp.options import Options
from trimtab.bnp.rows.supported import Owners, owners_of_parameters, why_unsupported
from trimtab.probes.conditioning.patches import can_unfold, groups_of, outputs_of


class NotMeasurable(Exception):  # noqa: N818
    """A layer that cannot be measured, with the reason."""


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
    owners = owners_of_parameters(model.named_modules())
    measurable_layers: dict[str, nn.Module] = {}
    left_out: dict[str, str] = {}
    for name in only or known:
        try:
            _check(name, known[name], owners, options)
            measurable_layers[name] = known[name]
        except NotMeasurable as reason:
            left_out[name] = str(reason)
    return measurable_layers, left_out


def _check(name: str, layer: nn.Module, owners: Owners, options: Options) -> None:
    """Raise if the layer cannot be measured."""
    if not can_unfold(layer):
        raise NotMeasurable(f"the rows of {type(layer).__name__} are not known")
    if (reason := why_unsupported(name, layer, owners)) is not None:
        raise NotMeasurable(reason)
    weight = _torch.parameters_of(layer).get("weight")
    if weight is None or not weight.requires_grad:
        raise NotMeasurable("its weight is frozen")
    if options.spatial not in kind_of(layer).spatial:
        raise NotMeasurable(f"spatial={options.spatial!r} is not defined for {type(layer).__name__}")


def kind_of(layer: nn.Module) -> LayerType:
    """What BNP knows of the type of a layer that it is for."""
    kind = layer_type(layer)
    assert kind is not None
    return kind


def spread_units(layer: nn.Module, limit: int) -> dict[int, list[int]]:
    """At most `limit` output units, spread evenly from the first one on, by the number of their group."""
    outputs, groups = outputs_of(layer), groups_of(layer)
    units: dict[int, list[int]] = {}
    for unit in sorted({index * outputs // limit for index in range(limit)}):
        units.setdefault(unit * groups // outputs, []).append(unit)
    return units


def draw_rows(count: int, limit: int, seed: int) -> Tensor:
    """The numbers of all rows, or of `limit` of them that are drawn at random, at least of one."""
    if count <= limit:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[: max(limit, 1)].sort().values
