"""`trimtab train --track`: the numbers of a run, and its figures at the end, for a tracker."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cli.common import CommandError, need, place

if TYPE_CHECKING:
    from trimtab.cli.parsing import Parser
    from trimtab.training.run import Ending
    from trimtab.training.tracking import RunTracking

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""By name, which is that of the package and of the extra, too."""


def add_track(parser: "Parser") -> None:
    """Add the flags."""
    parser.add_argument(
        "--track", choices=TRACKERS, help="also hand the numbers, and at the end the figures, to this tracker"
    )
    parser.add_argument(
        "--track-to", type=place, metavar="FOLDER", help="where it writes (default: a folder of its name in the run's)"
    )


def tracking(options: argparse.Namespace, out: Path) -> "RunTracking | None":
    """What feeds the tracker; None if there is to be none.

    Raises:
        CommandError: If its package is not installed, or the folder is a file.
    """
    if options.track is None:
        if options.track_to is not None:
            raise CommandError("--track-to is where a tracker writes; name one with --track, or leave it out")
        return None
    need(options.track, extra=options.track)
    need("matplotlib")
    from trimtab.training.tracking import RunTracking

    if options.track_to is not None and options.track_to.exists() and not options.track_to.is_dir():
        raise CommandError(f"{options.track_to} is not a folder; name another with --track-to")
    return RunTracking(options.track, out, options.track_to)


def finish_tracking(tracked: "RunTracking", ending: "Ending | None", out: Path) -> None:
    """Close the tracker, with the figures of the run if that has come to its end."""
    ended = ending is not None and ending.verdict != "interrupted"
    tracked.finish(_figures(out) if ended else ())


def _figures(out: Path) -> Iterator[tuple[str, Any]]:
    from trimtab.report import collect, drawn, figures

    for figure in figures(collect([out])):
        yield figure.name, drawn(figure)
