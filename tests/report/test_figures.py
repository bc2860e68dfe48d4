"""Figures as files, and what their lines look like."""

import math
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import pytest

from tests.report.helpers import NASTY, TEN, Plan, settings, write_comparison, write_run
from trimtab.records import Metric
from trimtab.report import collect, figures, save, write_figures
from trimtab.report.axes import RC, log_ticks, short_count, time_unit
from trimtab.report.styles import DARK, LIGHT, styles


def luminance(color: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_lines_and_letters_stand_out(palette: dict[str, str]) -> None:
    for name, color in palette.items():
        if name not in ("paper", "grid"):
            assert contrast(color, palette["paper"]) >= (4.5 if name in ("ink", "muted") else 3.0), name
    assert LIGHT.keys() == DARK.keys()
    assert len(set(palette.values())) == len(palette)  # each must be told from each when the page replaces them


@pytest.mark.parametrize("count", [4, 8, 10, 16])
def test_lines_differ(count: int) -> None:
    methods = [*TEN, *(f"method{i}" for i in range(10))][:count]
    found = list(styles((method, method) for method in methods).values())
    assert len(found) == count
    for one, other in combinations(found, 2):
        assert (one.marker, one.hollow) != (other.marker, other.hollow)
        if not one.hollow and not other.hollow:
            assert one.color != other.color and one.line != other.line
        if one.hollow != other.hollow:
            assert one.measured != other.measured and one.trained != other.trained


def test_well_known_methods_look_the_same_everywhere() -> None:
    alone = styles([("bnp", "BNP")])["BNP"]
    among = styles([("gn", "gn"), ("bnp", "BNP, lr 1"), ("bnp", "BNP, lr 2")])
    assert among["BNP, lr 1"] == alone
    assert len(set(among.values())) == 3


def test_all_figures_of_a_comparison(tmp_path: Path) -> None:
    plan = Plan(networks=("cnn5", "mlp3x100"), sizes=(4, 2), methods=("bn", "bnp"), seeds=2)
    write_comparison(tmp_path / "a", plan)
    found = figures(collect([tmp_path / "a"]))
    panels = ["cnn5-b4", "cnn5-b2", "mlp3x100-b4", "mlp3x100-b2"]
    assert [figure.name for figure in found] == [
        *("overview", "overview-cnn5", "overview-mlp3x100"),
        *(f"curves-{panel}-{against}" for panel in panels for against in ("steps", "time")),
        *(f"tuning-{panel}" for panel in panels),
    ]
    assert found[3].alt == (
        "Test accuracy (solid) and training loss (dashed) of BatchNorm and BNP against training steps: "
        "cnn5, batch size 4."
    )


def test_one_batch_size_and_one_rate_have_neither_overview_nor_tuning(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", Plan(networks=("cnn5",), sizes=(4,), methods=("bnp",), seeds=1, lrs=(0.1,)))
    data = collect([tmp_path])
    written = write_figures(data, tmp_path / "figures")
    names = [f"curves-cnn5-b4-{against}.{kind}" for against in ("steps", "time") for kind in ("png", "pdf")]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(names)
    assert sorted(path.name for path in written) == sorted(names)
    assert all(path.stat().st_size > 5000 for path in written)
    assert write_figures(data, tmp_path / "none", ()) == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "plan",
    [
        Plan(metric="loss", scale=1e-9, networks=("r",), sizes=(0, 4), seeds=2, diverging=(("r", 4, "bn"),)),
        Plan(metric="loss", scale=1e12, networks=("r",), sizes=(0, 4), seeds=1, diverging=(("r", 4, "bn"),)),
        Plan(networks=(NASTY,), sizes=(2, 1), methods=(NASTY, "bn"), seeds=1, cannot=((NASTY, 1, "bn"),)),
        Plan(networks=("cnn5",), sizes=(2, 1), methods=TEN, seeds=1, open_cells=5),
    ],
    ids=["tiny", "huge", "nasty", "ten"],
)
def test_everything_can_be_drawn(plan: Plan, tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", plan)
    for path in write_figures(collect([tmp_path]), tmp_path / "f", ["svg"]):
        assert b"</svg>" in path.read_bytes()


def test_a_run_of_which_nothing_is_known_yet_can_be_drawn(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings(), until=1, verdict=None)
    write_run(tmp_path / "b", settings(method="bn"), until=10, verdict="diverged")
    assert len(write_figures(collect([tmp_path]), tmp_path / "f", ["svg"])) == 2


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_the_overview_as_a_file_is_whole_and_the_same_every_time(kind: str, tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", Plan(sizes=(4, 2), methods=("bn", "bnp"), seeds=2))
    for name in "bc":
        save(figures(collect([tmp_path / "a"]))[0], tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"b.{kind}").stat().st_size > 5000
    assert (tmp_path / f"b.{kind}").read_bytes() == (tmp_path / f"c.{kind}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_figure_that_fails_leaves_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "a", settings())
    (figure, _) = figures(collect([tmp_path]))
    with pytest.raises(ValueError, match=r"as png, pdf and svg, not as 'nonsense'"):
        save(figure, tmp_path / "figure.nonsense")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_curves_show_the_means(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), settings(seed=seed))
    data = collect([tmp_path])
    (_, curve) = data.subjects[0].curves[0]
    mean = curve.line("measured", "accuracy").mean
    assert mean is not None
    with mpl.rc_context(RC):
        steps, time = (figure.draw() for figure in figures(data))
    for figure, x in ((steps, mean.steps), (time, mean.seconds)):
        above, below = figure.axes
        (drawn,) = above.lines
        assert drawn.get_xdata().tolist() == x.tolist()
        assert drawn.get_ydata().tolist() == (100 * mean.values).tolist()
        assert drawn.get_linestyle() == "-" and below.lines[0].get_linestyle() == "--"
        assert len(above.collections) == len(below.collections) == 1  # the shades


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_what_diverged_while_tuning_is_a_cross_on_the_worse_side(metric: Metric, tmp_path: Path) -> None:
    write_comparison(tmp_path, Plan(networks=("cnn5",), sizes=(4,), seeds=1, metric=metric))
    with mpl.rc_context(RC):
        (axes,) = figures(collect([tmp_path]))[-1].draw().axes
    crosses = [drawn for drawn in axes.lines if drawn.get_marker() == "x"]
    places = [(float(drawn.get_xdata()[0]), float(drawn.get_ydata()[0])) for drawn in crosses]
    assert [rate for rate, _ in places] == [0.3, 0.3]  # of vanilla and bn
    assert all(height < 0.2 if metric == "accuracy" else height > 0.8 for _, height in places)
    assert len(set(places)) == 2
    assert all(0 <= tick <= 100 for tick in axes.get_yticks()) or metric == "loss"
    values = [y for drawn in axes.lines if drawn not in crosses for y in drawn.get_ydata()]
    shares = axes.transAxes.inverted().transform(axes.transData.transform([(0.1, y) for y in values]))[:, 1]
    assert max(shares) < min(h for _, h in places) if metric == "loss" else min(shares) > max(h for _, h in places)
    rings = [drawn for drawn in axes.lines if drawn.get_markersize() == 12]
    assert [ring.get_xdata().tolist() for ring in rings] == [[0.1]] * 4


def test_ticks() -> None:
    assert log_ticks(0.009, 1.1) == pytest.approx([0.01, 0.1, 1])
    assert log_ticks(0.95, 4.5) == pytest.approx([1, 2, 3, 4])
    assert all(len(log_ticks(10.0**-n, 10.0**n)) <= 7 for n in range(1, 200, 7))
    assert [short_count(x) for x in (0, 500, 9999, 10000, 2.5e6)] == ["0", "500", "9999", "10k", "2.5M"]
    assert [time_unit(x)[1] for x in (0, 299, 300, 10800)] == ["seconds", "seconds", "minutes", "hours"]
    assert math.isclose(contrast("#000000", "#ffffff"), 21)
