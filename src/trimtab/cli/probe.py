"""`trimtab probe`: train a network by several methods and measure along the way."""

import argparse
import signal
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
    positive,
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
        usage="trimtab probe [NETWORK] [--methods A,B] [--probe A,B] [--at N,M] [--seeds N] [--SETTING VALUE ...] "
        "[options]",
        help="train a network and measure its loss surface, covariate shift, conditioning and spectrum along the way",
        description="Trains a network by one method or several, measures at some steps of the training and draws what "
        "was found: the figures of the landscape paper and more. Of several seeds the median is a line and the range a "
        "shade. The same command goes on where it was stopped. " + RECIPES,
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
        "--seeds",
        type=positive,
        default=1,
        metavar="N",
        help="runs of each method: the seed and those that follow it (default: %(default)s)",
    )
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
        return show_estimate(one_after_another(_dry_runs(planned, out, options)), out, notes=notes)
    with resumable(out, "go on with the same command"):
        for number, settings in enumerate(planned):
            name = settings.method if options.seeds == 1 else f"{settings.method}, seed {settings.seed}"
            try:
                _train(settings, _folder(settings, planned, out), name, options)
            except ValueError as error:
                if number == 0:
                    raise
                raise CommandError(f"{name}: {error}; the runs before it are kept", FAILED) from error
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
    """The settings of each run, and which of them are left out for some; flags go before the file.

    All methods come before the next seed, so that what a method refuses is told early, and a command that is stopped
    has something to compare.
    """
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
    first = [resolve(Settings(**own, method=method)) for own, method in zip(shared, methods, strict=True)]
    planned = [replace(one, seed=one.seed + number) for number in range(options.seeds) for one in first]
    return planned, left_out_notes(without)


def _folder(settings: "Settings", planned: Sequence["Settings"], out: Path) -> Path:
    """Of the first seed the one with the method's name, as without --seeds: more seeds can be added to it."""
    first = settings.seed == planned[0].seed
    return out / (settings.method if first else f"{settings.method}-seed{settings.seed}")


def _train(settings: "Settings", folder: Path, name: str, options: argparse.Namespace) -> None:
    """Train one run. A finished one is left as it is, and one that was stopped is resumed."""
    from trimtab.cli.display import display
    from trimtab.training.launch import launch

    begun = _begun(settings, folder, options)
    if begun is None:
        return
    session = _session(settings, options)
    with nullcontext() if options.quiet else display(name, session.execution) as show:
        ending = launch(session, folder, resume=begun, force=options.force, command=typed(), show=show)
    if ending.verdict == "interrupted":
        raise Terminated if ending.signal == signal.SIGTERM else KeyboardInterrupt


def _dry_runs(planned: Sequence["Settings"], out: Path, options: argparse.Namespace) -> Iterator["Cost"]:
    """What each run takes that is not finished. One that has not begun takes what the other seeds of the method do."""
    from trimtab.training.folder import check_free
    from trimtab.training.launch import dry_run

    whole: dict[str, Cost] = {}
    for settings in planned:
        folder = _folder(settings, planned, out)
        begun = _begun(settings, folder, options)
        if begun is None:
            continue
        if not begun and settings.method in whole:
            check_free(folder, force=options.force)
            yield whole[settings.method]
            continue
        cost = dry_run(_session(settings, options), folder, resume=begun, force=options.force)
        if not begun:
            whole[settings.method] = cost
        yield cost


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
