"""Panels of lines that come as plain numbers."""

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trimtab.report.line_figures import draw_lines, lines_image


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def test_the_line_is_the_median_and_the_shade_the_range() -> None:
    axes = axes_of(draw_lines("accuracy", {"bn": [[1, 50, 40, 60], [2, 70, 65, 80], [3, 90, 90, 90]]}))
    (line,) = axes.lines
    assert np.array_equal(line.get_xydata(), [[1, 50], [2, 70], [3, 90]])
    (shade,) = axes.collections
    corners = {tuple(corner) for corner in shade.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 40), (1, 60), (2, 65), (2, 80), (3, 90)}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epochs", "accuracy in %")


def test_without_a_range_there_is_no_shade_and_names_label_the_axes() -> None:
    axes = axes_of(draw_lines("loss over steps", {"a": [[0, 1], [1, 2]], "b": [[0, 3], [1, 4]]}))
    assert len(axes.lines) == 2 and not axes.collections
    assert len({line.get_color() for line in axes.lines}) == 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("steps", "loss")


def test_what_is_not_finite_is_a_gap() -> None:
    axes = axes_of(draw_lines("loss", {"bn": [[1, 2], [2, math.inf], [3, 4]]}))
    drawn = axes.lines[0].get_ydata()
    assert np.isnan(drawn[1]) and drawn[0] == 2 and drawn[2] == 4
    low, high = axes.get_ylim()
    assert low <= 2 and 4 <= high < 10


def test_a_line_of_which_nothing_can_be_drawn_says_so() -> None:
    figure = draw_lines("loss", {"bn": [[1, 2], [2, 3]], "vanilla": [[1, math.inf], [2, math.inf]]})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["bn", "vanilla (no finite number)"]


@pytest.mark.parametrize(
    ("x", "y", "scales"),
    [
        ([1, 2, 3], [1, 2, 3], ("linear", "linear")),
        ([1, 10, 100], [1, 2, 3], ("log", "linear")),
        (range(1, 101), [1] * 100, ("linear", "linear")),
        ([1, 2, 3], [1, 10, 100], ("linear", "log")),
        ([1, 2, 3], [0, 10, 100], ("linear", "linear")),
        ([0, 10, 100], [1, -1, 100], ("linear", "linear")),
    ],
)
def test_scales(x: list[float], y: list[float], scales: tuple[str, str]) -> None:
    axes = axes_of(draw_lines("loss over width", {"bn": list(zip(x, y, strict=True))}))
    assert (axes.get_xscale(), axes.get_yscale()) == scales


@pytest.mark.parametrize("points", [[], [[1, math.nan]], [[1, math.inf, 1, math.inf]]])
def test_nothing_to_draw_is_said(points: list[list[float]]) -> None:
    axes = axes_of(draw_lines("loss", {"bn": points}))
    assert [text.get_text() for text in axes.texts] != []


def test_as_a_part_of_a_page() -> None:
    image = lines_image("name", "accuracy", {"<b>&": [[1, 2], [2, 3]]}, "runs, size small")
    assert image.startswith("<svg") and "accuracy of &lt;b&gt;&amp;: runs, size small." in image
    assert "<b>" not in image and "var(--" in image
    assert image == lines_image("name", "accuracy", {"<b>&": [[1, 2], [2, 3]]}, "runs, size small")
