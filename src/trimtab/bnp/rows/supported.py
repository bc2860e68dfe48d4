"""Which layers BNP can precondition, as far as that is seen before they run."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from trimtab import _torch

Owners = Mapping[int, Collection[str]]
"""By the identity of a parameter, the names of the modules that have it."""


def owners_of_parameters(modules: Iterable[tuple[str, nn.Module]]) -> Owners:
    """Which of these modules have which parameters."""
    owners: dict[int, set[str]] = {}
    for name, module in modules:
        for parameter in _torch.parameters_of(module).values():
            if parameter is not None:
                owners.setdefault(id(parameter), set()).add(name)
    return owners


def why_unsupported(name: str, module: nn.Module, owners: Owners) -> str | None:
    """Why a layer as it is built cannot be preconditioned, in a few words; None if it can."""
    parameters = _torch.parameters_of(module)
    weight = parameters.get("weight")
    for attribute in ("weight", "bias"):
        # Asking for the attribute would compute it, and spectral norm's computation leaves a trace.
        if is_parametrized(module, attribute) or attribute in module.__dict__:
            return f"its {attribute} is computed from other parameters"
    if not isinstance(weight, nn.Parameter):
        return "it has no weight"
    for attribute in ("weight", "bias"):
        others = shares_with(name, module, owners, attribute)
        if others:
            return f"it shares parameters with {', '.join(map(repr, others))}"
    if not weight.is_floating_point():
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}"
    if not isinstance(weight, nn.UninitializedParameter) and weight.numel() == 0:
        return "its weight is empty"
    return None


def refuse_flattened(model: nn.Module) -> None:
    """Refuse the first kind of FSDP; what is not imported is not in the model.

    Raises:
        ValueError: If it is in the model.
    """
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    if kind is not None and any(isinstance(module, kind) for module in model.modules()):
        raise ValueError(
            "BNP cannot precondition a model in FullyShardedDataParallel, which cuts weights at any place; shard it "
            "with torch.distributed.fsdp.fully_shard instead."
        )


def shares_with(name: str, module: nn.Module, owners: Owners, *attributes: str) -> tuple[str, ...]:
    """The names of the other modules that have one of these parameters of a module."""
    parameters = _torch.parameters_of(module)
    others = {other for each in attributes for other in owners.get(id(parameters.get(each)), ())} - {name}
    return tuple(sorted(others))


def clean_names(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules with their names, without the names that wrappers put in between.

    `_orig_mod` is torch.compile's; `module` is that of DistributedDataParallel, DataParallel and
    AveragedModel, told from a user's own `module` by being its parent's only content.
    """
    modules = dict(model.named_modules())
    cleaned = {"": ""}
    for name, module in modules.items():
        if name:
            parent, _, own = name.rpartition(".")
            prefix = cleaned[parent]
            hidden = own == "_orig_mod" or (own == "module" and _only_wraps(modules[parent]))
            cleaned[name] = prefix if hidden else f"{prefix}.{own}".lstrip(".")
        yield cleaned[name], module


def _only_wraps(parent: nn.Module) -> bool:
    return list(_torch.children_of(parent)) == ["module"] and not _torch.parameters_of(parent)


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern names the layer or a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def skip_patterns(skip: str | Iterable[str]) -> tuple[str, ...]:
    """The option `skip` as patterns.

    Raises:
        TypeError: If it is not made of names.
    """
    names = (skip,) if isinstance(skip, str) else tuple(skip) if isinstance(skip, Iterable) else (skip,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"skip must be the name of a layer or a list of names, not {skip!r}.")
    return names
