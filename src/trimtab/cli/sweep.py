"""`trimtab sweep`: networks over a grid of settings, and heat maps of how they end."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import (
    FAILED,
    JOBS,
    LAB,
    PAGE,
    RECIPES,
    CommandError,
    Terminated,
    add_machine,
    add_settings,
    given_settings,
    need,
    place,
    positive,
    resumable,
    typed,
    words,
)

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands
    from trimtab.training.sweep.axes import Axis

# Settings that a sweep decides.
DECIDED = (
    *("evaluations", "evaluate_every", "train_subset", "init_from", "fold"),
    *("probe", "probe_every", "probe_at", "probe_multiples"),
)


def add(commands: "Commands") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "sweep",
        usage="trimtab sweep --axis NAME=A..B:N --axis NAME=A..B:N [--SETTING VALUE ...] [options]",
        help="train networks over a grid of settings, hundreds at once, and draw which of them train, explode or die",
        description="Trains a network, or several with other seeds, at each point of a grid of settings, and draws how "
        "they end beside the learning rate that theory calls the largest. The same command goes on where it was "
        "stopped. " + RECIPES,
    )
    parser.add_argument(
        "--axis",
        type=_axis,
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="a numeric setting and its values: A..B:N (geometric), lin:A..B:N or A,B,C; give two or more",
    )
    parser.add_argument(
        "--restarts", type=positive, default=1, metavar="N", help="networks per point, by seed (default: %(default)s)"
    )
    parser.add_argument(
        "--engine",
        choices=("auto", "stacked", "separate"),
        default="auto",
        help="stacked: many networks as one computation; separate: each by itself (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        choices=("local", "ray"),
        default="local",
        help="who trains separate networks: processes on this machine, or Ray, with which networks are separate "
        "(default: %(default)s)",
    )
    parser.add_argument("--ray-address", metavar="HOST:PORT", help="of a Ray cluster, as for `trimtab compare`")
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help=f"separate networks at a time (default: {JOBS})",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="of each process (default: 1, for stacks as many as there are cores)",
    )
    parser.add_argument(
        "--predict",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="draw the largest rates that mean field predicts (default: yes, with an axis lr)",
    )
    parser.add_argument(
        "--figures",
        type=words,
        default=(),
        metavar="png,pdf",
        help="also draw each figure into figures beside the page",
    )
    parser.add_argument(
        "--config", type=place, metavar="FILE", help="YAML file with settings of all networks; flags go before it"
    )
    parser.add_argument(
        "--out", type=place, metavar="FOLDER", help="for the results (default: runs/sweep-DATA-NETWORK-METHOD-AXES)"
    )
    parser.add_argument("--force", action="store_true", help="begin anew")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_machine(parser)
    add_settings(parser, without=DECIDED)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, draw, and say what came out."""
    need(*LAB)
    from trimtab.cli.display import display_sweep
    from trimtab.cli.terminal import Terminal
    from trimtab.report import check_kinds, collect, write_figures, write_page
    from trimtab.training.device import device_named
    from trimtab.training.settings import Settings
    from trimtab.training.sweep.plan import Grid
    from trimtab.training.sweep.runner import SweepRunner
    from trimtab.training.sweep.stack_files import Interrupted
    from trimtab.training.workers.engines import engine_named
    from trimtab.training.workers.pool import TrainingFailed

    given = given_settings(options)
    for name in DECIDED:
        if name in given:
            raise CommandError(f"{options.config}: {name} is not for a sweep; leave it out there")
    check_kinds(options.figures)
    for name, given_one in (("workers ray", options.workers == "ray"), ("jobs", options.jobs is not None)):
        if given_one and options.engine == "stacked":
            raise CommandError(f"--{name} is for separate networks; leave it out, or --engine stacked")
    if options.workers == "ray":
        need("ray", extra="ray")
        options.engine = "separate"
    grid = Grid(given, tuple(options.axis), options.restarts)
    usual = Settings(**given)
    axes = [axis.name for axis in grid.axes]
    out = options.out or Path("runs") / "-".join(["sweep", usual.data, usual.network, usual.method, *axes])
    device = device_named(options.device)
    started = time.monotonic()
    go_on = f"the same command goes on with what is in {out}"
    try:
        with resumable(out, go_on), display_sweep() as show:
            runner = SweepRunner(
                grid,
                out,
                command=typed(),
                device=device,
                data_root=options.data_root,
                engine=options.engine,
                workers=engine_named(options.workers, options.ray_address),
                jobs=options.jobs,
                threads=options.threads,
                force=options.force,
                predict=options.predict,
                show=show,
            )
            try:
                sweep = runner.run()
            except Interrupted as error:
                raise (KeyboardInterrupt if error.signal == 2 else Terminated) from None
    except TrainingFailed as error:
        raise CommandError(f"{error}; {go_on}", FAILED) from error
    seconds = time.monotonic() - started
    try:
        data = collect([out])
        write_page(data, out / PAGE)
        figures = write_figures(data, out / "figures", options.figures)
    except OSError as error:
        raise CommandError(f"the page could not be written to {out}: {error.strerror}", FAILED) from error
    if options.json:
        print(sweep.to_json())
        return 0
    console = Terminal()
    lines = [
        f"Engine: {sweep.engine}, since {sweep.reason}.",
        sweep.conclusion,
        f"{seconds:.0f} s on {sweep.machine}.",
        *(f"Figure: {path}" for path in figures),
        f"Page: {out / PAGE}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0


def _axis(text: str) -> "Axis":
    from trimtab.training.sweep.axes import Axis

    try:
        return Axis.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
