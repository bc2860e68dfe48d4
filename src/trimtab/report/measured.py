"""What a probe found along a run, as arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.report.curves import Numbers
from trimtab.report.material import Curve
from trimtab.report.styles import Style


@dataclass(frozen=True, slots=True)
class Measured:
    """One probe's results along one run.

    Attributes:
        label: Of the run's curve.
        look: How it is drawn.
        steps: When.
        results: What; those that had a problem are left out.
    """

    label: str
    look: Style
    steps: Numbers
    results: tuple[Mapping[str, Any], ...]

    def of(self, name: str) -> Numbers:
        """A number of each result."""
        return np.array([number(result.get(name)) for result in self.results])

    def rows(self, name: str) -> Numbers:
        """A list of numbers of each result, one below the other."""
        return np.array([[number(x) for x in result[name]] for result in self.results])

    def layers(self) -> list[str]:
        """The layers that all results have, in order."""
        names = [[layer["name"] for layer in result["layers"]] for result in self.results]
        return [name for name in names[0] if all(name in others for others in names)]

    def layer(self, layer: str, name: str) -> Numbers:
        """A number of one layer in each result."""
        return np.array([number(one.get(name)) for one in self._layer(layer)])

    def histograms(self, layer: str) -> list[tuple[Numbers, Numbers]]:
        """Edges and counts of one layer in each result."""
        return [(np.asarray(one["edges"], dtype=float), np.asarray(one["counts"])) for one in self._layer(layer)]

    def _layer(self, layer: str) -> list[Mapping[str, Any]]:
        return [next(one for one in result["layers"] if one["name"] == layer) for result in self.results]


def measured(curve: Curve, probe: str, look: Style) -> Measured | None:
    """Of the first of a curve's runs that has any: means over seeds would hide what single steps do."""
    for run in curve.runs:
        events = [event for event in run.probed if event.probe == probe and not event.result.get("problem")]
        if events:
            steps = np.array([event.step for event in events], dtype=float)
            return Measured(curve.label, look, steps, tuple(event.result for event in events))
    return None


def number(value: object) -> float:
    """NaN for what is none."""
    return float(value) if isinstance(value, int | float) else float("nan")
