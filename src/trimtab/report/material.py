"""What a report is made from: comparisons and runs, read and sorted into panels and curves."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.records import RESULTS, RUNS, Cell, Comparison, History, Metric, find_runs
from trimtab.report.curves import Line, Quantity, line
from trimtab.report.standing import rows
from trimtab.report.words import batch, heading, slug, title, typed

# In these, runs of one curve may differ: they decide what a run is called and what is written down, not the training.
IMMATERIAL = ("seed", "log_every", "evaluate_every", "evaluations", "probe", "probe_every", "probe_at")
PANEL = ("data", "network", "batch_size")


@dataclass(frozen=True, slots=True)
class Curve:
    """Runs that are alike but for the seed."""

    method: str
    label: str
    runs: tuple[History, ...]

    def line(self, quantity: Quantity, metric: Metric) -> Line:
        """Them as a line with a range."""
        return line(self.runs, quantity, metric)


@dataclass(frozen=True, slots=True)
class Panel:
    """What belongs into one figure.

    Attributes:
        name: For file names.
        title: For people.
        metric: What is measured on held-out data.
        curves: The runs.
        cells: Where they are of a comparison: its cells of this network and batch size.
    """

    name: str
    title: str
    metric: Metric
    curves: tuple[Curve, ...]
    cells: tuple[Cell, ...] = ()

    @property
    def part(self) -> str:
        """On which data the runs were evaluated."""
        parts = {run.evaluated[-1].part for curve in self.curves for run in curve.runs if run.evaluated}
        return " or ".join(sorted(parts)) or "test"


@dataclass(frozen=True, slots=True)
class Subject:
    """A comparison with its runs, or (without one) runs that belong to none.

    Attributes:
        name: What the names of its figures begin with; empty if it is the only one.
        comparison: Its results.
        panels: Its runs.
        folder: The name of its folder, if it is a comparison.
    """

    name: str
    comparison: Comparison | None
    panels: tuple[Panel, ...]
    folder: str = ""

    @property
    def curves(self) -> list[tuple[Panel, Curve]]:
        """All curves, each with its panel."""
        return [(panel, curve) for panel in self.panels for curve in panel.curves]


@dataclass(frozen=True, slots=True)
class Material:
    """All that is reported on, and a sentence for each record that cannot be read."""

    subjects: tuple[Subject, ...]
    problems: tuple[str, ...] = ()


def collect(folders: Iterable[Path]) -> Material:
    """Read comparisons and runs in and below these folders. Runs of a comparison are not listed once more.

    Raises:
        ValueError: If a folder is not there, or if there is nothing that can be read.
    """
    folders = list(folders)
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
    problems: list[str] = []
    compared: dict[Path, tuple[Path, Comparison]] = {}
    for path in (path for folder in folders for path in sorted(folder.rglob(RESULTS))):
        if path.parent.resolve() not in compared:
            try:
                compared[path.parent.resolve()] = path.parent, Comparison.read(path.parent)
            except ValueError as error:
                problems.append(_sentence(str(error)))
    loose = [run for run in find_runs(folders) if not compared.keys() & {*run.resolve().parents}]
    histories = _read(loose, "runs", problems)
    several = len(compared) + bool(histories) > 1
    subjects = []
    for number, (folder, comparison) in enumerate(compared.values(), start=1):
        name = f"{number}-{slug(folder.resolve().name)}-" if several else ""
        panels = _compared(folder, comparison, problems)
        subjects.append(Subject(name, comparison, panels, folder.resolve().name))
    if histories:
        subjects.append(Subject("runs-" if several else "", None, _loose(histories)))
    if not subjects:
        places = ", ".join(map(str, folders))
        raise ValueError(problems[0] if problems else f"there are no records of a comparison or a run in {places}")
    return Material(tuple(subjects), tuple(dict.fromkeys(problems)))


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _read(folders: Sequence[Path], what: str, problems: list[str]) -> list[History]:
    """The histories that can be read; of the others one sentence tells."""
    histories, failed = [], []
    for folder in folders:
        try:
            history = History.read(folder)
            if not all(name in history.started.settings for name in (*PANEL, "method")):
                raise ValueError(f"{folder} does not say which data, network, method and batch size it is about.")
            histories.append(history)
        except (ValueError, TypeError) as error:
            failed.append(_sentence(str(error)))
    if len(failed) == 1:
        problems.append(failed[0])
    elif failed:
        problems.append(f"{len(failed)} of {len(folders)} {what} cannot be read, the first because: {failed[0]}")
    return histories


def _compared(folder: Path, comparison: Comparison, problems: list[str]) -> tuple[Panel, ...]:
    names = [trial.run for cell in comparison.cells for trial in cell.trials]
    places = [folder / RUNS / name for name in dict.fromkeys(names)]
    by_name = {history.folder.name: history for history in _read(places, f"runs of {folder}", problems)}
    under_way = [] if comparison.finished else _under_way(folder, names)
    panels = []
    for (network, size), row in rows(comparison).items():
        curves = []
        for method, cell in row.items():
            runs = tuple(by_name[trial.run] for trial in cell.trials if trial.run in by_name)
            runs += tuple(run for run in under_way if _is_of(run, cell))
            if runs:
                curves.append(Curve(method, heading(method), runs))
        name, words = f"{slug(network)}-b{batch(size)}", f"{title(network)}, batch size {batch(size)}"
        panels.append(Panel(name, words, comparison.metric, tuple(curves), tuple(row.values())))
    return tuple(panels)


def _under_way(folder: Path, done: Sequence[str]) -> list[History]:
    """Runs at a chosen learning rate that the results do not have yet."""
    others = [place for place in find_runs([folder / RUNS]) if place.name not in done]
    return [run for run in _read(others, "runs", []) if run.started.settings.get("evaluate_on") == "test"]


def _is_of(run: History, cell: Cell) -> bool:
    settings = run.started.settings
    wanted = {"network": cell.network, "batch_size": cell.batch_size, "method": cell.method, "lr": cell.lr}
    return all(settings.get(name) == value for name, value in wanted.items())


def _loose(histories: Sequence[History]) -> tuple[Panel, ...]:
    places: dict[tuple[str, ...], list[History]] = {}
    for history in histories:
        places.setdefault(tuple(str(history.started.settings[name]) for name in PANEL), []).append(history)
    one_data = len({data for data, *_ in places}) == 1
    panels = []
    for (data, network, size), runs in places.items():
        size = "all" if size == "0" else size
        words, name = f"{title(network)}, batch size {size}", f"{slug(network)}-b{slug(size)}"
        if not one_data:
            words, name = f"{data}, {words}", f"{slug(data)}-{name}"
        regression = any(event.accuracy is None for run in runs for event in run.trained)
        metric: Metric = "loss" if regression else "accuracy"
        panels.append(Panel(name, words, metric, tuple(_grouped(runs))))
    return tuple(panels)


def _grouped(runs: Sequence[History]) -> list[Curve]:
    """Curves of runs that are alike but for the seed, called by their method and by what tells them apart."""
    groups: dict[str, list[History]] = {}
    for run in runs:
        groups.setdefault(json.dumps(material(run.started.settings), sort_keys=True), []).append(run)
    settings = [members[0].started.settings for members in groups.values()]
    parts = [next((run.evaluated[-1].part for run in members if run.evaluated), "") for members in groups.values()]
    curves = []
    for own, part, members in zip(settings, parts, groups.values(), strict=True):
        # Only from curves of its own method must a curve be told apart; its method tells it from the others.
        rivals = [one for one in settings if one["method"] == own["method"]]
        apart = [name for name in differing(rivals) if name not in IMMATERIAL]
        words = [heading(str(own["method"])), *(f"{name.replace('_', ' ')} {setting(own.get(name))}" for name in apart)]
        if part and len({*parts} - {""}) > 1:
            words.append(f"on {part} data")
        runs = sorted(members, key=lambda run: str(run.started.settings.get("seed")))
        curves.append(Curve(str(own["method"]), ", ".join(words), tuple(runs)))
    return curves


def material(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide how a run goes, but for the seed."""
    return {name: value for name, value in settings.items() if name not in IMMATERIAL}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of those that are not the same everywhere."""
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if len({json.dumps(one.get(name)) for one in settings}) > 1]


def setting(value: Any) -> str:
    """A setting's value for people."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(setting, value))
    return typed(value) if isinstance(value, float) else str(value)
