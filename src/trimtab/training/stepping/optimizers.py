"""The optimizer of a run, in two forms: as torch makes it, and one whose step a CUDA graph can replay.

In the second form the learning rate and Adam's count of steps are tensors on the device, which a replay reads as they
are then. The fused kernels can do that; torch's other kernels ask the device for SGD's learning rate, which a graph
does not allow. A saved state is always in the first form and can be loaded into both.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab._torch import expect_steps_outside_capture
from trimtab.training.settings import Settings, resolved

_PLAIN = {"fused": None, "capturable": False}
_CAPTURABLE = {"fused": True, "capturable": True}


def build_optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    """The optimizer of some settings, in the first form."""
    lr = resolved(settings.lr)
    decayed, others = split_by_decay(model, resolved(settings.decay_on))
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": resolved(settings.weight_decay)}]
    if others:
        groups.append({"params": others, "weight_decay": 0.0})
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=lr)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr)
    return torch.optim.SGD(groups, lr=lr, momentum=resolved(settings.momentum), nesterov=resolved(settings.nesterov))


def split_by_decay(model: nn.Module, decay_on: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that the weight decay is for, and the others.

    Args:
        model: Whose parameters.
        decay_on: `weights` are those of dense layers and convolutions (under weight norm, the directions), and γ and β
            of layers that want it; `norms` are γ and β of all normalization layers; `all` are all parameters.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for module in model.modules():
        layer = isinstance(module, nn.Linear | nn.Conv2d)
        for name, parameter in module.named_parameters(recurse=False):
            weight = (layer and name == "weight") or name == "original1"
            norm = not layer and name in ("weight", "bias")
            wanted = norm and getattr(module, "decay_gamma_beta", False)
            has_decay = (
                decay_on == "all" or (decay_on == "weights" and (weight or wanted)) or (decay_on == "norms" and norm)
            )
            (decayed if has_decay else others).append(parameter)
    return decayed, others


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all groups, on the device where it is there; nothing waits for that."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def make_capturable(optimizer: Optimizer, device: torch.device) -> None:
    """Put SGD, Adam or AdamW with parameters on this device into the second form, once and for all."""
    optimizer.register_step_pre_hook(_lay_out_gradients)
    expect_steps_outside_capture(optimizer)
    _move_to_device(optimizer, device)


def _move_to_device(optimizer: Optimizer, device: torch.device) -> None:
    for group in optimizer.param_groups:
        group.update({name: value for name, value in _CAPTURABLE.items() if name in group})
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if name == "step":
                state[name] = value.to(device, torch.float32)
            elif isinstance(value, Tensor):
                state[name] = _laid_out_as(parameter, value)


def portable_state(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state as an optimizer in the first form has it."""
    state = optimizer.state_dict()
    groups = []
    for group in state["param_groups"]:
        plain = {name: value for name, value in _PLAIN.items() if name in group}
        groups.append({**group, **plain, "lr": float(group["lr"])})
    return {**state, "param_groups": groups}


def load_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load a portable state; the optimizer keeps the form that it has."""
    rate = optimizer.param_groups[0]["lr"]
    optimizer.load_state_dict(dict(state))
    if isinstance(rate, Tensor):
        _move_to_device(optimizer, rate.device)
        return
    for own in optimizer.state.values():
        if "step" in own:  # torch leaves it on the device that it was loaded to, where each step would wait for it
            own["step"] = own["step"].cpu()


def _lay_out_gradients(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step: a gradient must have the strides of its parameter, as the fused kernels want it.

    Those of a dimension of size 1, as 1×1 convolutions have, are up to whoever computes it.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = _laid_out_as(parameter, parameter.grad)


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    if value.stride() == parameter.stride() or value.shape != parameter.shape:
        return value
    return torch.empty_strided(parameter.shape, parameter.stride(), dtype=value.dtype, device=value.device).copy_(value)
