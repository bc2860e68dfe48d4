"""What a probe found along a run, as arrays."""

from collections.abc import Mapping, Sequence
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
        names = [by_layer(result) for result in self.results]
        return [name for name in names[0] if all(name in others for others in names)]

    def layer(self, place: int, name: str) -> Numbers:
        """A number of one layer in each result."""
        layer = self.layers()[place]
        return np.array([number(by_layer(result)[layer].get(name)) for result in self.results])

    def note(self, place: int | None = None) -> str:
        """Why something could not be measured: of one layer, or of the whole network; empty if nothing is said."""
        for result in self.results:
            if place is None:
                found = result
            elif place < len(self.layers()):
                found = by_layer(result)[self.layers()[place]]
            else:
                return ""
            if found.get("note"):
                return str(found["note"])
        return ""

    def histograms(self, place: int) -> list[tuple[Numbers, Numbers, int]]:
        """Edges and counts of an example activation of one layer in each result, and how many values there were."""
        layer = self.layers()[place]
        found = [_example(by_layer(result)[layer]) for result in self.results]
        return [
            (
                np.linspace(number(one["low"]), number(one["high"]), len(one["counts"]) + 1),
                np.array(one["counts"], dtype=float),
                int(one["values"]),
            )
            for one in found
        ]

    def changes(self) -> "Measured":
        """Changes of an example activation's mean and variance, from one step to the next where both were measured."""
        steps, found = [], []
        for here in range(len(self.steps) - 1):
            if self.steps[here + 1] == self.steps[here] + 1:
                before, after = by_layer(self.results[here]), by_layer(self.results[here + 1])
                steps.append(self.steps[here])
                found.append({name: _change(before[name], after[name]) for name in before if name in after})
        return Measured(self.label, self.look, np.array(steps), tuple({"layers": one} for one in found))


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


def by_layer(result: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What a result has of each layer, by the layer's name."""
    layers = result["layers"]
    return layers if isinstance(layers, Mapping) else {one["layer"]: one for one in layers}


def _example(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    examples: Sequence[Mapping[str, Any]] = layer["examples"]
    return examples[0] if examples else layer


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    one, other = _example(before), _example(after)
    return {name: abs(number(other[name]) - number(one[name])) for name in ("mean", "variance")}
