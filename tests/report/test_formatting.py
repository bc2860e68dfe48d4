"""Sentences and tables from made-up results."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.helpers import NASTY, TEN
from trimtab.records import Candidate, Cell, Comparison, Metric, Trial
from trimtab.report import conclusion, table
from trimtab.report.formatting import format_exact, format_number, slug


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


def told(*cells: Cell, metric: Metric = "accuracy", finished: bool = True) -> list[str]:
    """The verdict, then the reservations."""
    lead, *rest = conclusion(comparison(*cells, metric=metric, finished=finished)).split("\n")
    assert all(line.startswith("- ") for line in rest)
    for sentence in (lead, *rest):
        assert sentence.endswith(".")
    return [lead, *(line[2:] for line in rest)]


def test_the_winner_comes_first_then_the_reservations() -> None:
    assert told(*CELLS) == [
        "BatchNorm has the highest mean test accuracy in 1 of 2 settings: batch size 64. vanilla has it in 1: batch "
        "size 1. At batch size 1 BNP is 10.0 points below vanilla.",
        "In 1 of 2 settings the range of another method over the 2 seeds overlaps that of the best: their order may be "
        "chance.",
        "BNP is behind the best by more than the seeds vary in 1 of 2 settings: batch size 64.",
        "BatchNorm cannot train in 1 setting: batch size 1.",
        "1 of 5 learning rates is at the edge of those tried: a better one may lie outside.",
    ]
    good = (cell("a", 4, "bn", 0.5), cell("a", 4, "bnp", 0.75), cell("a", 2, "bn", 0.7), cell("a", 2, "bnp", 0.6))
    assert told(*good) == [
        "BNP has the highest mean test accuracy in 1 of 2 settings: batch size 4. BatchNorm has it in 1: batch size 2. "
        "At batch sizes 4 and 2 BNP is on average 7.5 points above BatchNorm.",
        "There is one seed: another may give another order.",
    ]


def test_one_method_that_wins_everywhere_is_said_in_a_sentence() -> None:
    cells = [
        cell(net, n, m, v, v) for net in "ab" for n in (64, 32) for m, v in (("bn", 0.5), ("bnp", 0.75), ("ln", 0.6))
    ]
    assert told(*cells) == ["BNP has the highest mean test accuracy in all 4 settings."]


def test_who_is_close_is_named_and_who_is_behind_too() -> None:
    cells = cell("a", 9, "vanilla", 0.72, 0.74), cell("a", 9, "bn4", 0.73, 0.75), cell("a", 9, "bnp", 0.7, 0.71)
    assert told(*cells) == [
        "bn4 has the highest mean test accuracy, 74.0 %. BNP is 2.5 points below vanilla and 3.5 points below bn4.",
        "The ranges over the 2 seeds of vanilla and bn4 overlap: their order may be chance.",
    ]


def test_settings_that_not_all_methods_have_are_counted() -> None:
    cells = (
        *(cell("a", 4, "bn", 0.5, 0.5), cell("a", 4, "ln", 0.5, 0.5), cell("a", 4, "bnp", 0.9, 0.9)),
        *(cell("a", 1, "bn", why_not="no."), cell("a", 1, "ln", 0.6, 0.6), cell("a", 1, "bnp", 0.2, 0.2)),
    )
    lead, *rest = told(*cells)
    assert "40.0 points above BatchNorm (in 1 of 2 settings) and level with LayerNorm." in lead
    assert "BatchNorm cannot train in 1 setting: batch size 1." in rest


def test_of_many_methods_only_the_nearest_is_named() -> None:
    cells = [cell("a", 4, method, 0.9 - 0.1 * place, 0.9) for place, method in enumerate(("bn", "bnp", *"cdefg"))]
    lead = told(*cells)[0]
    assert lead.endswith("BNP is better than 5 of 6 others; 5.0 points below BatchNorm, the best of them.")
    lead = told(*(cell("a", 4, m, 0.5, 0.5) for m in ("bn", "bnp", *"cdefg")))[0]
    assert "share the highest mean test accuracy, 50.0 %." in lead and "better than 0 of 6 others; level with" in lead


def test_where_all_diverged_nobody_wins() -> None:
    def lost(method: str, size: int = 4) -> Cell:
        return replace(cell("a", size, method), lr=0.1, trials=(Trial(1, 0.1, True, "t"), Trial(2, 0.1, True, "t")))

    assert told(lost("bn"), lost("bnp")) == [
        "No method is best: in 1 setting every run diverged.",
        "2 runs of BatchNorm and 2 runs of BNP diverged.",
    ]
    one_good = cell("a", 2, "bn", 0.5, 0.5), cell("a", 2, "bnp", 0.6, 0.6)
    assert "In 1 setting every run diverged: batch size 4." in told(lost("bn"), lost("bnp"), *one_good)


def test_ties_are_called_ties() -> None:
    tie = (cell("a", 64, "bn", 0.5), cell("a", 64, "bnp", 0.5), cell("a", 32, "bn", 0.5), cell("a", 32, "bnp", 0.6))
    more = cell("b", 32, "bn", 0.5), cell("b", 32, "bnp", 0.6)
    assert told(*tie, *more)[0] == (
        "BNP has the highest mean test accuracy in 2 of 3 settings: a and b at batch size 32. BatchNorm and BNP share "
        "it in 1: a at batch size 64."
    )


def test_small_batches_are_named_only_if_there_are_any() -> None:
    large = (
        *(cell("a", 0, "bn", 0.5, 0.5), cell("a", 0, "bnp", 0.6, 0.6)),
        *(cell("a", 5, "bn", 0.5, 0.5), cell("a", 5, "bnp", 0.6, 0.6)),
        *(cell("a", 6, "bn", 0.7, 0.7), cell("a", 6, "bnp", 0.6, 0.6)),
    )
    assert told(*large) == [
        "BNP has the highest mean test accuracy in 2 of 3 settings: batch size 5 and full batch. BatchNorm has it in "
        "1: batch size 6.",
        "BNP is behind the best by more than the seeds vary in 1 of 3 settings: batch size 6.",
    ]


def test_of_losses_the_lowest_is_best_and_infinite_ones_have_no_distance() -> None:
    losses = (
        cell("a", 4, "vanilla", 0.5, math.inf),
        cell("a", 4, "bn", 0.25, 0.35),
        cell("a", 4, "bnp", 0.1, 0.1),
    )
    assert told(*losses, metric="loss") == [
        "BNP has the lowest mean test loss, 0.1. BNP is 0.2 below BatchNorm.",
        "1 run of vanilla diverged.",
    ]
    shown = comparison(*losses, metric="loss")
    assert "∞" in printed(shown) and "1/2 diverged" in printed(shown)
    assert bold(shown) == ["0.1"]
    tiny = cell("a", 4, "bn", 3e-7, 3e-7), cell("a", 4, "bnp", 1e-7, 1e-7)
    assert told(*tiny, metric="loss")[0] == "BNP has the lowest mean test loss, 10⁻⁷. BNP is 2·10⁻⁷ below BatchNorm."


def test_without_bnp_the_best_are_named() -> None:
    others = (
        *(cell("a", 4, "bn", 0.5, 0.5), cell("a", 4, "ln", 0.6, 0.6)),
        *(cell("a", 2, "bn", 0.5, 0.5), cell("a", 2, "ln", 0.7, 0.7)),
        *(cell("b", 2, "bn", 0.9, 0.9), cell("b", 2, "ln", 0.7, 0.7)),
    )
    assert told(*others) == [
        "LayerNorm has the highest mean test accuracy in 2 of 3 settings: a at batch sizes 4 and 2. BatchNorm has it "
        "in 1: b at batch size 2."
    ]
    lost = (cell("a", 4, "bn", math.inf), cell("a", 4, "ln", math.inf))
    assert told(*lost, metric="loss")[0] == "No method is best: in 1 setting every run diverged."


def test_only_settings_without_runs_to_come_count() -> None:
    cells = (*CELLS[:3], cell("mlp", 4, "vanilla", 0.1, 0.1), cell("mlp", 4, "bnp", 0.9))
    assert told(*cells, finished=False) == [
        "BatchNorm has the highest mean test accuracy, 96.0 %. BNP is 5.0 points above vanilla and 6.0 points below "
        "BatchNorm.",
        "The comparison is not finished: 1 of 2 settings is complete.",
    ]
    assert "1/2 done" in printed(comparison(*cells, finished=False))
    assert told(cell("a", 1, "bnp"), finished=False)[0] == "There are no two methods to compare yet."
    assert told(cell("a", 1, "bnp", 0.5)) == ["Only BNP has results: there is nothing to compare it with."]
    apart = cell("a", 1, "bnp", 0.5), cell("a", 2, "bn", 0.5)
    assert told(*apart) == ["No setting has results of two methods: there are those of BNP and BatchNorm."]
    nobody = told(cell("a", 1, "bnp", why_not="no."))
    assert nobody == ["No method could be trained.", "BNP cannot train in 1 setting: batch size 1."]


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
    [
        *((0.12345, "0.123"), (1234.5, "1234"), (0, "0"), (-0.0, "0"), (-0.5, "−0.5"), (math.inf, "∞")),
        *((1.5e-7, "1.5·10⁻⁷"), (3e12, "3·10¹²"), (1e-4, "10⁻⁴"), (-1e-4, "−10⁻⁴"), (-2.25e-10, "−2.25·10⁻¹⁰")),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert format_number(value) == text


def test_learning_rates_keep_their_digits_in_the_same_notation() -> None:
    assert [format_exact(x) for x in (0.1, 0.00015, 1e-5, 0.123456, 30.0)] == [
        "0.1",
        "1.5·10⁻⁴",
        "10⁻⁵",
        "0.123456",
        "30",
    ]
    text = printed(comparison(cell("a", 1, "bn", 0.5, lr=1e-5), cell("a", 1, "bnp", 0.5, lr=2e-4)))
    assert "10⁻⁵" in text and "2·10⁻⁴" in text and not re.search(r"\de-?\d", text)


def test_names_of_files() -> None:
    assert slug("../a b/c") == "a-b-c"
    assert slug(NASTY) == "script-alert-1-script-x"
    assert slug("///") == "x"
