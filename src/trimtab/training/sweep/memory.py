"""How many networks fit into one stack."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from trimtab.records import memory
from trimtab.training.settings import Settings

SHARE = 0.6
"""Of the free memory that a stack may take."""
MOST = {"cpu": 64, "cuda": 256}
"""More networks in a stack are no faster, and their checkpoints are larger."""


def networks_at_once(
    model: nn.Module, settings: Settings, input_shape: Sequence[int], batch_size: int, device: torch.device
) -> int:
    """How many networks like this one can be trained at once.

    Raises:
        ValueError: If not even one can.
    """
    free, each = free_memory(device), bytes_per_network(model, settings, input_shape, batch_size)
    if free * SHARE < each:
        raise ValueError(
            f"a network takes about {each / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free; take a smaller "
            "batch size or network, or end other programs"
        )
    return max(1, min(int(free * SHARE / each), MOST[device.type]))


def bytes_per_network(model: nn.Module, settings: Settings, input_shape: Sequence[int], batch_size: int) -> int:
    """Bytes of a network in training: parameters, gradients, what the optimizer keeps, activations, and a margin.

    The activations are counted in a forward pass of two samples, in evaluation mode.
    """
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    kept = 2 if settings.optimizer != "sgd" else 1
    activations = 0

    def count(module: nn.Module, args: object, output: object) -> None:
        nonlocal activations
        if isinstance(output, Tensor) and not list(module.children()):
            activations += output.numel() * output.element_size()

    handles = [module.register_forward_hook(count) for module in model.modules()]
    example = torch.zeros(2, *input_shape, dtype=next(model.parameters()).dtype)
    try:
        with torch.no_grad():
            model.eval()(example)
    finally:
        model.train()
        for handle in handles:
            handle.remove()
    # Value, gradient, preconditioned or decayed gradient, and the stack's own copy while networks are taken out.
    weights = parameters * (4 + kept)
    # Output and gradient of each layer, what a norm keeps, and the inputs with their copy for a CUDA graph.
    samples = batch_size * (3 * activations // 2 + 2 * example[0].numel() * example.element_size())
    return weights + samples


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):  # not known on this system
        available = memory()
    return min(available, _group_limit())


def _group_limit() -> int:
    """The memory that a container may still take; very much where there is none."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        return max(int(limit) - int(used), 0)
    except (OSError, ValueError):  # none, or "max"
        return 1 << 62
