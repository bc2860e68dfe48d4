"""Figures of probes over several seeds. Medians and ranges are computed here from the records themselves."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.report.helpers import settings, write_run
from trimtab.records import History, Probed, Verdict
from trimtab.report import collect, save, write_page
from trimtab.report.axes import RC
from trimtab.report.figures import NamedFigure, figures
from trimtab.report.findings import compared
from trimtab.report.formatting import format_number
from trimtab.report.seeds import SeedLine, Spread, format_spread

STEPS = (0, 10, 20, 30)
Result = Callable[[np.random.Generator], dict[str, Any]]


def landscape(drawn: np.random.Generator) -> dict[str, Any]:
    distances = [0.05, 0.1, 0.2]
    changes = drawn.uniform(0.5, 3.0, 3).tolist()
    return {
        "loss": float(drawn.uniform(1, 2)),
        "loss_range": sorted(drawn.uniform(1, 3, 2).tolist()),
        "predictiveness_range": [min(changes), max(changes)],
        "multiples": [0.5, 1.0, 2.0],
        "gradient_changes": changes,
        "distances": distances,
        "smoothness": max(change / away for change, away in zip(changes, distances, strict=True)),
    }


def layers(*names: str) -> Result:
    return lambda drawn: {"layers": {at: {name: float(drawn.uniform(1, 9)) for name in names} for at in ("0", "3")}}


def numbers(*names: str) -> Result:
    return lambda drawn: {"layers": {}, **{name: float(drawn.uniform(1, 9)) for name in names}}


def activations(drawn: np.random.Generator) -> dict[str, Any]:
    names = ("mean", "variance", "skewness", "kurtosis")
    one = {"values": 60, "low": -2.0, "high": 4.0, "counts": drawn.integers(1, 20, 6).tolist()}
    one |= {name: float(drawn.normal()) for name in names}
    return {"layers": [{**one, "layer": "0", "examples": [one]}]}


RESULTS: dict[str, Result] = {
    "landscape": landscape,
    "random": landscape,
    "shift": layers("distance", "cosine"),
    "activations": activations,
    "conditioning": layers("hessian", "preconditioned", "inputs", "normalized", "scaling"),
    "spectrum": numbers("learning_rate", "stable_learning_rate"),
    "noise": lambda drawn: numbers("noise_scale")(drawn) | layers("zeta", "zeta_measured")(drawn),
}


def record(
    folder: Path, method: str, seed: int, *, steps: tuple[int, ...] = STEPS, verdict: Verdict = "finished", **told: Any
) -> None:
    """A run with results of some probes, all of them unless told otherwise."""
    drawn = np.random.default_rng([seed, len(method)])
    results = told.pop("results", RESULTS)
    events = [
        Probed(step, probe, {"problem": None, **make(drawn)}, 0.1) for probe, make in results.items() for step in steps
    ]
    until = 40 if verdict == "diverged" else None
    place = folder / (method if seed == 0 else f"{method}-seed{seed}")
    own = settings(method=method, seed=seed, probe=list(results))
    write_run(place, own, probed=tuple(told.pop("events", events)), until=until, verdict=verdict)


def by_seed(folder: Path, method: str, probe: str) -> dict[int, dict[int, dict[str, Any]]]:
    """The results by seed and step, read from the records."""
    runs = [History.read(path.parent) for path in folder.rglob("events.jsonl")]
    return {
        int(run.started.settings["seed"]): {event.step: event.result for event in run.probed if event.probe == probe}
        for run in sorted(runs, key=lambda run: int(run.started.settings["seed"]))
        if run.started.settings["method"] == method
    }


def named(folder: Path, name: str) -> NamedFigure:
    (found,) = (figure for figure in figures(collect([folder])) if figure.name.startswith(name))
    return found


def drawn_axes(figure: NamedFigure) -> list[Axes]:
    with mpl.rc_context(RC):
        result: Figure = figure.draw()
        result.draw_without_rendering()
        return result.axes


def thick(axes: Axes) -> list[Any]:
    """The lines of medians."""
    return [line for line in axes.get_lines() if line.get_linewidth() == 1.3]


def shade(axes: Axes, number: int = 0) -> tuple[list[float], list[float]]:
    """Lower and upper ends of a shade, from left to right."""
    points = np.asarray(axes.collections[number].get_paths()[0].vertices)
    places = np.unique(points[:, 0])
    ends = [(points[points[:, 0] == x, 1].min(), points[points[:, 0] == x, 1].max()) for x in places]
    return [low for low, _ in ends], [high for _, high in ends]


def written(values: list[float]) -> str:
    return f"{format_number(median(values))} [{format_number(min(values))}–{format_number(max(values))}]"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    for method in ("bn", "vanilla"):
        for seed in range(3):
            record(folder, method, seed)
    return folder


def test_beta_and_its_bands(three: Path) -> None:
    figure = named(three, "landscape")
    loss, _, smooth = drawn_axes(figure)
    results = by_seed(three, "bn", "landscape")
    betas = [[results[seed][step]["smoothness"] for seed in range(3)] for step in STEPS]
    line = thick(smooth)[0]
    np.testing.assert_allclose(line.get_ydata(), [median(values) for values in betas])
    np.testing.assert_allclose(shade(smooth)[0], [min(values) for values in betas])
    np.testing.assert_allclose(shade(smooth)[1], [max(values) for values in betas])
    lows, highs = ([[results[seed][step]["loss_range"][end] for seed in range(3)] for step in STEPS] for end in (0, 1))
    np.testing.assert_allclose(shade(loss, 0)[0], [min(values) for values in lows])  # the faint one
    np.testing.assert_allclose(shade(loss, 0)[1], [max(values) for values in highs])
    np.testing.assert_allclose(shade(loss, 1)[0], [median(values) for values in lows])
    np.testing.assert_allclose(shade(loss, 1)[1], [median(values) for values in highs])
    assert figure.values is not None
    header, rows = figure.values()
    column = [row[header.index("β-smoothness")] for row in rows if row[0] == "BatchNorm"]
    assert column == [written(values) for values in betas]
    of_seeds = [median(results[seed][step]["smoothness"] for step in STEPS) for seed in range(3)]
    assert f"BatchNorm {written(of_seeds)}" in figure.finding or f"median β-smoothness {written(of_seeds)}" in (
        figure.finding
    )
    assert "(medians and ranges over 3 seeds)." in figure.finding


def test_the_change_by_distance(three: Path) -> None:
    figure = named(three, "predictiveness")
    change, _ = drawn_axes(figure)
    results = by_seed(three, "bn", "landscape")
    expected = [
        [median(results[seed][step]["gradient_changes"][i] for step in STEPS) for seed in range(3)] for i in range(3)
    ]
    np.testing.assert_allclose(thick(change)[0].get_ydata(), [median(values) for values in expected])
    np.testing.assert_allclose(shade(change)[1], [max(values) for values in expected])
    assert figure.values is not None
    assert [row[3] for row in figure.values()[1] if row[0] == "BatchNorm"] == [written(values) for values in expected]


@pytest.mark.parametrize(
    ("figure", "probe", "name", "place"),
    [
        ("shift", "shift", "distance", 0),
        ("shift", "shift", "cosine", 1),
        ("conditioning", "conditioning", "hessian", 0),
        ("conditioning", "conditioning", "inputs", 1),
        ("scaling", "conditioning", "scaling", 0),
        ("decay", "noise", "zeta", 0),
    ],
)
def test_numbers_of_layers(figure: str, probe: str, name: str, place: int, three: Path) -> None:
    found = named(three, figure)
    results = by_seed(three, "bn", probe)
    values = [[results[seed][step]["layers"]["0"][name] for seed in range(3)] for step in STEPS]
    axes = drawn_axes(found)[place]
    np.testing.assert_allclose(thick(axes)[0].get_ydata(), [median(each) for each in values])
    np.testing.assert_allclose(shade(axes)[0], [min(each) for each in values])
    assert found.values is not None
    header, rows = found.values()
    own = [row for row in rows if row[:2] == ["BatchNorm", "0"]]
    assert [row[header.index(name)] for row in own] == [written(each) for each in values]


@pytest.mark.parametrize(("probe", "name"), [("spectrum", "learning_rate"), ("noise", "noise_scale")])
def test_numbers_of_the_network(probe: str, name: str, three: Path) -> None:
    found = named(three, probe)
    results = by_seed(three, "bn", probe)
    values = [[results[seed][step][name] for seed in range(3)] for step in STEPS]
    (axes,) = drawn_axes(found)
    np.testing.assert_allclose(thick(axes)[0].get_ydata(), [median(each) for each in values])
    np.testing.assert_allclose(shade(axes)[1], [max(each) for each in values])


def test_quantiles_of_activations(three: Path) -> None:
    axes, _ = drawn_axes(named(three, "histograms"))
    results = by_seed(three, "bn", "activations")

    def quantile(result: dict[str, Any], share: float) -> float:
        counts = result["layers"][0]["examples"][0]["counts"]
        wanted, below = share * sum(counts), 0.0
        for number, count in enumerate(counts):  # bins are 1 wide and begin at -2
            if below + count >= wanted:
                return -2.0 + number + (wanted - below) / count
            below += count
        raise AssertionError

    for line, share in zip(thick(axes), (0.95, 0.5, 0.05), strict=True):
        expected = [median(quantile(results[seed][step], share) for seed in range(3)) for step in STEPS]
        np.testing.assert_allclose(line.get_ydata(), expected)


def test_changes_of_activations(tmp_path: Path) -> None:
    for seed in range(3):
        record(tmp_path, "bn", seed, steps=(0, 1, 10, 11), results={"activations": activations})
    figure = named(tmp_path, "moments")
    results = by_seed(tmp_path, "bn", "activations")

    def change(seed: int, step: int) -> float:
        before, after = (results[seed][at]["layers"][0]["examples"][0]["mean"] for at in (step, step + 1))
        return abs(float(after) - float(before))

    (axes, _) = drawn_axes(figure)
    expected = [[change(seed, step) for seed in range(3)] for step in (0, 10)]
    np.testing.assert_allclose(thick(axes)[0].get_ydata(), [median(values) for values in expected])
    overall = [median(change(seed, step) for step in (0, 10)) for seed in range(3)]
    assert figure.finding == (
        f"Median change of their mean: {written(overall)} (BatchNorm; medians and ranges over 3 seeds)."
    )


@pytest.mark.slow
def test_titles_captions_and_the_page_say_how_many_seeds(three: Path, tmp_path: Path) -> None:
    of_probes = [figure for figure in figures(collect([three])) if figure.part == "probes"]
    assert len(of_probes) == 11  # no two steps follow each other: no change from step to step
    for figure in of_probes:
        assert "3 seeds" in figure.alt, figure.alt
        with mpl.rc_context(RC):
            title = figure.draw().legends[0].get_title().get_text()
        assert title.endswith("\nmedian over 3 seeds, shaded range")
        assert figure.values is not None
        header, rows = figure.values()
        assert {row[header.index("seeds")] for row in rows} == {"3"}
    write_page(collect([three]), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert ">Measured along the way, in medians over the seeds:<" in page
    assert page.count("Medians over the seeds [range]") == len(of_probes)
    save(of_probes[0], tmp_path / "one.pdf")
    assert (tmp_path / "one.pdf").stat().st_size > 1000


def test_seeds_of_different_lengths(tmp_path: Path) -> None:
    record(tmp_path, "bn", 0)
    record(tmp_path, "bn", 1, steps=STEPS[:2], verdict="diverged")
    record(tmp_path, "bn", 2)
    figure = named(tmp_path, "noise-")
    results = by_seed(tmp_path, "bn", "noise")
    (axes,) = drawn_axes(figure)
    (line,) = thick(axes)
    assert line.get_xdata().tolist() == [0, 10]
    expected = [[results[seed][step]["noise_scale"] for seed in range(3)] for step in STEPS[:2]]
    np.testing.assert_allclose(line.get_ydata(), [median(values) for values in expected])
    tails = [line for line in axes.get_lines() if line.get_linewidth() == 0.5]
    for tail, seed in zip(tails, (0, 2), strict=True):
        assert tail.get_xdata().tolist() == [10, 20, 30]
        np.testing.assert_allclose(tail.get_ydata(), [results[seed][step]["noise_scale"] for step in STEPS[1:]])
    (cross,) = (line for line in axes.get_lines() if line.get_marker() == "x")
    assert (cross.get_xdata(), cross.get_ydata()) == ([10], [results[1][10]["noise_scale"]])
    assert figure.values is not None
    rows = [row[1:] for row in figure.values()[1]]
    assert rows == [
        *([str(step), "3", written(values)] for step, values in zip(STEPS, expected, strict=False)),
        *(
            [str(step), f"only {seed}", format_number(results[seed][step]["noise_scale"])]
            for step in STEPS[2:]
            for seed in (0, 2)
        ),
    ]
    assert "BatchNorm: seed 1 diverged, at step 40, with 2 of 4 measurements." in figure.alt
    assert "what others have beyond that is thin, seed by seed. × is the last measurement" in figure.alt
    by_distance = named(tmp_path, "predictiveness").alt
    assert "seed 1 diverged" in by_distance and "×" not in by_distance


def test_a_seed_without_measurements_is_named_and_left_out(tmp_path: Path) -> None:
    noise = {"noise": RESULTS["noise"]}
    for seed in (0, 1):
        record(tmp_path, "bn", seed, results=noise)
    record(tmp_path, "bn", 2, results=noise, steps=(), verdict="diverged")
    record(tmp_path, "vanilla", 0, results=noise)
    figure = named(tmp_path, "noise-")
    assert "Lines are medians over the seeds (2 with BatchNorm and 1 with vanilla), shades the ranges." in figure.alt
    assert "BatchNorm: seed 2 (diverged) without a measurement, left out." in figure.alt
    assert "(medians and ranges over the seeds (" in figure.finding
    with mpl.rc_context(RC):
        assert "median over 1 to 2 seeds" in figure.draw().legends[0].get_title().get_text()


def test_a_minority_has_no_median(tmp_path: Path) -> None:
    for seed, values in enumerate([(1.0, 4.0, 5.0), (2.0, math.nan, math.nan), (9.0, 8.0, math.inf)]):
        events = [
            Probed(step, "noise", {"problem": None, "layers": {}, "noise_scale": value}, 0.1)
            for step, value in zip(STEPS, values, strict=False)
        ]
        record(tmp_path, "bn", seed, events=events, results={"noise": RESULTS["noise"]})
    figure = named(tmp_path, "noise-")
    (axes,) = drawn_axes(figure)
    np.testing.assert_array_equal(thick(axes)[0].get_ydata(), [2.0, 6.0, math.nan])
    assert figure.values is not None
    assert [row[-1] for row in figure.values()[1]] == ["2 [1–9]", "6 [4–8] (2 of 3 finite)", "– (1 of 3 finite)"]
    assert "A gap is where half of the seeds or more have no finite value: BatchNorm at 1 of 3 steps." in figure.alt
    assert "The median is over fewer seeds where others have no finite value: BatchNorm at 1 of 3 steps." in figure.alt


def test_seeds_that_share_no_step_are_drawn_one_by_one(tmp_path: Path) -> None:
    record(tmp_path, "bn", 0, steps=(0, 10))
    record(tmp_path, "bn", 1, steps=(5, 15))
    for figure in figures(collect([tmp_path])):
        drawn_axes(figure)
    (axes,) = drawn_axes(named(tmp_path, "spectrum"))
    assert [line.get_xdata().tolist() for line in axes.get_lines() if line.get_linewidth() == 0.5] == [
        [0, 10],
        [5, 15],
    ] * 2


def test_findings_of_seeds_say_what_may_be_chance() -> None:
    near = {"a": np.array([1.0, 2.0, 4.0]), "b": np.array([3.0, 5.0, 6.0]), "c": np.array([8.0, 9.0, 9.5])}
    assert compared("Best", "speed", near) == (
        "Best with a: speed 2 [1–4]; b 5 [3–6], c 9 [8–9.5] (medians and ranges over 3 seeds). The ranges of a and b "
        "overlap: their order may be chance."
    )
    assert compared("Best", "speed", {"a": np.array([1.0, 3.0])}) == (
        "Speed: 2 [1–3] (a; medians and ranges over 2 seeds)."
    )


def test_a_spread_of_one_seed_is_its_own_numbers() -> None:
    spread = Spread((SeedLine("0", np.array([0.0, 1.0]), np.array([math.inf, 2.0]), diverged=True),))
    assert spread.median.tolist() == [math.inf, 2.0]
    assert spread.tails == spread.broken == []
    assert format_spread(np.array([-2.0, 1.0, 3.0])) == "1 [−2 to 3]"
