"""Prints names with descriptions, for a terminal of any width."""

from collections.abc import Iterable

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.cli.terminal import Terminal

ROOM = 30
"""With fewer columns than this beside the names, what is said of them goes below."""


def print_entries(entries: Iterable[tuple[str, Text]]) -> None:
    """Print names and texts in two columns; on a narrow terminal, each text below its name."""
    console, listed = Terminal(), list(entries)
    widest = max((len(name) for name, _ in listed), default=0)
    if console.width - widest - 2 < ROOM:
        for name, text in listed:
            console.print(Text(name, "bold"), Padding(text, (0, 0, 0, 2)), overflow="fold")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in listed:
        table.add_row(Text(name), text)
    console.print(table)
