"""`trimtab claims report`: all verdicts as documents and as a page."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import FAILED, CommandError, need, place

if TYPE_CHECKING:
    from trimtab.claims import RecordStore
    from trimtab.cli.parsing import Commands, Parser


def add_report(actions: "Commands", folder: Path) -> "Parser":
    """Declare `claims report`; the page goes to a folder if none is named."""
    reporting = actions.add_parser(
        "report",
        help="write all verdicts as Markdown and as a page",
        description="Writes all claims with their verdicts and numbers as Markdown, a row for each claim, and as one "
        "self-contained page with figures and filters; with --docs also a document with figures for each paper. The "
        "same records give the same files.",
    )
    reporting.add_argument(
        "--out", type=place, default=folder, metavar="FOLDER", help="of the page, claims.html (default: %(default)s)"
    )
    reporting.add_argument(
        "--markdown", type=place, default=Path("CLAIMS.md"), metavar="FILE", help="(default: %(default)s)"
    )
    reporting.add_argument(
        "--readme", type=place, metavar="FILE", help="also put the table of verdicts between its marks in this file"
    )
    reporting.add_argument(
        "--docs", type=place, metavar="FOLDER", help="also write a document for each paper, with its figures, there"
    )
    return reporting


def report(options: argparse.Namespace, store: "RecordStore") -> int:
    """Write the documents and the page."""
    need("matplotlib", "yaml")
    from trimtab.claims.pages import judged_blocks, markdown, readme_block, with_block
    from trimtab.claims.pages.documents import INDEX, write_documents
    from trimtab.claims.pages.html import page
    from trimtab.records import whole_file

    judged = judged_blocks(store)
    texts: dict[Path, str] = {}
    if options.readme is not None:  # first, since it may be refused
        try:
            rows = [row for block in judged for row in block.rows]
            texts[options.readme] = with_block(options.readme.read_text(encoding="utf-8"), readme_block(rows))
        except (OSError, ValueError) as error:
            raise CommandError(f"cannot put the table into {options.readme}: {error}") from error
    index = "" if options.docs is None else _link(options.markdown, options.docs / INDEX)
    texts[options.markdown] = markdown(judged, index)
    texts[options.out / "claims.html"] = page(judged)
    for path, text in texts.items():
        with _written(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(text.encode())
        print(path)
    if options.docs is not None:
        with _written(options.docs):
            written = write_documents(judged, options.docs, _link(options.docs / INDEX, options.markdown))
        print(*written, sep="\n")
    return 0


def _link(document: Path, other: Path) -> str:
    """Another file, as a document links to it."""
    return Path(os.path.relpath(other, document.parent)).as_posix()


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Turns what goes wrong on writing into a sentence."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}; name another place", FAILED) from error
