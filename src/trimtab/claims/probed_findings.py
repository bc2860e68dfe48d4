"""Enters what was measured along the runs of several methods and seeds, in the names that criteria use.

A case is a method, and `vanilla` is the network without normalization. "Least advantage" is what a criterion needs that
asks for a clear improvement in several places as one part: there the normalized case counts 1, and vanilla how many
times larger its number is at the place where that is least.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from trimtab.claims import probed_runs as measures
from trimtab.claims.findings import Findings
from trimtab.claims.training_runs import TrainedCase
from trimtab.records import History

Runs = Mapping[str, Mapping[int, History]]
"""By case and seed."""
Shared = Callable[[History, History], float]
"""A share that is computed from a run and that of vanilla."""
MOST_POINTS = 20
"""Of a line in a figure."""


def runs_of(trained: Mapping[str, TrainedCase]) -> Runs:
    """The runs of all cases that can be trained."""
    return {name: case.runs for name, case in trained.items() if not case.refused}


def pairs(runs: Runs, case: str, other: str = "vanilla") -> Iterable[tuple[int, History, History]]:
    """The runs of two cases that have a seed in common."""
    for seed in sorted(runs.get(case, {}).keys() & runs.get(other, {}).keys()):
        yield seed, runs[case][seed], runs[other][seed]


def enter_line(findings: Findings, runs: Runs, probe: str = "landscape", suffix: str = "") -> None:
    """Range, change and β along a line: over the whole run, in each third and in the first tenth."""
    parts = {"": measures.WHOLE, **{f", {name}": part for name, part in measures.THIRDS.items()}}
    parts[", first tenth"] = measures.FIRST_TENTH
    numbers = measures.LINE if suffix else {**measures.LINE, **measures.RELATIVE}
    for case, by_seed in runs.items():
        for seed, run in by_seed.items():
            for words, part in parts.items():
                for name, number in numbers.items():
                    value = measures.middle(run, probe, number, part)
                    findings.number(f"{name}{suffix}{words}", case, value, seed=seed, unit="factor")
                if not suffix:
                    value = measures.middle(run, probe, lambda result: float(result["gradient_norm"]), part)
                    findings.number(f"gradient norm{words}", case, value, seed=seed, unit="factor")


def enter_edges(findings: Findings, runs: Runs) -> None:
    """In how many measurements β is largest at an end of the range, which then decides it; and β at each multiple."""
    for case, by_seed in runs.items():
        by_multiple: dict[float, list[float]] = {}
        for seed, run in by_seed.items():
            share = measures.share_at_edge(run)
            if share == share:
                findings.number("share of measurements with β at an edge", case, share, seed=seed, unit="factor")
            for multiple, value in measures.at_multiples(run, "smoothness_by_multiple").items():
                by_multiple.setdefault(multiple, []).append(value)
        findings.curve("β by multiple of the step", case, _ranged(by_multiple))


def enter_least_advantage(
    findings: Findings, runs: Runs, measure: str, case: str, found: Callable[[History, History], float], label: str = ""
) -> None:
    """Enter by how much vanilla's number is larger at least, by a function of vanilla's run and the case's."""
    for seed, run, vanilla in pairs(runs, case):
        findings.number(measure, f"{label}{case}", 1.0, seed=seed, unit="factor")
        findings.number(measure, f"{label}vanilla", found(vanilla, run), seed=seed, unit="factor")


def least_of_thirds(name: str) -> Callable[[History, History], float]:
    """The least advantage in a measure of the line over the thirds of the run."""

    def found(vanilla: History, run: History) -> float:
        number = measures.LINE[name]
        return min(
            measures.advantage(*(measures.middle(each, "landscape", number, part) for each in (vanilla, run)))
            for part in measures.THIRDS.values()
        )

    return found


def least_of_multiples(near: bool, edge: float = 1.5) -> Callable[[History, History], float]:
    """The least advantage in the change of the gradient over the distances up to `edge` steps, or beyond."""

    def found(vanilla: History, run: History) -> float:
        left, right = (measures.at_multiples(each, "gradient_changes") for each in (vanilla, run))
        return min(measures.advantage(left[s], right[s]) for s in left.keys() & right.keys() if (s <= edge) == near)

    return found


def enter_share(findings: Findings, runs: Runs, measure: str, case: str, share: Shared) -> None:
    """Enter a share of the layers for which a case is to vanilla as a criterion says."""
    for seed, run, vanilla in pairs(runs, case):
        value = share(run, vanilla)
        if value == value:
            findings.number(measure, case, value, seed=seed, unit="factor")


