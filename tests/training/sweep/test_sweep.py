"""Whole sweeps: both engines, interruptions, refusals, records and pages."""

import signal
import time
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.processes import Command
from trimtab.cli import main
from trimtab.records import RESULTS, GridCell, PredictedBoundary, Restart, Sweep, SweptAxis
from trimtab.report.heat_maps import LINES, heat_maps
from trimtab.report.styles import LIGHT
from trimtab.training import checkpoint
from trimtab.training.sweep.axes import Axis
from trimtab.training.sweep.folder import STACKS
from trimtab.training.sweep.plan import PLAN, Grid
from trimtab.training.sweep.runner import SweepRunner

CPU = torch.device("cpu")
GIVEN = {"data": "digits", "network": "small-mlp", "method": "ln", "steps": 15, "loss": "squared", "batch_size": 32}
AXES = (Axis.parse("lr=0.01,0.1,1e8"), Axis.parse("gamma=0.5,1"))
WORDS = ["sweep", "--data", "digits", "--network", "small-mlp", "--method", "bn", "--steps", "400", "--restarts", "2"]
WORDS += ["--axis", "lr=0.001..10:4", "--axis", "gamma=0.1..3:3", "--out", "s", "--no-predict", "--threads", "1"]


def sweep(out: Path, engine: str, **options: object) -> Sweep:
    grid = Grid({**GIVEN, **options}, AXES, 2)
    return SweepRunner(grid, out, command="c", device=CPU, engine=engine, jobs=1, threads=1).run()


