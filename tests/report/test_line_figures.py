"""Panels of lines that come as plain numbers."""

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trimtab.report.line_figures import LinePanel, Lines, draw_panels, lines_image
from trimtab.report.styles import LIGHT, method_styles


def draw_lines(panel: str, lines: Lines) -> Figure:
    return draw_panels([LinePanel.named(panel, lines)])


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
    image = lines_image("name", LinePanel("accuracy", {"<b>&": [[1, 2], [2, 3]]}), "runs, size small")
    assert image.startswith("<svg") and "accuracy: &lt;b&gt;&amp;; runs, size small." in image
    assert "<b>" not in image and "var(--" in image
    assert image == lines_image("name", LinePanel("accuracy", {"<b>&": [[1, 2], [2, 3]]}), "runs, size small")


def test_panels_beside_each_other_share_colours_and_the_legend() -> None:
    left = LinePanel("left", {"bn": [[1, 2], [2, 3]], "new": [[1, 1], [2, 2]]}, "steps", "loss")
    right = LinePanel("right", {"new": [[1, 5], [2, 6]], "bn": [[1, 1], [2, 1]]}, "epochs", "loss")
    figure = draw_panels([left, right], "Fig. 1")
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["left", "right"]
    assert [line.get_color() for line in first.lines] == [line.get_color() for line in reversed(second.lines)]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["bn", "new"]
    assert legend.get_title().get_text() == "Fig. 1"


def test_a_panel_that_was_not_run_says_so_and_keeps_its_place() -> None:
    figure = draw_panels([LinePanel("a", {"bn": [[1, 2], [2, 3]]}), LinePanel("b", {}, empty="not run")], "Fig. 1")
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [[], ["not run"]]


def test_cells_of_a_map_are_around_their_points() -> None:
    cells = tuple((x, y, x * y) for x in (0.01, 0.1, 1.0) for y in (1.0, 4.0))
    figure = draw_panels(
        [LinePanel("map", {"η_c": [[0.1, 1.0], [1.0, 4.0]]}, cells=cells, of_cells="test loss")], "Fig. 2"
    )
    axes = figure.axes[0]
    (drawn,) = axes.collections
    assert np.allclose(drawn.get_array(), [value for *_, value in cells])
    for path, (x, y, _) in zip(drawn.get_paths(), cells, strict=True):
        low, high = path.get_extents().min, path.get_extents().max
        assert np.sqrt(low * high) == pytest.approx([x, y])  # on logarithmic axes they are the centres
        assert high / low == pytest.approx([10, 4])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlim()[0] <= 0.01 / np.sqrt(10) and axes.get_ylim()[1] >= 8
    assert "test loss" in [each.get_ylabel() for each in figure.axes]


def test_a_picture_within_a_drawing_stays_one() -> None:
    cells = tuple((x, y, x) for x in (0.01, 0.1, 1.0) for y in (1.0, 4.0))
    image = lines_image("name", LinePanel("map", {}, cells=cells))
    assert 'href="data:image/png;base64,' in image


def test_points_are_not_joined() -> None:
    axes = axes_of(draw_panels([LinePanel("draws", {"draws": [[1, 2], [2, 1], [3, 2]]}, points=True)]))
    assert axes.lines[0].get_linestyle() == "None"


def test_a_method_looks_the_same_in_every_figure() -> None:
    alone = {name: method_styles([name])[name] for name in ("vanilla", "bn", "gn", "bnp+gn", "l1", "wn")}
    together = method_styles(["new", *reversed(alone)])
    assert {name: together[name] for name in alone} == alone
    assert together["new"].color not in {look.color for look in alone.values()}
    assert method_styles(["sgd"])["sgd"] == alone["vanilla"]


def test_lines_of_one_method_share_its_colour_and_can_be_told_apart() -> None:
    looks = method_styles(["BN, drawn", "without BN, drawn", "BN, printed", "BN, exact"])
    assert [LIGHT[look.color] for look in looks.values()] == [LIGHT[name] for name in ("blue", "grey", "blue", "blue")]
    assert len({(look.marker, look.hollow) for look in looks.values()}) == 4


@pytest.mark.parametrize(
    "lines",
    [
        ("vanilla", "bn", "brn", "ln", "bnp", "bn4"),
        ("vanilla", "bn", "ln", "gn", "in", "wn", "elu", "selu"),
        ("vanilla", "bn", "l1", "l2", "linf"),
        ("vanilla", "bn", "wn", "wn+mean-bn", "wn+var-bn"),
        ("η* paper", "η* exact", "η* train", "η* loss", "η_c", "best rate"),
        tuple("abcdefghi"),
    ],
)
def test_lines_that_meet_in_a_figure_differ_in_colour(lines: tuple[str, ...]) -> None:
    assert len({look.color for look in method_styles(lines).values()}) == len(lines)
