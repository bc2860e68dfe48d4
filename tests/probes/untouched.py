"""What a probe must leave as it was, all of it, bit by bit."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import trimtab


def everything(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, bnp: trimtab.BNP | None = None) -> Any:
    """A deep copy of all state, and the identities of what must not be replaced."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "parameters": [(name, p.detach().clone(), p.requires_grad, id(p)) for name, p in model.named_parameters()],
        "versions": [p._version for p in model.parameters()],
        "gradients": [None if p.grad is None else (p.grad.clone(), id(p.grad)) for p in model.parameters()],
        "buffers": [(name, b.clone(), id(b)) for name, b in model.named_buffers()],
        "modes": [module.training for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [[list(getattr(module, name).items()) for name in hooks] for module in model.modules()],
        "optimizer": None if optimizer is None else copy.deepcopy(optimizer.state_dict()),
        "bnp": None if bnp is None else copy.deepcopy(bnp.state_dict()),
        "random": (random.getstate(), np.random.get_state(), torch.get_rng_state().clone()),
        "grad mode": torch.is_grad_enabled(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@contextmanager
def untouched(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, bnp: trimtab.BNP | None = None
) -> Iterator[None]:
    """Whatever happens within, nothing may have changed after it."""
    before = everything(model, optimizer, bnp)
    yield
    after = everything(model, optimizer, bnp)
    for part in before:
        assert same(before[part], after[part]), f"{part} changed"
