"""A comparison as a table for the terminal."""

import math
from collections.abc import Iterable

from rich.table import Table

from trimtab.records import Cell, Comparison

HEADINGS = {"vanilla": "vanilla", "bn": "BatchNorm", "ln": "LayerNorm", "bnp": "BNP"}


def table(comparison: Comparison) -> Table:
    """One row per network and batch size, one column per method; the best mean of a row is bold."""
    seeds = max(len(cell.accuracies) for cell in comparison.cells)
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    epochs = {cell.batch_size: cell.epochs for cell in comparison.cells}
    passes = ", ".join(f"{number} at {size}" for size, number in epochs.items())
    result = Table(
        title=f"Test accuracy in %: mean of {count} \\[range]; below it the learning rate",
        caption=f"Epochs by batch size: {passes}.\n"
        f"Rates {_listed(comparison.learning_rates)} tried on validation data.\n"
        "* at the edge of these: a better one may lie outside.\n"
        "– BatchNorm cannot train on one row. LayerNorm of images is GroupNorm with one group.",
        title_justify="left",
        caption_justify="left",
        title_style="bold",
    )
    methods = list(dict.fromkeys(cell.method for cell in comparison.cells))
    result.add_column("network", no_wrap=True)
    result.add_column("batch", justify="right", no_wrap=True)
    for method in methods:
        result.add_column(HEADINGS.get(method, method), justify="right", no_wrap=True)
    rows: dict[tuple[str, int], dict[str, Cell]] = {}
    for cell in comparison.cells:
        rows.setdefault((cell.network, cell.batch_size), {})[cell.method] = cell
    previous = None
    for (network, size), row in rows.items():
        best = max(cell.mean or 0 for cell in row.values())
        if previous not in (None, network):
            result.add_section()
        previous = network
        texts = [_text(row[method], best) for method in methods]
        result.add_row(network.removeprefix("small-"), str(size), *texts)
    return result


def _text(cell: Cell, best: float) -> str:
    if cell.mean is None or cell.lr is None:
        return "–"
    low, high = math.floor(100 * min(cell.accuracies)), math.ceil(100 * max(cell.accuracies))
    mean = f"{100 * cell.mean:.1f}"
    mean = f"[bold]{mean}[/bold]" if cell.mean == best else mean
    return f"{mean} \\[{low}–{high}]\n{cell.lr:g}{'*' if cell.lr_at_edge else ''}"


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
