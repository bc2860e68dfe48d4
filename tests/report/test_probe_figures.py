"""What was measured along a run: sentences, figures, and what stands where there is nothing."""

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.report.helpers import settings, write_run
from trimtab.records import Probed
from trimtab.report import collect, write_page
from trimtab.report.axes import RC
from trimtab.report.figures import NamedFigure, figures
from trimtab.report.findings import compared
from trimtab.report.probe_histograms import central

WHY = "it takes up to 145 second derivatives per unit, above most_products, 128"
STEPS = (0, 10, 20)


def landscape(smoothness: float) -> dict[str, Any]:
    return {
        "loss": 2.0,
        "loss_range": [1.0, 2.5],
        "predictiveness_range": [0.1, 0.5],
        "multiples": [0.5, 1.0],
        "gradient_changes": [smoothness / 20, smoothness / 80],
        "distances": [0.05, 0.1],
        "smoothness": smoothness,
    }


def conditioned(hessian: float) -> dict[str, Any]:
    whole = {"hessian": hessian, "preconditioned": hessian / 10, "inputs": 30.0, "normalized": 3.0, "scaling": 2.0}
    none = {**whole, "hessian": math.nan, "preconditioned": math.nan, "note": WHY}
    return {"layers": {"0": {**whole, "note": None}, "3": none}}


def activations(outlier: float) -> dict[str, Any]:
    # A bell between -1 and 1, a spike of zeros, and one value far out.
    edges = np.linspace(-1.0, outlier, 201)
    middles = (edges[1:] + edges[:-1]) / 2
    counts = np.where(np.abs(middles) < 1, 100 * np.exp(-4 * middles**2), 0).astype(int)
    counts[np.argmin(np.abs(middles))] += 5000
    counts[-1] = 1
    one = {"values": int(counts.sum()), "mean": 0.0, "variance": 1.0, "skewness": 0.0, "kurtosis": 0.0}
    one |= {"low": -1.0, "high": outlier, "counts": counts.tolist()}
    return {"layers": [{**one, "layer": "0", "examples": [one]}]}


def record_run(folder: Path, method: str, **results: list[dict[str, Any]]) -> None:
    events = [
        Probed(step, probe, {"problem": None, **result}, 0.1)
        for probe, found in results.items()
        for step, result in zip(STEPS, found, strict=True)
    ]
    write_run(folder / method, settings(method=method), probed=tuple(events))


def named(folder: Path, name: str) -> NamedFigure:
    (found,) = (figure for figure in figures(collect([folder])) if figure.name.startswith(name))
    return found


