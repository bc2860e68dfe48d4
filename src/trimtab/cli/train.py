"""`trimtab train`: trains a network in the folder of a run."""

import argparse
import json
import math
import shlex
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trimtab.cli.common import (
    RECIPES,
    add_machine,
    add_settings,
    flagged_settings,
    given_settings,
    need,
    place,
    print_error,
    result,
    resumable,
    seconds,
    typed,
)
from trimtab.cli.dry_run import add_dry_run, show_estimate
from trimtab.cli.several import needing_all, with_torchrun
from trimtab.cli.tracking import add_track, finish_tracking, tracking

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands
    from trimtab.training.run import Ending
    from trimtab.training.session import Session
    from trimtab.training.settings import Settings

SEVERAL = (
    "torchrun --nproc-per-node 2 -m trimtab train ... trains in two processes, each with its share of every batch."
)
STATUS = {"finished": 0, "diverged": 3, "interrupted": 128}


def add(commands: "Commands") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "train",
        usage="trimtab train [--SETTING VALUE ...] [--out FOLDER] [--resume | --force] [options]",
        help="train a network of the papers by any method on any of the data sets",
        description=f"{RECIPES} {SEVERAL}",
    )
    parser.add_argument("--config", type=place, metavar="FILE", help="YAML file with settings; flags go before it")
    parser.add_argument(
        "--out", type=place, metavar="FOLDER", help="folder of the run (default: runs/DATA-NETWORK-METHOD-BATCH-SEED)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in that folder")
    parser.add_argument("--force", action="store_true", help="overwrite the run in that folder")
    add_machine(parser)
    parser.add_argument(
        "--checkpoint-seconds",
        type=seconds,
        default=30.0,
        metavar="X",
        help="between two of them (default: %(default)g)",
    )
    add_track(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    parser.add_argument("--json", action="store_true", help="print how it ended as JSON")
    add_dry_run(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start a run, or go on with one, and say how it ended; if something is wrong, nothing is written."""
    need("rich", "yaml")
    from trimtab.cli.display import display
    from trimtab.cli.terminal import Terminal
    from trimtab.training.device import device_named
    from trimtab.training.estimate import one_after_another
    from trimtab.training.launch import dry_run, launch
    from trimtab.training.processes import Processes
    from trimtab.training.session import Session

    processes = Processes.of_group()
    first, chosen = processes.first, settings_and_folder(options) if processes.first else None
    settings, out = cast("tuple[Settings, Path]", processes.from_first(chosen))
    tracked = tracking(options, out) if first else None
    device = processes.own_device(device_named(options.device))
    session = Session(settings, device, options.data_root, processes=processes)
    if options.dry_run:
        estimate = one_after_another([dry_run(session, out, resume=options.resume, force=options.force)])
        notes = [f"{sentence}." for sentence in (session.execution, session.note) if sentence]
        return show_estimate(estimate, out, notes=notes, as_json=options.json) if first else 0
    go_on = f"go on with: {resuming(options, out)}"
    silent = options.quiet or not first
    ending = None
    with (
        needing_all(out, go_on),
        resumable(out, go_on),
        nullcontext() if silent else display(out.name, session.execution) as show,
    ):
        try:
            ending = launch(
                session,
                out,
                resume=options.resume,
                force=options.force,
                command=with_torchrun(typed()),
                show=show,
                notify=print_error,
                observe=tracked,
                checkpoint_seconds=options.checkpoint_seconds,
            )
        finally:
            if tracked is not None:
                finish_tracking(tracked, ending, out)
    if options.json and first:
        print(summary(ending, session, out))
    elif first:
        Terminal().print(sentence(ending, session, out, go_on), highlight=False, markup=False, soft_wrap=True)
    return STATUS[ending.verdict] + ending.signal


def settings_and_folder(options: argparse.Namespace) -> "tuple[Settings, Path]":
    """The settings of the run and its folder, as the command line says, or the run that is resumed."""
    from trimtab.training.folder import resumed_settings
    from trimtab.training.recipes import resolve
    from trimtab.training.settings import Settings
    from trimtab.training.unused_settings import check_unused_settings

    if options.resume and options.force:
        raise ValueError("--resume goes on with a run and --force overwrites it; give one of them")
    given = given_settings(options)
    out: Path = options.out
    if options.resume and out is not None:
        settings = resumed_settings(out, given)
    else:
        settings = resolve(Settings(**given))
        if not options.resume:
            check_unused_settings(flagged_settings(options), settings)
        out = out or Path("runs") / default_name(settings)
        if options.resume:
            settings = resumed_settings(out, given)
    return settings, out


def resuming(options: argparse.Namespace, out: Path) -> str:
    """The command that goes on with a run."""
    words = ["trimtab", "train", "--resume", "--out", str(out)]
    kept = ("data_root", "device", "track", "track_to")
    for flag, value in ((f"--{name.replace('_', '-')}", getattr(options, name)) for name in kept):
        words += [] if value is None else [flag, str(value)]
    return with_torchrun(shlex.join(words))


def default_name(settings: "Settings") -> str:
    """A folder name that identifies the run."""
    parts: tuple[str, ...] = (
        settings.data,
        settings.network,
        settings.method,
        f"b{settings.batch_size}",
        f"s{settings.seed}",
    )
    if settings.init_from is not None:
        parts += (f"from-{Path(settings.init_from).name}",)
    return "-".join(parts)


def sentence(ending: "Ending", session: "Session", out: Path, go_on: str) -> str:
    """How a run ended, for a person."""
    if ending.verdict == "diverged":
        return f"Diverged at step {session.step}: the loss left all bounds. Records: {out}"
    if ending.verdict == "interrupted":
        return f"Interrupted at step {session.step} of {session.total}; {go_on}"
    return f"Finished {session.total} steps: {result(ending.evaluations[-1])}. Records: {out}"


def summary(ending: "Ending", session: "Session", out: Path) -> str:
    """How a run ended, as a JSON object; numbers that are not finite are null."""
    last = ending.evaluations[-1] if ending.evaluations else None
    evaluated = last and {name: value for name, value in asdict(last).items() if name != "seconds"}
    return json.dumps(
        {
            "verdict": ending.verdict,
            "step": session.step,
            "steps": session.total,
            "seconds": ending.seconds,
            "images_per_second": ending.images_per_second,
            "last_evaluation": evaluated and {name: _finite(value) for name, value in evaluated.items()},
            "last_epoch": {"loss": _finite(ending.last_epoch[0]), "accuracy": ending.last_epoch[1]},
            "folder": str(out),
            "settings": asdict(session.settings),
        },
        indent=2,
        allow_nan=False,
    )


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
