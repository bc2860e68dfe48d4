"""The parts of a model and of its optimizer that a look is about."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import _torch
from trimtab.bnp.layers import layer_type


def weighted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Layers whose own weight is trained: dense ones and convolutions."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        weight = _torch.parameters_of(module).get("weight")
        if weight is not None and weight.requires_grad and layer_type(module) is not None:
            found[name] = module
    return found


def compiled_layers(model: nn.Module) -> set[nn.Module]:
    """All that is within a compiled module, or was called by compiled code: a hook would have that compiled anew."""
    within = {each for module in model.modules() if _torch.is_compiled(module) for each in module.modules()}
    called = {m for m in model.modules() if any(map(_torch.was_compiled, _torch.parameters_of(m).values()))}
    return within | called


def running_norms(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers that normalize by the batch and move running averages by a share of it."""
    for name, module in model.named_modules():
        # Modules take long to say that they have no such attribute.
        has_share = "momentum" in vars(module) or hasattr(type(module), "momentum")
        share = module.momentum if has_share else None
        if not (isinstance(share, float) and share > 0 and module.training):
            continue
        if all(isinstance(getattr(module, name, None), Tensor) for name in ("running_mean", "num_batches_tracked")):
            yield name, module


def held_by(optimizer: Optimizer) -> set[int]:
    """The parameters that an optimizer moves, by identity."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def option(group: Mapping[str, Any], name: str) -> float:
    """A number of one of an optimizer's groups; 0 if it is not there, or None: some optimizers choose their rate."""
    value = group.get(name)
    return 0.0 if value is None else float(value)


def largest_option(optimizer: Optimizer, name: str) -> float:
    """The largest of the groups."""
    return max((option(group, name) for group in optimizer.param_groups), default=0.0)
