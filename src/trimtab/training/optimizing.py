"""An optimizer in two forms: as torch makes it, and one whose step can be replayed as part of a CUDA graph.

In the second form the learning rate and Adam's count of steps are on the device, where a replay reads them as they are
then. The fused kernels are the ones that can: torch's other ones ask the device for SGD's learning rate, which a graph
does not allow. A state that was saved is in the first form and fits both.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_PLAIN = {"fused": None, "capturable": False}
_CAPTURABLE = {"fused": True, "capturable": True}


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all groups, on the device where it is there; nothing waits for that."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def make_capturable(optimizer: Optimizer, device: torch.device) -> None:
    """Put SGD, Adam or AdamW with parameters on this device into the form that can be replayed."""
    for group in optimizer.param_groups:
        group.update({name: value for name, value in _CAPTURABLE.items() if name in group})
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if name == "step":
                state[name] = value.to(device, torch.float32)
            elif isinstance(value, Tensor):
                state[name] = _laid_out_as(parameter, value)
    if _lay_out_gradients not in optimizer._optimizer_step_pre_hooks.values():
        optimizer.register_step_pre_hook(_lay_out_gradients)
    # Steps before the capture are meant; Adam would warn of them.
    optimizer._warned_capturable_if_run_uncaptured = True


def portable_state(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state as one in torch's usual form has it."""
    state = optimizer.state_dict()
    groups = []
    for group in state["param_groups"]:
        plain = {name: value for name, value in _PLAIN.items() if name in group}
        groups.append({**group, **plain, "lr": float(group["lr"])})
    return {**state, "param_groups": groups}


def load_state(optimizer: Optimizer, state: Mapping[str, Any], capturable_on: torch.device | None) -> None:
    """Take up a portable state, in the usual form or in that for capturing on a device."""
    optimizer.load_state_dict(dict(state))
    if capturable_on is not None:
        make_capturable(optimizer, capturable_on)
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
