"""`trimtab report`: writes a page from records."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import FAILED, PAGE, CommandError, need, place, words

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands


def add(commands: "Commands") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "report",
        help="make a page, and figures for a paper, from the records of runs and comparisons",
        description="Makes one self-contained page from finished and unfinished runs and comparisons. Records that "
        "cannot be read are named, on the page too, and the exit status is 1.",
    )
    parser.add_argument("folders", type=place, nargs="+", metavar="FOLDER", help="of runs and comparisons")
    parser.add_argument(
        "--out", type=place, metavar="FILE", help="of the page (default: FOLDER/report.html, of the first folder)"
    )
    parser.add_argument(
        "--figures",
        type=words,
        default=(),
        metavar="png,pdf",
        help="also draw each figure, as png, pdf or svg, into figures beside the page",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the page and the figures."""
    need("rich", "matplotlib")
    from trimtab.report import check_kinds, collect, write_figures, write_page

    out: Path = options.out or options.folders[0] / PAGE
    data = collect(options.folders)
    check_kinds(options.figures)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_page(data, out)
        print(out)
        for path in write_figures(data, out.parent / "figures", options.figures):
            print(path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error.strerror}; name another place with --out", FAILED) from error
    for problem in data.problems:
        print(f"trimtab: {problem}", file=sys.stderr)
    return FAILED if data.problems else 0