def both_stabilities(met: Callable[[float, float], bool]) -> Shared:
    """For which share of the layers a statement on both stabilities is true, the case's and vanilla's."""

    def share(run: History, vanilla: History) -> float:
        mean, variance = measures.stability(run)
        other_mean, other_variance = measures.stability(vanilla)
        return measures.share_of_layers(
            lambda a, b, c, d: met(a, b) and met(c, d), mean, other_mean, variance, other_variance
        )

    return share


def enter_training(findings: Findings, runs: Runs, *, level: float = 70.0, early: float = 2000 / 15_000) -> None:
    """Accuracy on training data, at the end and early; steps to a level; loss at the end; and the curves.

    Args:
        findings: Where they are entered; `chance` is there already where the data have classes.
        runs: The runs.
        level: In points. Where a method does not get there it is what the slowest method reaches at the end.
        early: At which share of the steps "after 2,000 steps" is.
    """
    every = {case: {seed: measures.training_accuracy(run) for seed, run in each.items()} for case, each in runs.items()}
    trained = [
        points[-1][1]
        for case, each in every.items()
        for seed, points in each.items()
        if points and not measures.diverged(runs[case][seed])
    ]
    level = min([level, *trained])
    for case, by_seed in runs.items():
        for seed, run in by_seed.items():
            findings.number("final loss", case, measures.final_training_loss(run), seed=seed, unit="loss")
            points = every[case][seed]
            if findings.chance is None:
                continue
            ends, first, reached = findings.chance, findings.chance, float("inf")
            if points and not measures.diverged(run):
                ends, first = points[-1][1], measures.value_at(points, early * measures.steps_of(run))
                reached = measures.steps_to(points, level)
            findings.number("training accuracy", case, ends, seed=seed, unit="points")
            findings.number("training accuracy early", case, first, seed=seed, unit="points")
            findings.number("steps to the level", case, reached, seed=seed, unit="time")
    if findings.chance is not None and trained:
        findings.settings["level of training accuracy, in points"] = level
        for case, each in every.items():
            findings.curve("training accuracy", case, _by_step(each.values()))


def share_ahead(run: History, other: History) -> float:
    """At which share of the evaluations a run's training accuracy is above that of another; NaN without any."""
    left, right = (dict(measures.training_accuracy(each)) for each in (run, other))
    common = left.keys() & right.keys()
    return sum(left[step] > right[step] for step in common) / len(common) if common else float("nan")


def enter_band(findings: Findings, runs: Runs) -> None:
    """The lines of Fig. 4: loss, its least and largest along the gradient; largest change of the gradient; β."""
    for case, by_seed in runs.items():
        losses: dict[int, list[tuple[float, float, float]]] = {}
        for run in by_seed.values():
            for step, result in measures.results(run, "landscape"):
                losses.setdefault(step, []).append((result["loss"], *result["loss_range"]))
        points = [[step, *(median(each) for each in zip(*rows, strict=True))] for step, rows in sorted(losses.items())]
        findings.curve("loss along the gradient", case, thinned(points))
        for name in ("change", "β"):
            lines = [
                [(step, measures.LINE[name](result)) for step, result in measures.results(run, "landscape")]
                for run in by_seed.values()
            ]
            findings.curve(f"{name} along the gradient", case, _by_step(lines))


def enter_cosines(findings: Findings, runs: Runs) -> None:
    """The lines of Fig. 3: the cosine of each layer's gradients, median over the seeds."""
    for case, by_seed in runs.items():
        found: dict[int, dict[float, list[float]]] = {}
        for run in by_seed.values():
            for step, result in measures.results(run, "shift"):
                for layer in result["layers"]:
                    if layer["cosine"] == layer["cosine"]:
                        place = measures.layer_number(run, layer["layer"])
                        found.setdefault(place, {}).setdefault(step, []).append(layer["cosine"])
        for place, by_step in sorted(found.items()):
            findings.curve(f"cosine, layer {place + 1}", case, thinned([row[:2] for row in _ranged(by_step)]))


def thinned(points: Sequence[Sequence[float]], most: int = MOST_POINTS) -> list[Sequence[float]]:
    """So many of the points at most, evenly, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def _by_step(lines: Iterable[Iterable[tuple[int, float]]]) -> list[Sequence[float]]:
    found: dict[float, list[float]] = {}
    for line in lines:
        for step, value in line:
            found.setdefault(step, []).append(value)
    return thinned(_ranged(found))


def _ranged(found: Mapping[float, Sequence[float]]) -> list[Sequence[float]]:
    return [(x, median(values), min(values), max(values)) for x, values in sorted(found.items())]
