"""What the callbacks that run probes have in common."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from inspect import getmembers
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from trimtab.probes import Monitor
from trimtab.probes.result import Probe, Result

Probes = Iterable[Probe[Any]] | Callable[[Optimizer], Iterable[Probe[Any]]]
"""Probes, or a function that makes them for the optimizer of the training."""


class MonitorFactory:
    """Makes the monitor of a training when its optimizer is there.

    Args:
        probes: Probes, or a function that makes them for an optimizer.
        every: As in `Monitor`.
        at: As in `Monitor`.
        log: As in `Monitor`.

    Raises:
        ValueError: If one of these is something else.
    """

    def __init__(self, probes: Probes, every: int, at: Collection[int], log: str | Path | None) -> None:
        self._probes, self._every, self._at, self._log = probes, every, at, log
        Monitor(() if callable(probes) else probes, every=every, at=at)  # what is wrong is said now

    def __call__(self, optimizer: Optimizer, write: bool) -> Monitor:
        """The monitor of a training with this optimizer, which writes to the file of records or does not."""
        probes = self._probes(optimizer) if callable(self._probes) else self._probes
        return Monitor(probes, every=self._every, at=self._at, log=self._log if write else None)


def scalars(found: dict[str, Result]) -> dict[str, float]:
    """The finite numbers in the results of probes, as `probe/name`; not those in lists, of layers or of points.

    Yes and no are 1 and 0, such as `landscape/smoothness_at_edge`. A result with a problem has no numbers.
    """
    numbers: dict[str, float] = {}
    for probe, result in found.items():
        if result.problem is not None:
            continue
        computed = [name for name, _ in getmembers(type(result), lambda member: isinstance(member, property))]
        for name in [*(field.name for field in fields(result)), *computed]:
            value = getattr(result, name)
            if isinstance(value, int | float) and math.isfinite(value):
                numbers[f"{probe}/{name}"] = float(value)
    return numbers
