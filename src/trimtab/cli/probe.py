"""`trimtab probe`: train a network by several methods and measure along the way."""

import argparse
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.common import (
    FAILED,
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
    resumable,
    steps,
    typed,
    words,
)
from trimtab.cli.dry_run import add_dry_run, show_estimate

if TYPE_CHECKING:
    from trimtab.cli.parsing import Commands
    from trimtab.training.estimate import Cost
    from trimtab.training.session import Session
    from trimtab.training.settings import Settings

# What the command has flags of its own for.
OWN = ("network", "method", "probe", "probe_at", "seed")


def add(commands: "Commands") -> None:
    """Declare the command."""
    from trimtab.networks import NETWORKS
    from trimtab.probe_registry import PROBES

    parser = commands.add_parser(
        "probe",
        usage="trimtab probe [NETWORK] [--methods A,B] [--probe A,B] [--at N,M] [--SETTING VALUE ...] [options]",
        help="train a network and measure its loss surface, covariate shift, conditioning and spectrum along the way",
        description="Trains a network by one method or several, measures at some steps of the training and draws what "
        "was found: the figures of the landscape paper and more. The same command goes on where it was stopped. "
        + RECIPES,
    )
    parser.add_argument(
        "network", nargs="?", metavar="NETWORK", help=f"one of {', '.join(NETWORKS)} (default: the file's)"
    )
    parser.add_argument(
        "--methods",
        type=words,
        metavar="A,B",
        help="as `trimtab list methods` has them (default: the file's, else vanilla,bn)",
    )
    parser.add_argument(
        "--probe",
        type=words,
        metavar="A,B",
        help=f"some of {', '.join(PROBES)}, or all (default: the file's, else landscape)",
    )
    parser.add_argument(
        "--at",
        type=steps,
        metavar="N,M",
        help="measure before these steps, counted from 0 (default: as --probe-every says)",
    )
    parser.add_argument("--seed", metavar="N", help="decides weights, order and noise (default: the file's, else 0)")
    parser.add_argument(
        "--out", type=place, metavar="FOLDER", help="for the runs and the page (default: runs/probe-DATA-NETWORK)"
    )
    parser.add_argument(
        "--config", type=place, metavar="FILE", help="YAML file with settings of all runs; flags go before it"
    )
    parser.add_argument("--force", action="store_true", help="do all runs anew")
    parser.add_argument(
        "--figures",
        type=words,
        default=("png",),
        metavar="png,pdf",
        help="kinds of files: png, pdf, svg (default: png)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    add_dry_run(parser)
    add_machine(parser)
    add_settings(parser, without=OWN)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, measure, draw."""
    need(*LAB)
    from trimtab.report import check_kinds, collect, write_figures, write_page
    from trimtab.training.estimate import one_after_another

    check_kinds(options.figures)
    planned, notes = _planned(options)
    out: Path = options.out or Path("runs") / f"probe-{planned[0].data}-{planned[0].network}"
    _check(out)
    if options.dry_run:
        costs = [_dry_run(settings, out / settings.method, options) for settings in planned]
        return show_estimate(one_after_another(one for one in costs if one is not None), out, notes=notes)
    with resumable(out, "go on with the same command"):
        for number, settings in enumerate(planned):
            try:
                _train(settings, out / settings.method, options)
            except ValueError as error:
                if number == 0:
                    raise
                raise CommandError(f"{settings.method}: {error}; the runs before it are kept", FAILED) from error
        data = collect([out])
        write_page(data, out / PAGE)
        drawn = write_figures(data, out / "figures", options.figures)
    for line in (*notes, out / PAGE, *drawn):
        print(line)
    return 0


def _check(out: Path) -> None:
    """Refuse a folder that holds something else than runs in folders of their own."""
    from trimtab.records import RESULTS, UNFINISHED
    from trimtab.training.folder import FILES

    if not out.is_dir():
        return  # whoever makes the folder says what is in its way
    if (out / RESULTS).exists():
        raise ValueError(f"{out} holds a comparison; name another folder with --out")
    if any((out / name).exists() for name in FILES):
        raise ValueError(f"{out} holds a run; name another folder with --out")
    others = [path.name for path in out.iterdir() if not path.name.endswith(UNFINISHED)]
    if others and not any((out / other / name).exists() for other in others for name in FILES):
        raise ValueError(f"{out} holds other files ({others[0]}); name another folder with --out")


def _planned(options: argparse.Namespace) -> tuple[list["Settings"], tuple[str, ...]]:
    """The settings of each run, and which of them are left out for some; flags go before the file."""
    from trimtab.training.methods import left_out_notes, unused_by
    from trimtab.training.recipes import resolve
    from trimtab.training.settings import Settings, from_mapping

    flags = {"network": options.network, "seed": options.seed, "probe": options.probe}
    own = {name: value for name, value in flags.items() if value is not None}
    given = {"probe": ("landscape",), **given_settings(options), **from_mapping(own, where="the command line")}
    if options.at is not None:
        given["probe_at"] = options.at
    if "network" not in given:
        raise ValueError("no network is named; name one, as in: trimtab probe vgg")
    methods = options.methods or ((given["method"],) if "method" in given else ("vanilla", "bn"))
    given.pop("method", None)
    Settings(**given)  # refuses what no method can have
    without = unused_by(given, methods)
    shared = [{name: v for name, v in given.items() if method not in without.get(name, ())} for method in methods]
    planned = [resolve(Settings(**own, method=method)) for own, method in zip(shared, methods, strict=True)]
    return planned, left_out_notes(without)


def _train(settings: "Settings", folder: Path, options: argparse.Namespace) -> None:
    """Train one run. A finished one is left as it is, and one that was stopped is resumed."""
    from trimtab.cli.display import display
    from trimtab.training.launch import launch

    begun = _begun(settings, folder, options)
    if begun is None:
        return
    session = _session(settings, options)
    with nullcontext() if options.quiet else display(settings.method, session.execution) as show:
        ending = launch(session, folder, resume=begun, force=options.force, command=typed(), show=show)
    if ending.verdict == "interrupted":
        raise Terminated if ending.signal == signal.SIGTERM else KeyboardInterrupt


def _dry_run(settings: "Settings", folder: Path, options: argparse.Namespace) -> "Cost | None":
    """What one run takes; None if it is finished."""
    from trimtab.training.launch import dry_run

    begun = _begun(settings, folder, options)
    if begun is None:
        return None
    return dry_run(_session(settings, options), folder, resume=begun, force=options.force)


def _begun(settings: "Settings", folder: Path, options: argparse.Namespace) -> bool | None:
    """Whether there is a run to go on with; None if it is finished."""
    from trimtab.records import EVENTS, History
    from trimtab.training.folder import holds

    if options.force or not (folder / EVENTS).exists():
        return False
    if not holds(folder, settings):
        raise ValueError(f"{folder} holds a run with other settings; replace it by --force, or give another --out")
    ended = History.read(folder).ended
    return None if ended is not None and ended.verdict != "interrupted" else True


def _session(settings: "Settings", options: argparse.Namespace) -> "Session":
    from trimtab.training.device import device_named
    from trimtab.training.session import NoSuchStep, Session

    try:
        return Session(settings, device_named(options.device), options.data_root)
    except NoSuchStep as error:
        if options.at is None:
            raise
        raise NoSuchStep(error.step, error.total, "--at") from None
