"""Figures of weights, Fisher, gradients at norms, robustness, ablation and variance: findings, tables, seeds."""

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from tests.report.helpers import settings, write_run
from trimtab.records import Probed
from trimtab.report import collect
from trimtab.report.axes import RC
from trimtab.report.figures import NamedFigure, figures

STEPS = (0, 10)


def results(probe: str, seed: int, step: int, factor: float) -> dict[str, Any]:
    """What a probe found, for each (seed, step), in numbers that can be reckoned with."""
    grown = factor * (1 + seed) * (1 + step / 10)
    if probe == "weights":
        layer = {"layer": "0", "norm": 2.0 * (1 + step / 10 * factor), "folded_norm": 3.0, "gradient_norm": 1.0}
        norm = {"layer": "1", "gamma": 1.0, "gamma_square": grown, "gamma_least": 0.5, "gamma_largest": 2.0}
        return {"layers": [{**layer, "variance": 0.1}], "norms": [{**norm, "beta": 0.0, "beta_square": 0.1}]}
    if probe == "fisher":
        rates = {"one_output_rate": 0.1, "all_outputs_rate": 0.1, "gauss_newton_rate": 0.3, "learning_rate": 0.2}
        return {"one_output": grown, "all_outputs": 2 * grown, "gauss_newton": math.nan, **rates}
    if probe == "gradients":
        one = {"layer": "1", "mean_share": 0.1 * factor, "inner_share": 0.2, "correlated": 0.5, "kept": 0.7}
        return {"layers": [{**one, "output_norm": 1.0, "input_norm": math.nan, "slope": 1.5}]}
    if probe == "robustness":
        return {"accuracy": 0.9, "eps": [2 / 255, 0.1], "accuracies": [0.8, 0.1 * factor]}
    if probe == "ablation":
        rows = [[0.6, 0.2], [0.8, 0.2]] if seed else [[0.4, 0.1], [0.2, 0.1]]
        known = {"accuracy": 0.9, "shares": [0.5, 1.0], "accuracies": rows, "area": 0.5}
        return {**known, "halved_at": 0.2 * factor}
    return {"layers": [{"layer": "1", "ratio": factor, "distance": abs(math.log(factor))}]}


PROBES = ("weights", "fisher", "gradients", "robustness", "ablation", "variance")


def written(folder: Path, seeds: int) -> Path:
    for method, factor in (("vanilla", 2.0), ("bn", 3.0)):
        for seed in range(seeds):
            events = [
                Probed(step, probe, {"problem": None, **results(probe, seed, step, factor)}, 0.1)
                for probe in PROBES
                for step in STEPS
            ]
            write_run(folder / f"{method}-{seed}", settings(method=method, seed=seed), probed=tuple(events))
    return folder


def named(folder: Path) -> dict[str, NamedFigure]:
    found = {figure.name: figure for figure in figures(collect([folder]))}
    return {name: found[name] for name in found if not name.startswith("curves")}


def starting(found: dict[str, NamedFigure], name: str) -> NamedFigure:
    (figure,) = (figure for key, figure in found.items() if key.startswith(f"{name}-"))
    return figure


FINDINGS = {
    "weights": "Weights grow least with vanilla: median of the last norm over the first 3; BatchNorm 4.",
    "gamma": "γ² ends lowest with vanilla: median over layers of its last mean 4; BatchNorm 6.",
    "fisher": "Largest factor from its start: 2, the same for BatchNorm and vanilla.",
    "robustness": "Accuracy under perturbations is highest, at ε = 0.1, with BatchNorm: median 30; vanilla 20.",
    "ablation": "Most units can be switched off with BatchNorm: share until accuracy is halved 0.6; vanilla 0.4.",
    "variance": "Running variances fit evaluation best with vanilla: median |log ratio| 0.693; BatchNorm 1.1.",
    "gradient-sums": "Median power: 1.5, the same for BatchNorm and vanilla.",
}


def test_findings_tables_and_drawings_of_one_seed(tmp_path: Path) -> None:
    found = named(written(tmp_path, 1))
    for name, sentence in FINDINGS.items():
        assert starting(found, name).finding == sentence
    assert "layer's output with BatchNorm: median share 0.3; vanilla 0.2." in (
        starting(found, "gradients").finding or ""
    )
    head, rows = starting(found, "robustness").values()  # type: ignore[misc]
    assert head == ["run", "step", "accuracy, %", "at ε = 2/255", "at ε = 0.1"]
    assert rows[0][1:] == ["0", "90", "80", "30"] and len(rows) == 4
    head, rows = starting(found, "ablation").values()  # type: ignore[misc]
    assert [row[1:] for row in rows[:3]] == [["0", "1", "90"], ["0.5", "1", "30"], ["1", "1", "10"]]
    head, rows = starting(found, "gamma").values()  # type: ignore[misc]
    assert head[3:] == ["gamma square", "beta square", "gamma", "gamma least", "gamma largest", "beta"]
    with mpl.rc_context(RC):
        for figure in found.values():
            figure.draw().draw_without_rendering()


def test_several_seeds_are_medians_and_ranges(tmp_path: Path) -> None:
    found = named(written(tmp_path, 3))
    assert "2 seeds" not in (starting(found, "gamma").finding or "")
    assert "median over layers of its last mean 8 [4–12]; BatchNorm 12 [6–18]" in (
        starting(found, "gamma").finding or ""
    )
    _, rows = starting(found, "ablation").values()  # type: ignore[misc]
    assert rows[1][1:] == ["0.5", "3", "70 [30–70]"]
    with mpl.rc_context(RC):
        drawn = starting(found, "ablation").draw()
        (axes,) = drawn.axes
        np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [90, 70, 20])
        assert axes.get_xlabel() == "share of units switched off"


@pytest.mark.parametrize("probe", ["weights", "variance"])
def test_networks_without_norms_have_no_figure_of_them(probe: str, tmp_path: Path) -> None:
    nothing = {"problem": None, "layers": [], "norms": []}
    events = tuple(Probed(step, probe, nothing, 0.1) for step in STEPS)
    write_run(tmp_path / "vanilla", settings(method="vanilla"), probed=events)
    assert named(tmp_path) == {}
