"""`trimtab data`: lists, downloads and verifies data sets."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import CommandError, Terminated, add_data_root, need, size

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands


def add(commands: "Commands") -> None:
    """Declare `data list`, `data fetch` and `data verify`."""
    parser = commands.add_parser("data", help="list the data sets, fetch one, or verify files")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="say what is there, where, and how large")
    add_data_root(listing)
    listing.set_defaults(run=_list)
    fetching = actions.add_parser("fetch", help="download a data set from its official place")
    fetching.add_argument("name", metavar="NAME", help="as `trimtab data list` has it")
    add_data_root(fetching)
    fetching.set_defaults(run=_fetch)
    verifying = actions.add_parser(
        "verify",
        help="compare files with the official ones, by checksum",
        description="Compares the files that data sets are read from with the official ones. "
        "The exit status is 1 if one is damaged or missing.",
    )
    verifying.add_argument("name", metavar="NAME", nargs="?", help="only this data set (default: all that are there)")
    add_data_root(verifying)
    verifying.set_defaults(run=_verify)


def _list(options: argparse.Namespace) -> int:
    need("rich")
    from rich.text import Text

    from trimtab.cli.entries import print_entries
    from trimtab.data import inventory
    from trimtab.data.places import data_root

    entries = []
    for entry in inventory(options.data_root):
        state: str = entry.state
        if entry.paths:
            folders = dict.fromkeys(str(path.parent) for path in entry.paths)
            large = "large" if entry.size is None else size(entry.size)
            state += f", {large} in {', '.join(folders)}"
        if entry.fetchable and entry.state != "present":
            state += f"; {_remedy(entry.name, options.data_root)}"
        text = Text("\n".join([state, *entry.problems])).append(f"\n{entry.description}", "dim")
        entries.append((entry.name, text))
    print_entries(entries)
    print(f"Looked in {data_root(options.data_root)}. `trimtab data verify` compares checksums.")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from trimtab.data import verify_files
    from trimtab.data.places import data_root
    from trimtab.data.sources import NOT_FETCHED, SOURCES

    names = [*SOURCES, "imagefolder"] if options.name is None else [options.name]
    verified, wrong = 0, []
    for name in names:
        try:
            files = verify_files(name, options.data_root)
        except ValueError as error:
            raise CommandError(str(error)) from error
        for file in files:
            print(f"{file.state:<9} {file.sentence}")
        verified += len(files)
        if any(file.state in ("damaged", "missing") for file in files):
            wrong.append(name)
    if not verified:
        get, where = _remedy(options.name or "NAME", options.data_root), data_root(options.data_root)
        if options.name is None:
            raise CommandError(f"none of {', '.join(names)} was found in {where}; get one with: {get}", status=1)
        get = get if options.name in NOT_FETCHED else f"get it with: {get}"
        raise CommandError(f"{options.name} was not found in {where}; {get}", status=1)
    for name in wrong:
        print(f"To get {name} anew: {_remedy(name, options.data_root)}")
    return 1 if wrong else 0


def _remedy(name: str, root: Path | None) -> str:
    """What to do for a data set that is damaged or not there whole."""
    from trimtab.data.fetch import in_the_way
    from trimtab.data.places import data_root, fetch_command
    from trimtab.data.sources import NOT_FETCHED, SOURCES

    if name in NOT_FETCHED:
        return NOT_FETCHED[name].removesuffix(".")
    command = fetch_command(name, root)
    other = in_the_way(name, data_root(root)) if name in SOURCES else None
    return command if other is None else f"move {other} away, then {command}"


def _fetch(options: argparse.Namespace) -> int:
    need("rich")
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from trimtab.cli.terminal import Terminal
    from trimtab.data import Progress as Fetched
    from trimtab.data import fetch

    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Terminal(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks = {}

        def show(fetched: Fetched) -> None:
            if fetched.file not in tasks:
                tasks[fetched.file] = progress.add_task(fetched.file, total=fetched.total)
            progress.update(tasks[fetched.file], completed=fetched.done, total=fetched.total)

        try:
            paths = fetch(options.name, options.data_root, report=show)
        except (KeyboardInterrupt, Terminated) as error:
            status = 143 if isinstance(error, Terminated) else 130
            raise CommandError("interrupted; the same command goes on where it stopped", status) from None
    for path in paths:
        print(path)
    return 0
