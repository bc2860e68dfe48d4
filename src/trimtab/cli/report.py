"""`trimtab report`: records in, a page out."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import PAGE, CommandError, need

if TYPE_CHECKING:
    from trimtab.cli.common import Commands

KINDS = ("png", "pdf", "svg")


def add(commands: "Commands") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "report",
        help="make a page, and figures for a paper, from the records of runs and comparisons",
        description="Makes one self-contained page from finished and unfinished runs and comparisons.",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="of runs and comparisons")
    parser.add_argument("--out", type=Path, help="file of the page (FOLDER/report.html, of the first folder)")
    parser.add_argument(
        "--figures",
        type=_kinds,
        default=(),
        metavar="png,pdf",
        help="also draw each figure, into figures beside the page",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the page and the figures."""
    need("rich", "matplotlib")
    from trimtab.report import collect, write_figures, write_page

    out: Path = options.out or options.folders[0] / PAGE
    try:
        material = collect(options.folders)
        write_page(material, out)
        print(out)
        for path in write_figures(material, out.parent / "figures", options.figures):
            print(path)
    except ValueError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(
            f"cannot write to {error.filename or out}: {error.strerror}; name another place with --out"
        ) from error
    return 0


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(text.split(",")))
    if not set(kinds) <= set(KINDS):
        raise argparse.ArgumentTypeError(f"must be some of {','.join(KINDS)}, not {text!r}")
    return kinds
