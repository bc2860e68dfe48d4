"""The results of a probe along runs, as arrays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trimtab.records import History
from trimtab.report.curves import Numbers
from trimtab.report.endings import ending, last_step
from trimtab.report.report_data import Curve
from trimtab.report.seeds import SeedLine, Spread, shared
from trimtab.report.styles import Style

Histogram = tuple[Numbers, Numbers, int]
"""Edges and counts of bins, and how many values there were."""
Table = tuple[list[str], list[list[object]]]
"""Header and rows."""


@dataclass(frozen=True, slots=True)
class RunResults:
    """One probe's results along one run.

    Attributes:
        seed: The run's seed.
        steps: At which steps was measured.
        results: The result at each of these steps; those with a problem are left out.
        ending: How the run ended.
        last_step: How far it came.
    """

    seed: str
    steps: Numbers
    results: tuple[Mapping[str, Any], ...]
    ending: str = "finished"
    last_step: int = 0

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

    def layer_values(self, layer: str, name: str) -> Numbers:
        """A number of one layer, one value for each step."""
        return np.array([number(by_layer(result)[layer].get(name)) for result in self.results])

    def note(self, layer: str | None = None) -> str:
        """Why something could not be measured: of one layer, or of the whole network; empty if nothing is said."""
        for result in self.results:
            source = result if layer is None else by_layer(result)[layer]
            if source.get("note"):
                return str(source["note"])
        return ""

    def quantiles(self, layer: str, share: float) -> Numbers:
        """A quantile of an example activation of one layer, one value for each step."""
        return np.array([_quantile(histogram, share) for histogram in self.histograms(layer)])

    def histograms(self, layer: str) -> list[Histogram]:
        """Edges and counts of an example activation of one layer in each result, and how many values there were."""
        examples = [_example(by_layer(result)[layer]) for result in self.results]
        return [
            (
                np.linspace(number(one["low"]), number(one["high"]), len(one["counts"]) + 1),
                np.array(one["counts"], dtype=float),
                int(one["values"]),
            )
            for one in examples
        ]

    def changes(self) -> "RunResults":
        """Changes of an example activation's mean and variance, from one step to the next where both were measured."""
        steps, changes = [], []
        for here in range(len(self.steps) - 1):
            if self.steps[here + 1] == self.steps[here] + 1:
                before, after = by_layer(self.results[here]), by_layer(self.results[here + 1])
                steps.append(self.steps[here])
                changes.append({name: _change(before[name], after[name]) for name in before if name in after})
        found = tuple({"layers": one} for one in changes)
        return RunResults(self.seed, np.array(steps), found, self.ending, self.last_step)


@dataclass(frozen=True, slots=True)
class ProbeSeries:
    """One probe's results along runs that differ in the seed only.

    Attributes:
        label: The label of their curve.
        style: How it is drawn.
        runs: The runs that have results, one for each seed.
        unmeasured: Which seeds have none although they were to be measured, and how they ended.
    """

    label: str
    style: Style
    runs: tuple[RunResults, ...]
    unmeasured: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether there are results of several seeds."""
        return len(self.runs) > 1

    @property
    def steps(self) -> Numbers:
        """At which steps all seeds were measured."""
        return shared([run.steps for run in self.runs])

    def spread(self, take: Callable[[RunResults], Numbers]) -> Spread:
        """Something that a run has for each of its steps, over the seeds."""
        return Spread(tuple(SeedLine(run.seed, run.steps, take(run), run.ending == "diverged") for run in self.runs))

    def values(self, name: str) -> Spread:
        """A number of the whole network."""
        return self.spread(lambda run: run.values(name))

    def layer_values(self, index: int, name: str) -> Spread:
        """A number of one layer."""
        layer = self.layer_names()[index]
        return self.spread(lambda run: run.layer_values(layer, name))

    def layer_names(self) -> list[str]:
        """The layers that all results of all runs have, in order."""
        first, *others = [run.layer_names() for run in self.runs]
        return [name for name in first if all(name in names for names in others)]

    def note(self, index: int | None = None) -> str:
        """Why something could not be measured: of one layer, or of the whole network; empty if nothing is said."""
        if index is not None and index >= len(self.layer_names()):
            return ""
        layer = None if index is None else self.layer_names()[index]
        return next(filter(None, (run.note(layer) for run in self.runs)), "")

    def mapped(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> "ProbeSeries":
        """The same runs with something else made of each result."""
        runs = tuple(replace(run, results=tuple(map(change, run.results))) for run in self.runs)
        return replace(self, runs=runs)

    def changes(self) -> "ProbeSeries | None":
        """Changes of activations, of the runs in which two steps were measured that follow each other."""
        changing = tuple(one for one in (run.changes() for run in self.runs) if len(one.steps))
        return ProbeSeries(self.label, self.style, changing, self.unmeasured) if changing else None


def probe_series(curve: Curve, probe: str, style: Style) -> ProbeSeries | None:
    """The results in the runs of a curve; None if no run has any."""
    found: list[RunResults] = []
    unmeasured: list[str] = []
    for run in curve.runs:
        seed = str(run.started.settings.get("seed"))
        events = {event.step: event for event in run.probed if event.probe == probe}
        usable = [event for _, event in sorted(events.items()) if not event.result.get("problem")]
        if usable:
            steps = np.array([event.step for event in usable], dtype=float)
            results = tuple(event.result for event in usable)
            found.append(RunResults(seed, steps, results, ending(run), last_step(run)))
        elif events or _wants(run, probe):
            unmeasured.append(f"seed {seed} ({ending(run)})")
    return ProbeSeries(curve.label, style, tuple(found), tuple(unmeasured)) if found else None


def _wants(run: History, probe: str) -> bool:
    wanted = run.started.settings.get("probe")
    return isinstance(wanted, Sequence) and (probe in wanted or "all" in wanted)


def any_several(runs: Sequence[ProbeSeries]) -> bool:
    """Whether there are results of several seeds: then lines, shades and tables are about seeds."""
    return any(one.several for one in runs)


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


def _quantile(histogram: Histogram, share: float) -> float:
    """As if values were evenly spread within a bin; NaN of a histogram without values."""
    edges, counts, _ = histogram
    total = counts.sum()
    return float(np.interp(share, np.concatenate([[0.0], np.cumsum(counts) / total]), edges)) if total else np.nan
