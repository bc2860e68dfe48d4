"""The results of a probe along a run, as arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.report.curves import Numbers
from trimtab.report.report_data import Curve
from trimtab.report.styles import Style

Table = tuple[list[str], list[list[object]]]
"""Header and rows."""


@dataclass(frozen=True, slots=True)
class ProbeSeries:
    """One probe's results along one run.

    Attributes:
        label: The label of the run's curve.
        style: How it is drawn.
        steps: At which steps was measured.
        results: The result at each of these steps; those with a problem are left out.
    """

    label: str
    style: Style
    steps: Numbers
    results: tuple[Mapping[str, Any], ...]

    def values(self, name: str) -> Numbers:
        """A number of the whole network, one value for each step."""
        return np.array([number(result.get(name)) for result in self.results])

    def rows(self, name: str) -> Numbers:
        """A list of numbers of the whole network, one row for each step."""
        return np.array([[number(x) for x in result[name]] for result in self.results])

    def layer_names(self) -> list[str]:
        """The layers that all results have, in order."""
        names = [by_layer(result) for result in self.results]
        return [name for name in names[0] if all(name in others for others in names)]

    def layer_values(self, index: int, name: str) -> Numbers:
        """A number of one layer, one value for each step."""
        layer = self.layer_names()[index]
        return np.array([number(by_layer(result)[layer].get(name)) for result in self.results])

    def note(self, index: int | None = None) -> str:
        """Why something could not be measured: of one layer, or of the whole network; empty if nothing is said."""
        for result in self.results:
            if index is None:
                source = result
            elif index < len(self.layer_names()):
                source = by_layer(result)[self.layer_names()[index]]
            else:
                return ""
            if source.get("note"):
                return str(source["note"])
        return ""

    def histograms(self, index: int) -> list[tuple[Numbers, Numbers, int]]:
        """Edges and counts of an example activation of one layer in each result, and how many values there were."""
        layer = self.layer_names()[index]
        examples = [_example(by_layer(result)[layer]) for result in self.results]
        return [
            (
                np.linspace(number(one["low"]), number(one["high"]), len(one["counts"]) + 1),
                np.array(one["counts"], dtype=float),
                int(one["values"]),
            )
            for one in examples
        ]

    def changes(self) -> "ProbeSeries":
        """Changes of an example activation's mean and variance, from one step to the next where both were measured."""
        steps, changes = [], []
        for here in range(len(self.steps) - 1):
            if self.steps[here + 1] == self.steps[here] + 1:
                before, after = by_layer(self.results[here]), by_layer(self.results[here + 1])
                steps.append(self.steps[here])
                changes.append({name: _change(before[name], after[name]) for name in before if name in after})
        return ProbeSeries(self.label, self.style, np.array(steps), tuple({"layers": one} for one in changes))


def probe_series(curve: Curve, probe: str, style: Style) -> ProbeSeries | None:
    """The results in the first of a curve's runs that has any: means over seeds would hide what single steps do."""
    for run in curve.runs:
        events = [event for event in run.probed if event.probe == probe and not event.result.get("problem")]
        if events:
            steps = np.array([event.step for event in events], dtype=float)
            return ProbeSeries(curve.label, style, steps, tuple(event.result for event in events))
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
