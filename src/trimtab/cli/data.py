"""`trimtab data`: what is there, and getting what is not."""

import argparse
from typing import TYPE_CHECKING

from trimtab.cli.common import CommandError, add_data_root, need

if TYPE_CHECKING:
    from trimtab.cli.common import Commands


def add(commands: "Commands") -> None:
    """Declare `data list` and `data fetch`."""
    parser = commands.add_parser("data", help="list the data sets, or fetch one")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="say what is there, where, and how large")
    add_data_root(listing)
    listing.set_defaults(run=_list)
    fetching = actions.add_parser("fetch", help="download a data set from its official place")
    fetching.add_argument("name", metavar="NAME", help="as `trimtab data list` has it")
    add_data_root(fetching)
    fetching.set_defaults(run=_fetch)


def _list(options: argparse.Namespace) -> int:
    need("rich")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from trimtab.data import inventory
    from trimtab.data.places import data_root

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("data set", "here", "size", "where"):
        table.add_column(heading, overflow="fold")
    for entry in inventory(options.data_root):
        folders = dict.fromkeys(str(path.parent) for path in entry.paths)
        where = ", ".join(folders) or (f"trimtab data fetch {entry.name}" if entry.fetchable else "")
        table.add_row(entry.name, entry.state, _size(entry.size) if entry.paths else "", escape(where))
        table.add_row("", "", "", f"[dim]{entry.description}[/dim]")
    Console().print(table)
    print(f"Looked in {data_root(options.data_root)}.")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    need("rich")
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from trimtab.data import Progress as Fetched
    from trimtab.data import fetch

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks = {}

        def show(fetched: Fetched) -> None:
            if fetched.file not in tasks:
                tasks[fetched.file] = progress.add_task(fetched.file, total=fetched.total)
            progress.update(tasks[fetched.file], completed=fetched.done, total=fetched.total)

        try:
            paths = fetch(options.name, options.data_root, report=show)
        except ValueError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("interrupted; the same command goes on where it stopped", status=130) from None
    for path in paths:
        print(path)
    return 0


def _size(number: float | None) -> str:
    if number is None:
        return "large"
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
