"""Sentences and tables from made-up results."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.helpers import NASTY, TEN
from trimtab.records import Candidate, Cell, Comparison, Metric, Trial
from trimtab.report import conclusion, table
from trimtab.report.words import number, slug


def cell(network: str, size: int, method: str, *values: float, lr: float = 0.1, why_not: str | None = None) -> Cell:
    tried = tuple(Candidate(rate, 0.5, 1.0, "c") for rate in (0.03, 0.1, 0.3))
    trials = tuple(Trial(seed, value, math.isinf(value), "t") for seed, value in enumerate(values))
    return Cell(network, size, method, 5, None, "sgd", tried, lr if values else None, trials, why_not)


CELLS = (
    cell("mlp", 64, "vanilla", 0.8, 0.9),
    cell("mlp", 64, "bn", 0.95, 0.97),
    cell("mlp", 64, "bnp", 0.9, 0.9),
    cell("mlp", 1, "vanilla", 0.5, 0.6),
    cell("mlp", 1, "bn", why_not="one row has no variance."),
    cell("mlp", 1, "bnp", 0.9, 0.0, lr=0.3),
)


def comparison(*cells: Cell, metric: Metric = "accuracy", finished: bool = True) -> Comparison:
    seeds = max(len(cell.trials) for cell in cells)
    parts = (1000, 397, 400)
    return Comparison("trimtab demo", "made up", parts, metric, "none", {}, 1, seeds, finished, cells)


def printed(told: Comparison) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(told))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    return text


def bold(told: Comparison) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True)
    console.print(table(told))
    pieces = console.export_text(styles=True).split("\x1b[1m")[1:]
    texts = [piece.split("\x1b")[0].strip() for piece in pieces]
    return [text for text in texts if text[:1].isdigit()]  # not the headings


def test_the_sentence_says_what_there_is() -> None:
    assert conclusion(comparison(*CELLS)) == (
        "The highest mean test accuracy in 2 settings: BatchNorm in 1 (mlp at batch size 64), vanilla "
        "in 1 (mlp at batch "
        "size 1). In 1 of these the range of another method over the seeds overlaps that of the best: the seeds do not "
        "tell them apart. Of the 2 in which BNP is not best, that is so for it in 1. Over the batch size 1 BNP is on "
        "average 10.0 points below the plain network. Cannot train: BatchNorm in 1 setting. 1 of 5 "
        "learning rates is at the edge of those tried: a better one may lie outside."
    )
    good = (cell("a", 4, "bn", 0.5), cell("a", 4, "bnp", 0.75), cell("a", 2, "bn", 0.7), cell("a", 2, "bnp", 0.6))
    assert conclusion(comparison(*good)) == (
        "The highest mean test accuracy in 2 settings: BNP in 1 (a at batch size 4), BatchNorm in 1 (a "
        "at batch size 2). "
        "There is one seed: what another would give is not known. Over the batch sizes 4 and 2 BNP is on average "
        "7.5 points above BatchNorm."
    )


def test_who_is_close_is_named_and_who_is_behind_too() -> None:
    cells = cell("a", 9, "vanilla", 0.72, 0.74), cell("a", 9, "bn4", 0.73, 0.75), cell("a", 9, "bnp", 0.7, 0.71)
    assert conclusion(comparison(*cells)) == (
        "bn4 has the highest mean test accuracy. The ranges over the seeds of vanilla and bn4 overlap: "
        "they do not tell "
        "these apart. BNP is 2.5 points below the plain network and 3.5 points below bn4."
    )


def test_settings_that_not_all_methods_have_are_counted() -> None:
    cells = (
        *(cell("a", 4, "bn", 0.5, 0.5), cell("a", 4, "ln", 0.5, 0.5), cell("a", 4, "bnp", 0.9, 0.9)),
        *(cell("a", 1, "bn", why_not="no."), cell("a", 1, "ln", 0.6, 0.6), cell("a", 1, "bnp", 0.2, 0.2)),
    )
    told = conclusion(comparison(*cells))
    assert "40.0 points above BatchNorm (in 1 of 2 settings) and level with LayerNorm" in told
    assert "Cannot train: BatchNorm in 1 setting." in told


def test_where_all_diverged_nobody_wins() -> None:
    def lost(method: str) -> Cell:
        return replace(cell("a", 4, method), lr=0.1, trials=(Trial(1, 0.1, True, "t"), Trial(2, 0.1, True, "t")))

    assert conclusion(comparison(lost("bn"), lost("bnp"))) == (
        "In 1 setting every run diverged. Runs that diverged: 2 of BatchNorm, 2 of BNP."
    )


def test_ties_are_called_ties() -> None:
    tie = (cell("a", 64, "bn", 0.5), cell("a", 64, "bnp", 0.5), cell("a", 32, "bn", 0.5), cell("a", 32, "bnp", 0.6))
    assert conclusion(comparison(*tie)).startswith(
        "The highest mean test accuracy in 2 settings, 1 tie among them: BNP in 2 (a at batch size 64 "
        "and 32), BatchNorm "
        "in 1 (a at batch size 64)."
    )


def test_small_batches_are_named_only_if_there_are_any() -> None:
    large = (
        *(cell("a", 0, "bn", 0.5, 0.5), cell("a", 0, "bnp", 0.6, 0.6)),
        *(cell("a", 5, "bn", 0.5, 0.5), cell("a", 5, "bnp", 0.6, 0.6)),
    )
    assert conclusion(comparison(*large)) == (
        "The highest mean test accuracy in 2 settings: BNP in 2 (a at batch size all and 5)."
    )


def test_of_losses_the_lowest_is_best_and_infinite_ones_have_no_distance() -> None:
    losses = (
        cell("a", 4, "vanilla", 0.5, math.inf),
        cell("a", 4, "bn", 0.25, 0.35),
        cell("a", 4, "bnp", 0.1, 0.1),
    )
    told = comparison(*losses, metric="loss")
    assert conclusion(told) == (
        "BNP has the lowest mean test loss. BNP is 0.2 below BatchNorm. Runs that diverged: 1 of vanilla."
    )
    assert "∞" in printed(told) and "1/2 diverged" in printed(told)
    assert bold(told) == ["0.1"]


def test_without_bnp_the_best_are_named() -> None:
    others = (
        *(cell("a", 4, "bn", 0.5, 0.5), cell("a", 4, "ln", 0.6, 0.6)),
        *(cell("a", 2, "bn", 0.5, 0.5), cell("a", 2, "ln", 0.7, 0.7)),
        *(cell("b", 2, "bn", 0.9, 0.9), cell("b", 2, "ln", 0.7, 0.7)),
    )
    assert conclusion(comparison(*others)) == (
        "The highest mean test accuracy in 3 settings: LayerNorm in 2 (a at batch size 4 and 2), BatchNorm in 1 (b at "
        "batch size 2)."
    )
    lost = (cell("a", 4, "bn", math.inf), cell("a", 4, "ln", math.inf))
    assert conclusion(comparison(*lost, metric="loss")).startswith("In 1 setting every run diverged.")


def test_only_settings_without_runs_to_come_count() -> None:
    cells = (*CELLS[:3], cell("mlp", 4, "vanilla", 0.1, 0.1), cell("mlp", 4, "bnp", 0.9))
    told = comparison(*cells, finished=False)
    assert conclusion(told) == (
        "BatchNorm has the highest mean test accuracy. BNP is 5.0 points above the plain network and 6.0 points below "
        "BatchNorm. The comparison is not finished: 1 of 2 settings complete."
    )
    assert "1/2 done" in printed(told)
    assert conclusion(comparison(cell("a", 1, "bnp"), finished=False)).startswith("There are no two methods")
    assert conclusion(comparison(cell("a", 1, "bnp", 0.5))).startswith("No setting has results of two methods")
    assert (
        conclusion(comparison(cell("a", 1, "bnp", why_not="no.")))
        == "No method could be trained. Cannot train: BNP in 1 setting."
    )


def test_the_table_says_what_there_is() -> None:
    text = printed(comparison(*CELLS))
    for part in (
        "45.0 [0.0–90.0]",
        "0.3*",
        "96.0 [95.0–97.0]",
        "– BatchNorm at batch size 1 (mlp): one row has no variance.",
    ):
        assert part in text
    assert bold(comparison(*CELLS)) == ["96.0", "55.0", "45.0"]
    assert text.count("one row has no variance") == 1


def test_an_open_cell_is_open() -> None:
    text = printed(comparison(*CELLS[:2], cell("mlp", 64, "bnp"), finished=False))
    assert text.count("…") == 2  # in the cell and in the note


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
@pytest.mark.parametrize("methods", [TEN[:4], TEN])
def test_the_table_fits_80_columns(methods: tuple[str, ...], metric: Metric) -> None:
    cells = [
        cell(net, n, m, 0.97123, 0.98345, 1.0) for net in ("small-cnn", "mlp3x100") for n in (64, 1) for m in methods
    ]
    text = printed(comparison(*cells, metric=metric))
    assert text.count("network") == (1 if len(methods) == 4 else text.count("batch"))
    for method in TEN[4:] if len(methods) > 4 else ():
        assert ("GroupNorm" if method == "gn" else method) in text


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
@pytest.mark.parametrize("methods", [TEN[:2], TEN[:4], TEN])
@pytest.mark.parametrize("width", [30, 40, 60, 120])
def test_a_narrow_table_stays_whole(width: int, methods: tuple[str, ...], metric: Metric) -> None:
    """Every number is there and none is cut, whatever the width."""
    values = (9.7123e4, 9.8345e4, 9.9e4) if metric == "loss" else (0.97123, 0.98345, 1.0)
    cells = [cell(net, n, m, *values) for net in ("small-cnn", "mlp3x100") for n in (64, 1) for m in methods]
    told = comparison(*cells, metric=metric)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table(told, width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    mean, spread = ("98156", "[97123–99000]") if metric == "loss" else ("98.5", "[97.1–100.0]")
    assert text.count(mean) == text.count(spread) == len(cells)
    if width == 30:
        assert text.count("batch size") == 4  # a table for each
    assert "…" not in text


def test_a_narrow_table_says_what_went_wrong_below_the_numbers() -> None:
    console = Console(width=40, record=True, file=io.StringIO())
    console.print(table(comparison(*CELLS), 40))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    place = lines.index("mlp, batch size 1")
    assert lines[place + 1 : place + 4] == [
        "vanilla   55.0 [50.0–60.0] 0.1",
        "BatchNorm –",
        "BNP       45.0 [0.0–90.0] 0.3*",
    ]


def test_names_are_not_markup() -> None:
    assert "[bold]x" in printed(comparison(cell("a", 1, "[bold]x", 0.5), cell("[red]", 1, "bn", 0.5)))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (1234.5, "1234"), (0, "0"), (1.5e-7, "1.50e-7"), (3e12, "3.00e12"), (math.inf, "∞")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_names_of_files() -> None:
    assert slug("../a b/c") == "a-b-c"
    assert slug(NASTY) == "script-alert-1-script-x"
    assert slug("///") == "x"