def drawn(figure: NamedFigure) -> Figure:
    with mpl.rc_context(RC):
        result = figure.draw()
        result.draw_without_rendering()
        return result


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    noise = [{"layers": {}, "noise_scale": value, "note": None} for value in (100.0, math.nan, 300.0)]
    record_run(tmp_path, "bn", landscape=[landscape(x) for x in (20.0, 14.0, 10.0)], noise=noise)
    flat = [{"learning_rate": 0.1, "stable_learning_rate": x} for x in (0.05, 0.2, math.inf)]
    record_run(
        tmp_path,
        "bnp",
        landscape=[landscape(x) for x in (2.0, 2.5, 2.6)],
        conditioning=[conditioned(500.0)] * 3,
        spectrum=flat,
    )
    write_page(collect([tmp_path]), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for sentence in (
        "The loss is smoothest along the gradient with BNP: median β-smoothness 2.5; BatchNorm 14. This is the largest "
        "β of the range of distances, and at an edge of it: at the nearest point in 3 of 3 measurements with "
        "BatchNorm; at the nearest point in 3 of 3 measurements with BNP.",
        "1 step along the gradient the loss is smoothest with BNP: median β at 1 step 0.312; BatchNorm 1.75.",
        "Median condition number of a Hessian block, as it is and preconditioned by BNP: 500 and 50 with BNP.",
        "The learning rate is above the largest stable one, 2/λ, in 1 of 2 measurements with BNP.",
        "Median noise scale: 200 (BatchNorm).",
    ):
        assert f"<li>{sentence}</li>" in page, sentence
    assert "A gap is where no finite value was found: BatchNorm at 1 of 3 steps." in page
    assert ">Measured along the way, one run of each:<" in page


def line(changes: list[float]) -> dict[str, Any]:
    """A record of an earlier trimtab: β by multiple is not in it."""
    distances = [0.5, 1.0, 2.0]
    quotients = [change / distance for change, distance in zip(changes, distances, strict=True)]
    known = {"multiples": [0.5, 1.0, 2.0], "gradient_changes": changes, "distances": distances}
    return landscape(max(quotients)) | known


def test_beta_by_distance_of_records_that_do_not_have_it(tmp_path: Path) -> None:
    # β is 8, 4, 1: largest at the near edge; 1, 4, 2: inside; 1, 2, 3: at the far edge.
    record_run(tmp_path, "bn", landscape=[line([4.0, 4.0, 2.0]), line([0.5, 4.0, 4.0]), line([0.5, 2.0, 6.0])])
    figure = named(tmp_path, "landscape")
    assert figure.values is not None
    assert [row[-2:] for row in figure.values()[1]] == [["8", "0.5, an edge"], ["4", "1"], ["3", "2, an edge"]]
    *_, smooth = drawn(figure).axes
    (circles,) = (each for each in smooth.get_lines() if each.get_linestyle() == "None")
    np.testing.assert_array_equal(circles.get_ydata(), [8.0, math.nan, 3.0])

    figure = named(tmp_path, "predictiveness")
    assert figure.values is not None
    assert [row[-2:] for row in figure.values()[1]] == [["1", "1 to 4.5"], ["4", "3 to 4"], ["2", "1.5 to 2.5"]]
    _, smooth = drawn(figure).axes
    np.testing.assert_allclose(smooth.get_lines()[-1].get_ydata(), [1.0, 4.0, 2.0])
    assert smooth.get_xlabel() == "distance along the gradient, in steps"
    write_page(collect([tmp_path]), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "An open circle: it is largest at an edge of the range of distances" in page
    assert "at the nearest point in 1 and at the farthest point in 1 of 3 measurements with BatchNorm." in page


def test_beta_that_is_nowhere_finite_can_be_drawn(tmp_path: Path) -> None:
    record_run(tmp_path, "bn", landscape=[line([1.0, 1.0, math.inf])] * 3)
    figure = named(tmp_path, "predictiveness")
    drawn(figure)
    assert figure.values is not None
    assert [row[4] for row in figure.values()[1]] == ["2", "1", "not a number"]


def test_findings_name_ties_and_pass_over_what_is_not_finite() -> None:
    assert compared("Best", "speed", {"a": 1.0001, "b": 1.0, "c": 3.0}) == "Best with b and a: speed 1; c 3."
    assert compared("Best", "speed", {"a": 1.0, "b": 2.0}, largest=True) == "Best with b: speed 2; a 1."
    assert compared("Best", "speed", {"a": math.nan, "b": 2.0}) == "Speed: 2 (b)."
    assert compared("Best", "speed", {"a": 2.0, "b": 2.0}) == "Speed: 2, the same for a and b."
    assert compared("Best", "speed", {"a": math.inf}) == ""


def test_every_title_says_what_is_shown(tmp_path: Path) -> None:
    record_run(tmp_path, "bn", landscape=[landscape(2.0)] * 3, activations=[activations(2.0)] * 3)
    found = figures(collect([tmp_path]))
    titles = [drawn(figure).legends[0].get_title().get_text().split("\n") for figure in found]
    assert {where for _, where in titles} == {"cnn5, batch size 2"}
    assert [what for what, _ in titles] == [
        *["Test accuracy and training loss"] * 2,
        "Loss and its gradient along the gradient",
        "Change of the gradient by distance",
        "Distribution of an activation, by layer",
    ]


def test_an_empty_panel_says_why(tmp_path: Path) -> None:
    record_run(tmp_path, "bnp", conditioning=[conditioned(500.0)] * 3)
    panels = drawn(named(tmp_path, "conditioning")).axes
    texts = [" ".join(" ".join(text.get_text() for text in axes.texts).split()) for axes in panels]
    assert texts == ["", "", WHY, ""]
    assert list(panels[2].get_yticks()) == []


def test_a_run_without_values_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings(), until=20)
    above, below = drawn(named(tmp_path, "curves-cnn5-b2-steps")).axes
    assert [text.get_text() for text in above.texts] == ["no finite test accuracy has been recorded"]
    assert not below.texts


@pytest.mark.parametrize("outlier", [2.0, 30.0])
def test_an_outlier_and_a_spike_do_not_flatten_a_histogram(outlier: float, tmp_path: Path) -> None:
    record_run(tmp_path, "bn", activations=[activations(outlier)] * 3)
    (axes,) = drawn(named(tmp_path, "histograms")).axes
    low, high = axes.get_xlim()
    assert -1.2 < low < -0.5 and 0.5 < high < 1.5
    assert "% outside" in axes.get_xlabel()
    # The bell is seen beside the spike of zeros: next to it a ridge is about half as high.
    ridge = axes.collections[0].get_paths()[0].vertices
    beside = ridge[(np.abs(ridge[:, 0]) > 0.15) & (np.abs(ridge[:, 0]) < 0.35), 1]
    assert 0.5 < beside.max() < 1.0 and ridge[:, 1].max() == pytest.approx(1.6)


def test_the_middle_of_histograms() -> None:
    edges = np.linspace(0.0, 100.0, 101)
    flat = np.ones(100)
    assert central([(edges, flat)], 0.9) == (5.0, 95.0)
    lonely = np.zeros(100)
    lonely[7] = 50
    assert central([(edges, lonely)]) == (7.0, 8.0)
    assert central([(edges, flat), (edges + 1000, flat)], 0.9) == (10.0, 1090.0)


def test_a_distribution_that_is_not_finite_can_be_drawn(tmp_path: Path) -> None:
    broken = activations(2.0)
    for one in (broken["layers"][0], *broken["layers"][0]["examples"]):
        one |= {"low": math.nan, "high": math.nan, "counts": [0] * 200}
    record_run(tmp_path, "bn", activations=[broken] * 3)
    (axes,) = drawn(named(tmp_path, "histograms")).axes
    assert [text.get_text().replace("\n", " ") for text in axes.texts] == ["no finite value was found"]
