"""Tables, figures and sentences from made-up results."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from trimtab.records import Cell, Comparison
from trimtab.report import conclusion, draw, table


def cell(network: str, size: int, method: str, *accuracies: float, edge: bool = False) -> Cell:
    return Cell(network, size, 1, method, 0.1 if accuracies else None, edge, accuracies)


CELLS = (
    cell("mlp", 64, "vanilla", 0.8, 0.9),
    cell("mlp", 64, "bn", 0.95, 0.97),
    cell("mlp", 64, "bnp", 0.9, 0.9),
    cell("mlp", 1, "vanilla", 0.5, 0.6),
    cell("mlp", 1, "bn"),
    cell("mlp", 1, "bnp", 1.0, 0.0, edge=True),
)


def comparison(cells: tuple[Cell, ...] = CELLS) -> Comparison:
    return Comparison(
        command="trimtab demo",
        data="made up",
        machine="none",
        versions={},
        seconds=1.0,
        learning_rates=(0.1, 0.3),
        cells=cells,
        conclusion=conclusion(cells),
        figure="demo.png",
    )


def test_the_sentence_says_what_there_is() -> None:
    assert conclusion(CELLS) == (
        "BNP has the highest mean test accuracy in 0 of 2 settings; over the batch size 1 it is on average "
        "5.0 points below the plain network."
    )
    good = (cell("a", 4, "bn", 0.5), cell("a", 4, "bnp", 0.75), cell("a", 2, "bn", 0.7), cell("a", 2, "bnp", 0.6))
    assert conclusion(good) == (
        "BNP has the highest mean test accuracy in 1 of 2 settings; over the batch sizes 4 and 2 it is on average "
        "7.5 points above BatchNorm."
    )


def test_ties_are_called_ties() -> None:
    tie = (cell("a", 64, "bn", 0.5), cell("a", 64, "bnp", 0.5), cell("a", 32, "bn", 0.5), cell("a", 32, "bnp", 0.6))
    assert conclusion(tie) == "BNP has the highest mean test accuracy in 2 of 2 settings (1 of them a tie)."


def test_the_sentence_is_computed_without_small_batches() -> None:
    assert conclusion(CELLS[:3]) == "BNP has the highest mean test accuracy in 0 of 1 settings."


def test_the_table_fits_80_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(comparison()))
    text = console.export_text()
    assert "50.0 [0–100]" in text
    assert "0.1*" in text
    assert "96.0 [95–97]" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_the_figure_is_drawn_headless_even_at_0_and_100_percent(kind: str, tmp_path: Path) -> None:
    draw(comparison(), tmp_path / f"figure.{kind}")
    assert (tmp_path / f"figure.{kind}").stat().st_size > 5000
    assert len(list(tmp_path.iterdir())) == 1


def test_a_figure_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not supported"):
        draw(comparison(), tmp_path / "figure.nonsense")
    assert list(tmp_path.iterdir()) == []
