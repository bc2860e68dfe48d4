"""`trimtab export`: a trained network as one file."""

import argparse
from typing import TYPE_CHECKING

from trimtab.cli.common import FAILED, CommandError, place, result

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands


def add(commands: "Commands") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "export",
        help="write the network of a run into one file, for use elsewhere",
        description="Writes the weights of a run, and as plain data its settings and what the inputs must look like, "
        "into one file. trimtab.load_run(FILE) gives the network; torch.load(FILE, weights_only=True) reads it "
        "without trimtab.",
    )
    parser.add_argument("folder", type=place, metavar="RUN", help="folder of the run")
    parser.add_argument("file", type=place, metavar="FILE", help="file to write, such as model.pt")
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the file, and say what is in it."""
    from trimtab.training.loading import export_run

    if options.file.exists() and not options.file.is_file():
        raise CommandError(f"{options.file} is a folder or a device; name a file to write, such as model.pt")
    if options.file.exists() and not options.force:
        raise CommandError(f"{options.file} is there already; overwrite it with --force, or name another file")
    try:
        loaded = export_run(options.folder, options.file)
    except OSError as error:
        raise CommandError(f"cannot write {options.file}: {error.strerror or error}", FAILED) from error
    words = [f"{loaded.settings.network} trained on {loaded.settings.data} by {loaded.settings.method}"]
    words.append(f"{loaded.step} steps")
    if loaded.evaluated is not None:
        words.append(result(loaded.evaluated))
    print(f"{options.file}: {', '.join(words)}.")
    return 0
