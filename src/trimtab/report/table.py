"""A comparison as a table for the terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trimtab.records import Cell, Comparison
from trimtab.report.formatting import (
    batch_label,
    format_count,
    format_exact,
    format_metric,
    format_range,
    join_words,
    method_label,
)
from trimtab.report.ranking import cells_by_setting, diverged_count, leaders, methods, reasons

WIDTH = 80
NUMBERS = 3
"""Of a cell: mean, range, learning rate. What else there is to say is below them."""


def table(comparison: Comparison, width: int = WIDTH) -> Group:
    """One row per network and batch size, one column per method.

    What is wider than so many columns has the ranges below the means, and what is still wider is cut into several
    tables. Where not even two methods fit side by side, each network and batch size has a table of its own, with a row
    per method.
    """
    order = methods(comparison)
    parts = _parts(comparison, order, width)
    where = "below it"
    tables: list[RenderableType]
    if _width(comparison, order, beside=True) <= width:
        tables = [_table(comparison, order, beside=True)]
    elif len(order) > 1 and len(parts) == len(order):
        tables, where = _narrow(comparison, width), "then"
    else:
        tables = [_table(comparison, part, beside=False) for part in parts]
    return Group(Text(table_title(comparison, where), "bold"), *tables, Text(notes(comparison), "italic dim"))


def table_title(comparison: Comparison, where: str = "below it") -> str:
    """What the table shows."""
    kind = "Test accuracy in %" if comparison.metric == "accuracy" else "Test loss"
    spread = "" if comparison.seeds == 1 else f" of {comparison.seeds} seeds [range]"
    return f"{kind}: mean{spread}; {where} the learning rate"


def _parts(comparison: Comparison, order: Sequence[str], width: int) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for method in order:
        if parts[-1] and _width(comparison, [*parts[-1], method], beside=False) > width:
            parts.append([])
        parts[-1].append(method)
    return parts


def _width(comparison: Comparison, order: Sequence[str], *, beside: bool) -> int:
    columns = [
        ["network", *(cell.network for cell in comparison.cells)],
        ["batch", *(batch_label(cell.batch_size) for cell in comparison.cells)],
    ]
    for method in order:
        cells = [cell for cell in comparison.cells if cell.method == method]
        columns.append([method_label(method), *(line for c in cells for line in _lines(c, comparison, beside=beside))])
    return 1 + sum(2 + max(map(len, column)) for column in columns)  # a blank before and one behind each


def _table(comparison: Comparison, order: Sequence[str], *, beside: bool) -> Table:
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    result.add_column("network", no_wrap=True)
    result.add_column("batch", justify="right", no_wrap=True)
    for method in order:
        result.add_column(escape(method_label(method)), justify="right", no_wrap=True)
    previous = None
    for (network, size), row in cells_by_setting(comparison).items():
        if previous not in (None, network):
            result.add_section()
        previous = network
        bold = leaders(row, comparison.metric)
        texts = [_text(row.get(method), comparison, bold=method in bold, beside=beside) for method in order]
        result.add_row(escape(network), batch_label(size), *texts)
    return result


def _narrow(comparison: Comparison, width: int) -> list[RenderableType]:
    """A heading and a table for each network and batch size: mean, range and learning rate behind each method."""
    widest = max(len(method_label(cell.method)) for cell in comparison.cells)
    numbers = {id(cell): _lines(cell, comparison, beside=False) for cell in comparison.cells}
    fits = all(widest + 1 + len(" ".join(lines[:NUMBERS])) <= width for lines in numbers.values())
    result: list[RenderableType] = []
    for (network, size), row in cells_by_setting(comparison).items():
        bold = leaders(row, comparison.metric)
        part = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=False)
        part.add_column(no_wrap=True)
        part.add_column(no_wrap=True)
        for method, cell in row.items():
            lines = numbers[id(cell)]
            text = Text("\n".join([" ".join(lines[:NUMBERS]), *lines[NUMBERS:]] if fits else lines))
            if method in bold and cell.mean is not None:
                text.stylize("bold", 0, len(format_metric(cell.mean, comparison.metric)))
            part.add_row(escape(method_label(method)), text)
        result += [Text(f"\n{network}, batch size {batch_label(size)}", "underline"), part]
    return [*result, Text()]


def _text(cell: Cell | None, comparison: Comparison, *, bold: bool, beside: bool) -> Text:
    if cell is None:
        return Text()
    text = Text("\n".join(_lines(cell, comparison, beside=beside)))
    if bold and cell.mean is not None:
        text.stylize("bold", 0, len(format_metric(cell.mean, comparison.metric)))
    return text


def _lines(cell: Cell, comparison: Comparison, *, beside: bool) -> list[str]:
    if cell.why_not:
        return ["–"]
    if cell.mean is None:
        return ["–" if comparison.finished else "…"]
    lines = [format_metric(cell.mean, comparison.metric)]
    if len(cell.trials) > 1:
        spread = format_range(cell.values, comparison.metric)
        lines = [f"{lines[0]} {spread}"] if beside else [*lines, spread]
    if cell.lr is not None:
        lines.append(f"{format_exact(cell.lr)}{'*' if cell.lr_at_edge else ''}")
    if diverged_count(cell):
        lines.append(f"{diverged_count(cell)}/{len(cell.trials)} diverged")
    if len(cell.trials) < comparison.seeds:
        lines.append(f"{len(cell.trials)}/{comparison.seeds} done")
    return lines


def notes(comparison: Comparison) -> str:
    """What a reader of the table must know, a line each."""
    lines = [f"{lengths(comparison)}.", f"{rates(comparison)}."]
    if comparison.seeds > 1:
        lines.append("Bold: the best mean of a row, and those whose range overlaps its own.")
    if any(cell.lr_at_edge for cell in comparison.cells):
        lines.append("* at the edge of the learning rates tried: a better one may lie outside.")
    if any(map(diverged_count, comparison.cells)):
        counts = "one that guesses" if comparison.metric == "accuracy" else "an infinite loss"
        lines.append(f"A run that diverged counts as {counts}.")
    lines += [f"– {join_words(where(cells))}: {reason}" for reason, cells in reasons(comparison).items()]
    if not comparison.finished:
        lines.append("… not done yet.")
    if "ln" in methods(comparison):
        lines.append("LayerNorm of images is GroupNorm with one group.")
    return "\n".join(lines)


def where(cells: Sequence[Cell]) -> list[str]:
    """Which methods cells are about, with networks and batch sizes, shortly."""
    sizes: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        sizes.setdefault((method_label(cell.method), cell.network), []).append(batch_label(cell.batch_size))
    networks: dict[tuple[str, str], list[str]] = {}
    for (method, network), found in sizes.items():
        networks.setdefault((method, join_words(found)), []).append(network)
    return [f"{method} at batch size {size} ({', '.join(found)})" for (method, size), found in networks.items()]


def lengths(comparison: Comparison) -> str:
    """How long was trained, as shortly as it can be said."""
    by_size: dict[str, set[str]] = {}
    for cell in comparison.cells:
        long = format_count(cell.epochs or 0, "epoch") if cell.steps is None else format_count(cell.steps, "step")
        by_size.setdefault(batch_label(cell.batch_size), set()).add(long)
    different = set().union(*by_size.values())
    if len(different) == 1:
        return f"Trained for {different.pop()}"
    return "Trained by batch size: " + ", ".join(f"{size}: {' or '.join(sorted(n))}" for size, n in by_size.items())


def rates(comparison: Comparison) -> str:
    """How the learning rates were chosen."""
    tried = {tuple(c.lr for c in cell.candidates) for cell in comparison.cells if cell.candidates}
    if not tried:
        return "Learning rates were given, not chosen"
    if len(tried) == 1:
        (rates,) = tried
        return f"Learning rates {join_words(map(format_exact, rates))} tried on validation data"
    smallest, largest = min(map(len, tried)), max(map(len, tried))
    several = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
    return f"{several} learning rates per method tried on validation data"
