"""The probes that the doctor calls."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from trimtab.doctor.schedule import Level
from trimtab.probes import Activations, BatchNoise, Conditioning, Landscape, Spectrum
from trimtab.probes.result import LossFunction, Probe, Result

NEAR = 0.1
"""How far off λ_max may be where it serves a note that asks for a factor of two: half of the products do then."""


def probe_model(
    name: str, model: nn.Module, optimizer: Optimizer, loss_fn: LossFunction, batch: Any, level: Level
) -> Result:
    """The result of a probe; one that fails has a problem."""
    probe = _probe(name, optimizer, level)
    try:
        found: Result = probe(model, loss_fn, batch)
    except Exception as error:
        return probe.result(problem=f"{type(error).__name__}: {error}")
    return found


def _probe(name: str, optimizer: Optimizer, level: Level) -> Probe[Any]:
    if name == "landscape":
        return Landscape(optimizer=optimizer)
    if name == "spectrum":
        return Spectrum(optimizer=optimizer, tolerance=1e-2 if level == "full" else NEAR)
    if name == "noise":
        return BatchNoise(draws=200, gradient_only=level != "full")  # notes are of the gradient's alone
    return Conditioning() if name == "conditioning" else Activations()