@pytest.mark.usefixtures("forked_workers")
def test_both_engines_have_one_result(tmp_path: Path) -> None:
    stacked, separate = sweep(tmp_path / "a", "stacked"), sweep(tmp_path / "b", "separate")
    assert [cell.values for cell in stacked.cells] == [(r, g) for r in AXES[0].values for g in AXES[1].values]
    for ours, theirs in zip(stacked.cells, separate.cells, strict=True):
        assert [(one.seed, one.state, one.exploded_at) for one in ours.restarts] == [
            (one.seed, one.state, one.exploded_at) for one in theirs.restarts
        ]
        for one, other in zip(ours.restarts, theirs.restarts, strict=True):
            assert one.loss == (None if other.loss is None else pytest.approx(other.loss, rel=1e-3))
    assert {one.state for one in stacked.cells[-1].restarts} == {"exploded"}
    assert stacked.predictions == separate.predictions
    assert stacked.boundary("exploded") == separate.boundary("exploded")
    assert Sweep.read(tmp_path / "a") == stacked


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_interrupted_ends_with_the_same_results(tmp_path: Path) -> None:
    whole = Command(WORDS, tmp_path / "whole")
    assert whole.end() == 0, whole.streams()
    folder = tmp_path / "parts" / "s"
    results, state = folder / RESULTS, folder / STACKS / "0000.pt"
    steps = [0]
    for number in (signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        command = Command(WORDS, tmp_path / "parts")
        command.wait_until(results.exists)
        time.sleep(0.2)
        command.send(number)
        assert command.end() != 0, "it was done before the signal came"
        steps.append(checkpoint.load(state, CPU)["stack"]["step"])
    assert 0 < steps[1] <= steps[2] <= steps[3] < 400
    last = Command(WORDS, tmp_path / "parts")
    assert last.end() == 0, last.streams()
    assert results.read_bytes() == (tmp_path / "whole" / "s" / RESULTS).read_bytes()


REFUSED = [
    (["--axis", "lr=1,2"], "two axes or more"),
    (["--axis", "lr=1,2", "--axis", "lr=3,4"], "an axis twice"),
    (["--axis", "lr=1,2", "--axis", "rho=0.5,0.9"], "rho means nothing to bn"),
    (["--axis", "lr=1,2", "--axis", "momentum=0.5,2"], "momentum must be in"),
    (["--axis", "lr=1,2", "--axis", "gamma=1,2", "--lr", "1"], "is an axis and has a value of its own"),
    (["--axis", "lr=1,2", "--axis", "validation=0,300"], "give --evaluate-on test"),
    (["--axis", "lr=1,2", "--axis", "gamma=1,2", "--seed", str(2**63 - 1), "--restarts", "2"], "below 2^63"),
    (["--axis", "lr=1,2", "--axis", "gamma=1,2", "--engine", "stacked", "--jobs", "2"], "is for separate networks"),
    (["--axis", "lr=1,2", "--axis", "batch_size=5000,6000"], "none of these networks can be trained"),
    (["--axis", "lr=1..2:9999", "--axis", "gamma=1..2:9999"], "the most; take fewer values"),
    (["--axis", "lr=1,2", "--axis", "zeta=0,1", "--engine", "stacked", "--compile"], "stacks are not compiled"),
    (
        ["--axis", "lr=1,2", "--axis", "rho=0,0.5", "--method", "bnp", "--network", "small-cnn", "--engine", "stacked"],
        "BNP is",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    method = [] if "--method" in words else ["--method", "bn"]
    assert main(["sweep", "--network", "small-mlp", "--steps", "2", *method, *words, "--out", str(out)]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
    assert not out.exists()


def test_too_little_memory_or_disk_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("trimtab.training.sweep.memory.free_memory", lambda device: 1000)
        with pytest.raises(ValueError, match="of memory are free"):
            sweep(tmp_path / "a", "stacked")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(ValueError, match="MB are free there"):
        sweep(tmp_path / "a", "stacked")
    assert not (tmp_path / "a").exists()


def test_another_sweep_in_the_folder_is_refused(tmp_path: Path) -> None:
    sweep(tmp_path / "a", "stacked")
    before = (tmp_path / "a" / PLAN).read_bytes()
    with pytest.raises(ValueError, match="holds another sweep"):
        sweep(tmp_path / "a", "stacked", steps=16)
    assert (tmp_path / "a" / PLAN).read_bytes() == before


@pytest.mark.slow
def test_the_page_and_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "--network", "small-mlp", "--method", "bn", "--steps", "3", "--axis", "lr=0.1..1e6:3"]
    words += ["--axis", "gamma=1,2", "--axis", "zeta=0,0.1", "--out", str(tmp_path / "s"), "--figures", "png,pdf"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "networks: " in printed
    figures = {path.name for path in (tmp_path / "s" / "figures").iterdir()}
    assert {"state.png", "state.pdf", "loss.png", "explosion.pdf"} <= figures
    page = (tmp_path / "s" / "report.html").read_text()
    assert "η*: train mode" in page
    assert "explodes from" in page
    assert main(["report", str(tmp_path / "s")]) == 0


def test_boundaries() -> None:
    def cell(values: tuple[float, float], *states: str) -> GridCell:
        return GridCell(values, tuple(Restart(i, state, None, None, None) for i, state in enumerate(states)))  # type: ignore[arg-type]

    axes = (SweptAxis("gamma", (1.0, 2.0)), SweptAxis("lr", (0.1, 1.0, 10.0, 100.0)))
    ends = [("dead", "trained"), ("trained", "trained"), ("dead", "trained"), ("exploded", "dead")]
    cells = [cell((1.0, lr), *states) for lr, states in zip(axes[1].values, ends, strict=True)]
    cells += [cell((2.0, lr), "trained") for lr in axes[1].values]
    made = Sweep(
        *("c", {}, axes, (0, 1), 5, "test", 0.1, "stacked", "because", "m", {}, True, tuple(cells)),
        predictions=(PredictedBoundary("p", "d", (5.0, None)),),
    )
    assert made.boundary("exploded") == [100.0, None]
    assert made.boundary("untrained") == [10.0, None]


def test_a_narrow_range_of_colours_has_more_than_one_number() -> None:
    axes = (SweptAxis("lr", (0.1, 1.0)), SweptAxis("gamma", (1.0, 2.0)))
    losses = iter((0.98, 1.01, 1.3, 1.9))
    cells = tuple(
        GridCell(values, (Restart(0, "trained", next(losses), 0.5, None),))
        for values in product(*(one.values for one in axes))
    )
    made = Sweep(
        *("c", {"network": "n", "method": "bn", "data": "d"}, axes, (0,), 5, "test", 0.1),
        *("stacked", "because", "m", {}, True, cells),
    )
    bar = heat_maps(made)[1].draw().axes[-1]
    assert [text.get_text() for text in bar.get_yticklabels()] == ["1", "1.25", "1.5", "1.75"]


def test_a_theory_has_one_colour_and_panels_that_are_left_out_are_told() -> None:
    axes = (
        SweptAxis("lr", (0.1, 1.0)),
        SweptAxis("gamma", (1.0, 2.0)),
        SweptAxis("zeta", tuple(map(float, range(13)))),
    )
    cells = tuple(
        GridCell(values, (Restart(0, "trained", 1.0, 0.5, None),)) for values in product(*(one.values for one in axes))
    )
    made = Sweep(
        *("c", {"network": "n", "method": "bn", "data": "d", "loss": "squared"}, axes, (0,), 5, "test", 0.1),
        *("stacked", "because", "m", {}, True, cells),
        predictions=(PredictedBoundary("train mode", "d", (0.5,) * 26),),
    )
    first = heat_maps(made)[0]
    assert "The first 12 of 13 panels" in first.caption
    figure = first.draw()
    assert len(figure.axes) == 12
    assert figure.axes[0].lines[-1].get_color() == LIGHT[LINES["train mode"][0]]
    assert figure.legends[0].get_title().get_text().endswith("squared loss")
