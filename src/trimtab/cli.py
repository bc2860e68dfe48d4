"""The command line: `trimtab`."""

import argparse
import io
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import torch

import trimtab

LAB = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "rich": "rich", "yaml": "pyyaml"}
TRAIN_OPTIONS = {
    *("command", "run", "config", "out", "resume", "force"),
    *("device", "data_root", "checkpoint_seconds", "quiet"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="trimtab", description="Batch normalization done to the gradients: a library and a lab."
    )
    parser.add_argument("--version", action="version", version=f"trimtab {trimtab.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_demo(commands)
    _add_train(commands)
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still gets the rest
    if options.command is None:
        parser.print_help()
        return 0
    try:
        status: int = options.run(options)
    except CommandError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("trimtab: interrupted", file=sys.stderr)
        return 130
    return status


class CommandError(Exception):
    """What a user can mend, in one sentence."""


def _need(*modules: str) -> None:
    """Say what is missing. What belongs to the lab is imported where it is used, so that the library does without."""
    missing = [LAB[module] for module in modules if find_spec(module) is None]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        raise CommandError(f"this needs {', '.join(missing)}; install {them} with: pip install 'trimtab[lab]'")


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    demo = commands.add_parser(
        "demo",
        help="train small networks with and without BNP and compare them (under 2 minutes on two cores)",
        description="Trains a small CNN and a small fully connected network on scikit-learn's digits at batch sizes "
        "64, 4, 2 and 1, as they are, with BatchNorm, with LayerNorm and with BNP, and says which is best.",
    )
    demo.add_argument("--out", type=Path, default=Path("trimtab-demo"), help="folder for the figure (%(default)s)")
    demo.add_argument("--seeds", type=_positive, default=3, help="runs at the chosen learning rate (%(default)s)")
    demo.add_argument("--jobs", type=_positive, default=None, help="runs at a time (as many as there are cores)")
    demo.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    demo.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    """Train and test all of the demo, then show it."""
    _need(*LAB)
    out, seeds, jobs, as_json = options.out, options.seeds, options.jobs, options.json
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from trimtab.records import Comparison, machine, usable_cores
    from trimtab.report import conclusion, draw, table
    from trimtab.training import demo

    _check_folder(out)
    figure = out / "demo.png"
    started = time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training small networks", total=demo.amount_of_work(seeds))
        try:
            cells = demo.compare(seeds, jobs or usable_cores(), lambda work: progress.advance(task, work))
        except BrokenProcessPool:
            raise CommandError("a training process was ended from outside; try again with --jobs 1") from None
    comparison = Comparison(
        command=f"trimtab demo --seeds {seeds}",
        data="scikit-learn's digits: 1000 images to train on, 397 to choose the learning rate, 400 to test",
        machine=machine(),
        versions={"trimtab": trimtab.__version__, "torch": torch.__version__},
        seconds=round(time.monotonic() - started, 1),
        learning_rates=demo.LEARNING_RATES,
        cells=tuple(cells),
        conclusion=conclusion(cells),
        figure=str(figure),
    )
    console = Console()
    if as_json:
        print(comparison.to_json())
    else:
        console.print(table(comparison))
        console.print(comparison.conclusion, highlight=False)
    try:
        out.mkdir(parents=True, exist_ok=True)
        draw(comparison, figure)
    except OSError as error:
        raise CommandError(f"the figure could not be written to {figure}: {error.strerror}") from error
    if not as_json:
        done = f"{comparison.seconds:.0f} s on {comparison.machine}. Figure: {figure}"
        console.print(done, highlight=False, soft_wrap=True)
    return 0


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    train = commands.add_parser(
        "train",
        help="train a network of the papers by any method on any of the data sets",
        description="What is not given is taken from the recipe of the paper that the network is from.",
    )
    train.add_argument("--config", type=Path, help="YAML file with settings; flags go before it")
    train.add_argument("--out", type=Path, help="folder of the run (runs/DATA-NETWORK-METHOD-BATCH-SEED)")
    train.add_argument("--resume", action="store_true", help="go on with the run in that folder")
    train.add_argument("--force", action="store_true", help="overwrite the run in that folder")
    train.add_argument("--device", help="cpu or cuda (cuda if there is one)")
    train.add_argument("--data-root", type=Path, help="folder of the data sets (TRIMTAB_DATA, or data)")
    train.add_argument("--checkpoint-seconds", type=float, default=30.0, help="between two of them (%(default)s)")
    train.add_argument("--quiet", action="store_true", help="no progress display")
    train.set_defaults(run=_train)
    from trimtab.training.settings import names_and_help

    group = train.add_argument_group("settings of the run")
    for name, text, hint in names_and_help():
        flag = f"--{name.replace('_', '-')}"
        if hint is bool or bool in get_args(hint):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        else:
            group.add_argument(flag, default=argparse.SUPPRESS, metavar="X", help=text)


def _train(options: argparse.Namespace) -> int:
    """Train one network."""
    _need("rich", "yaml")
    from trimtab.training import command

    given = {name: value for name, value in vars(options).items() if name not in TRAIN_OPTIONS}
    try:
        return command.train(
            given,
            config=options.config,
            out=options.out,
            resume=options.resume,
            force=options.force,
            device=options.device,
            data_root=options.data_root,
            checkpoint_seconds=options.checkpoint_seconds,
            quiet=options.quiet,
        )
    except ValueError as error:
        raise CommandError(str(error)) from error


def _check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written to, before the work and not after it."""
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise CommandError(f"cannot write to the folder {path}; name another with --out")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text!r}")
    return number
