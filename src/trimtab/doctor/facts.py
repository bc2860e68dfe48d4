"""What is known of a training before its first step: facts that do not change, and validation batches to keep."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trimtab.bnp import bnps_attached_to
from trimtab.doctor.parts import largest_option, running_norms
from trimtab.doctor.record import Facts
from trimtab.probes.batches import on_device, samples_of
from trimtab.probes.isolation.random_state import RandomState
from trimtab.probes.surface import copied_batch
from trimtab.theory.from_model.known import BATCH, SAMPLE

VALIDATION_BATCHES = 4
"""So many batches of validation data are read, once, and kept."""


def facts_of(model: nn.Module, optimizer: Optimizer, batch: Any) -> Facts:
    """What does not change along a training, or is known from its first batch."""
    kinds = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
    return Facts(
        optimizer=type(optimizer).__name__,
        weight_decay=largest_option(optimizer, "weight_decay"),
        batch_size=samples_of(batch) or 0,
        batchnorms=tuple(name for name, _ in running_norms(model)),
        normalized=any(isinstance(module, (*BATCH, *SAMPLE)) for module in model.modules()),
        bnp=bool(bnps_attached_to(optimizer)),
        dtype=", ".join(sorted(kinds)),
    )


def kept_batches(model: nn.Module, validation: Iterable[Any]) -> list[Any]:
    """The first batches of a loader, which draws from its own or the training's generators when it begins."""
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    state = RandomState(model.modules(), devices, sources=[validation])
    try:
        device = next(model.parameters()).device  # a loop moves its batches there itself, a loader does not
        batches = [on_device(copied_batch(batch), device) for batch in islice(validation, VALIDATION_BATCHES)]
    finally:
        state.restore()
    if not batches:
        raise ValueError("validation has no batch; an iterator that was read before is at its end, a loader is not.")
    return batches
