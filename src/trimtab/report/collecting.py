"""Reads the records of comparisons and runs, and sorts them into the panels and curves of a report."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from trimtab.records import RESULTS, RUNS, Cell, Comparison, History, Metric, Sweep, find_runs, is_sweep
from trimtab.report.formatting import batch_label, method_label, natural_order, network_label, slug
from trimtab.report.ranking import cells_by_setting
from trimtab.report.report_data import Curve, Panel, ReportData, Subject, SweepSubject
from trimtab.report.run_settings import (
    PANEL_SETTINGS,
    WITHOUT_EFFECT,
    differing_settings,
    format_setting,
    training_settings,
)


def collect(folders: Iterable[Path]) -> ReportData:
    """Read all comparisons, sweeps and runs in and below these folders.

    A run of a comparison is part of that subject only, and those of a sweep are not shown one by one.

    Raises:
        ValueError: If a folder is not there, or if there is nothing that can be read.
    """
    folders = list(folders)
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
    problems: list[str] = []
    compared: dict[Path, tuple[Path, Comparison]] = {}
    swept: dict[Path, tuple[Path, Sweep]] = {}
    for path in (path for folder in folders for path in sorted(folder.rglob(RESULTS))):
        here = path.parent.resolve()
        if here not in compared and here not in swept:
            try:
                if is_sweep(path.parent):
                    swept[here] = path.parent, Sweep.read(path.parent)
                else:
                    compared[here] = path.parent, Comparison.read(path.parent)
            except ValueError as error:
                problems.append(_sentence(str(error)))
    owners = {*compared, *swept}
    single = [run for run in find_runs(folders) if not owners & {*run.resolve().parents}]
    histories = _read_runs(single, "runs", problems)
    several = len(owners) + bool(histories) > 1
    subjects = []
    for number, (folder, comparison) in enumerate(compared.values(), start=1):
        name = f"{number}-{slug(folder.resolve().name)}-" if several else ""
        panels = _comparison_panels(folder, comparison, problems)
        subjects.append(Subject(name, comparison, panels, folder.resolve().name))
    if histories:
        subjects.append(Subject("runs-" if several else "", None, _single_run_panels(histories)))
    sweeps = []
    for number, (folder, sweep) in enumerate(swept.values(), start=len(compared) + 1):
        name = f"{number}-{slug(folder.resolve().name)}-" if several else ""
        sweeps.append(SweepSubject(name, sweep, folder.resolve().name))
    if not subjects and not sweeps:
        places = ", ".join(map(str, folders))
        raise ValueError(problems[0] if problems else f"there are no records of a comparison or a run in {places}")
    return ReportData(tuple(subjects), tuple(dict.fromkeys(problems)), tuple(sweeps))


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _read_runs(folders: Sequence[Path], what: str, problems: list[str]) -> list[History]:
    """The runs that can be read; `problems` gets one sentence about the others."""
    histories, failed = [], []
    for folder in folders:
        try:
            history = History.read(folder)
            if not all(name in history.started.settings for name in (*PANEL_SETTINGS, "method")):
                raise ValueError(f"{folder} does not say which data, network, method and batch size it is about.")
            histories.append(history)
        except (ValueError, TypeError) as error:
            failed.append(_sentence(str(error)))
    if len(failed) == 1:
        problems.append(failed[0])
    elif failed:
        problems.append(f"{len(failed)} of {len(folders)} {what} cannot be read, the first because: {failed[0]}")
    return histories


def _comparison_panels(folder: Path, comparison: Comparison, problems: list[str]) -> tuple[Panel, ...]:
    names = [trial.run for cell in comparison.cells for trial in cell.trials]
    places = [folder / RUNS / name for name in dict.fromkeys(names)]
    by_name = {history.folder.name: history for history in _read_runs(places, f"runs of {folder}", problems)}
    under_way = [] if comparison.finished else _under_way(folder, names)
    panels = []
    for (network, size), row in cells_by_setting(comparison).items():
        curves = []
        for method, cell in row.items():
            runs = tuple(by_name[trial.run] for trial in cell.trials if trial.run in by_name)
            runs += tuple(run for run in under_way if _belongs_to(run, cell))
            if runs:
                curves.append(Curve(method, method_label(method), runs))
        name = f"{slug(network)}-b{batch_label(size)}"
        title = f"{network_label(network)}, batch size {batch_label(size)}"
        panels.append(Panel(name, title, comparison.metric, tuple(curves), tuple(row.values())))
    return tuple(panels)


def _under_way(folder: Path, done: Sequence[str]) -> list[History]:
    """Runs at a chosen learning rate that are not in the results yet."""
    others = [place for place in find_runs([folder / RUNS]) if place.name not in done]
    return [run for run in _read_runs(others, "runs", []) if run.started.settings.get("evaluate_on") == "test"]


def _belongs_to(run: History, cell: Cell) -> bool:
    settings = run.started.settings
    wanted = {"network": cell.network, "batch_size": cell.batch_size, "method": cell.method, "lr": cell.lr}
    return all(settings.get(name) == value for name, value in wanted.items())


def _single_run_panels(histories: Sequence[History]) -> tuple[Panel, ...]:
    places: dict[tuple[str, ...], list[History]] = {}
    for history in histories:
        places.setdefault(tuple(str(history.started.settings[name]) for name in PANEL_SETTINGS), []).append(history)
    one_data = len({data for data, *_ in places}) == 1
    panels = []
    for (data, network, size), runs in places.items():
        size = "all" if size == "0" else size
        title, name = f"{network_label(network)}, batch size {size}", f"{slug(network)}-b{slug(size)}"
        if not one_data:
            title, name = f"{data}, {title}", f"{slug(data)}-{name}"
        regression = any(event.accuracy is None for run in runs for event in run.trained)
        metric: Metric = "loss" if regression else "accuracy"
        panels.append(Panel(name, title, metric, tuple(_curves(runs))))
    return tuple(panels)


def _curves(runs: Sequence[History]) -> list[Curve]:
    """Runs grouped into curves. A label is the method, and the settings in which curves of that method differ."""
    groups: dict[str, list[History]] = {}
    for run in runs:
        groups.setdefault(json.dumps(training_settings(run.started.settings), sort_keys=True), []).append(run)
    settings = [members[0].started.settings for members in groups.values()]
    parts = [next((run.evaluated[-1].part for run in members if run.evaluated), "") for members in groups.values()]
    curves = []
    for own, part, members in zip(settings, parts, groups.values(), strict=True):
        same_method = [one for one in settings if one["method"] == own["method"]]
        names = [name for name in differing_settings(same_method) if name not in WITHOUT_EFFECT]
        label = [method_label(str(own["method"]))]
        label += [f"{name.replace('_', ' ')} {format_setting(own.get(name))}" for name in names]
        if part and len({*parts} - {""}) > 1:
            label.append(f"on {part} data")
        runs = sorted(members, key=lambda run: natural_order(str(run.started.settings.get("seed"))))
        curves.append(Curve(str(own["method"]), ", ".join(label), tuple(runs)))
    return curves
