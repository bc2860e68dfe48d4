"""`trimtab doctor`: train for a few hundred steps, and say what holds the training back."""

import argparse
import json
import math
import shutil
import sys
import textwrap
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cli.common import (
    LAB,
    RECIPES,
    CommandError,
    add_machine,
    add_settings,
    flagged_settings,
    need,
    place,
    positive,
)

if TYPE_CHECKING:
    import torch

    from trimtab.cli.parsing import Commands
    from trimtab.doctor import Diagnosis, Doctor
    from trimtab.doctor.schedule import Level
    from trimtab.training.examination import Patient
    from trimtab.training.settings import Settings

FOUND = 1
"""The exit status where something was found."""
STEPS = 300
LEVELS = ("light", "standard", "full")
# What the command has flags of its own for, or has no use for.
WITHOUT = ("network", "steps", "epochs", "evaluations", "probe", "probe_at", "probe_every", "probe_multiples")
# Settings that have an effect on a model of the user's own; those of the data have none if the loader is, too.
OF_OPTIMIZER = {"optimizer", "lr", "momentum", "nesterov", "weight_decay", "decay_on"}
OF_BNP = {"method", "rho", "eps1", "eps2", "statistics", "spatial", "no_bias"}
OF_DATA = {"data", "batch_size", "loss", "normalize", "augment", "validation", "evaluate_on", "precision"}


def add(commands: "Commands") -> None:
    """Declare the command."""
    from trimtab.networks import NETWORKS

    parser = commands.add_parser(
        "doctor",
        usage="trimtab doctor TARGET [--loader MODULE:FUNCTION] [--steps N] [--level LEVEL] [--SETTING VALUE ...] "
        "[options]",
        help="train for a few hundred steps, and say what holds the training back and what to change",
        description="Trains a network for a few hundred steps, in memory only, looks along and prints what holds the "
        "training back, what shows it and what to change. The exit status is 1 if there is a finding, 0 if there is "
        "none, 2 if that cannot be said. "
        f"Networks of the lab: {', '.join(NETWORKS)}. {RECIPES}",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="a network of the lab, a function of yours that makes a model (package.module:make_model), or the folder "
        "of "
        "a run",
    )
    parser.add_argument(
        "--loader",
        metavar="MODULE:FUNCTION",
        help="a function of yours that makes a loader of batches (default: the data set of --data)",
    )
    parser.add_argument(
        "--loss-fn",
        metavar="MODULE:FUNCTION",
        help="a function loss(model, batch) of yours, with --loader (default: cross-entropy of pairs of inputs and "
        "classes)",
    )
    parser.add_argument(
        "--steps", type=positive, default=STEPS, metavar="N", help="how many to train (default: %(default)s)"
    )
    parser.add_argument(
        "--level", choices=LEVELS, default="standard", help="how closely to look (default: %(default)s)"
    )
    parser.add_argument(
        "--static", action="store_true", help="do not train: the first step alone is tried, and the spectrum measured"
    )
    parser.add_argument(
        "--page", type=place, metavar="FILE", help="write a page with pictures too, such as report.html"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    add_machine(parser)
    add_settings(parser, without=WITHOUT)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, look, print."""
    need(*LAB)
    from trimtab.cli.display import display_doctor
    from trimtab.training.device import device_named
    from trimtab.training.examination import examine

    if options.page is not None:
        _check_page(options.page)
    level: Level = "full" if options.static else options.level
    steps = 2 if options.static else options.steps
    quiet = options.quiet or options.static
    # What the user's own code prints is no JSON.
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        patient, settings, notes = _patient(options, device_named(options.device))
        with nullcontext() if quiet else display_doctor(options.target) as show:
            doctor = examine(patient, level, steps, show)
    if not doctor.record.losses:
        raise CommandError("the loader has no batch; it must give batches each time it is iterated over")
    diagnosis = doctor.diagnosis()
    if options.page is not None:
        try:
            doctor.report(options.page)
        except OSError as error:
            raise CommandError(f"{options.page} cannot be written: {error.strerror or error}") from error
    if options.json:
        print(json.dumps(_plain(_described(options, settings, diagnosis, doctor)), indent=2, ensure_ascii=False))
    else:
        _print([*notes, *str(diagnosis).splitlines(), *([str(options.page)] if options.page else [])])
    return FOUND if diagnosis.findings else 0


def _check_page(page: Path) -> None:
    """Refuse, before anything is trained, what no page can be written to."""
    if page.is_dir():
        raise CommandError(f"{page} is a folder; name a file to write, such as report.html")
    if not page.absolute().parent.is_dir():
        raise CommandError(f"{page} cannot be written: there is no folder {page.parent}")


def _patient(options: argparse.Namespace, device: "torch.device") -> "tuple[Patient, Settings, list[str]]":
    """What to train, by which settings, and what is to be said of it."""
    from trimtab.networks import NETWORKS
    from trimtab.training import examination
    from trimtab.training.folder import SETTINGS

    folder = Path(options.target)
    if ":" in options.target and options.target.partition(":")[0] and not folder.exists():
        return _own(options, device)
    if options.loader or options.loss_fn:
        raise CommandError("--loader and --loss-fn go with a model of yours, named as package.module:make_model")
    if options.target not in NETWORKS and (folder / SETTINGS).exists():
        settings = _settings_of_run(folder, options)
        patient, step = examination.of_run(folder, settings, device, options.data_root)
        return patient, settings, [f"{folder}: looked at from step {step} on; nothing was written there."]
    if options.target not in NETWORKS and folder.is_dir():
        raise CommandError(f"{folder} holds no run: it has no {SETTINGS}")
    if options.target not in NETWORKS and any(sign in options.target for sign in "./\\"):
        raise CommandError(
            f"{options.target} is no network of the lab and no folder; a function of yours that makes a model is named "
            "as in package.module:make_model"
        )
    settings = _settings(options, options.target)
    return examination.of_settings(settings, device, options.data_root), settings, []


def _own(options: argparse.Namespace, device: "torch.device") -> "tuple[Patient, Settings, list[str]]":
    import torch

    from trimtab.doctor.losses import cross_entropy
    from trimtab.training import examination

    of_loader = options.loader is not None
    known = {"seed", *OF_OPTIMIZER, *OF_BNP, *(() if of_loader else OF_DATA)}
    if idle := [name for name in flagged_settings(options) if name not in known]:
        where = "with a loader" if of_loader and idle[0] in OF_DATA else "on a model"
        raise CommandError(f"{', '.join(idle)} would have no effect {where} of your own; leave it out")
    settings = _settings(options, None)
    if settings.parsed_method.norm != "none":
        raise CommandError(
            f"method {settings.method} is for the networks of the lab; a model of your own has the norms that it has, "
            "with --method bnp or without"
        )
    torch.manual_seed(settings.seed)
    model = examination.own_model(options.target)
    if options.loader is None:
        if options.loss_fn:
            raise CommandError("--loss-fn goes with --loader; the data sets of the lab have their own loss, see --loss")
        return examination.of_model(model, settings, device, options.data_root), settings, []
    loss_fn = examination.named(options.loss_fn) if options.loss_fn else cross_entropy
    loader = examination.own_loader(options.loader)
    return examination.of_loader(model, loader, loss_fn, settings, device), settings, []


def _settings(options: argparse.Namespace, network: str | None) -> "Settings":
    """The settings on the command line, and of the recipe; of a user's own model those that are no paper's."""
    from trimtab.cli.common import given_settings
    from trimtab.training.recipes import resolve
    from trimtab.training.settings import Settings, from_mapping

    options.config = None
    named = {} if network is None else from_mapping({"network": network}, where="the command line")
    plain = {"method": "vanilla"}  # what is looked at is the network as it is, unless BNP or a norm is asked for
    return resolve(Settings(**{**plain, **given_settings(options), **named}))


def _settings_of_run(folder: Path, options: argparse.Namespace) -> "Settings":
    from trimtab.training.config import read_settings
    from trimtab.training.folder import SETTINGS
    from trimtab.training.recipes import resolve
    from trimtab.training.settings import Settings

    if given := flagged_settings(options):
        raise CommandError(f"{folder} has settings of its own; leave {', '.join(given)} out")
    return resolve(Settings(**read_settings(folder / SETTINGS)))


def _described(
    options: argparse.Namespace, settings: "Settings", diagnosis: "Diagnosis", doctor: "Doctor"
) -> dict[str, Any]:
    chosen = ("data", "batch_size", "optimizer", "lr", "momentum", "weight_decay", "seed")
    losses = doctor.record.losses
    used = {name: getattr(settings, name) for name in chosen}
    if options.loader is not None:
        used |= {"data": options.loader, "batch_size": doctor.record.facts.batch_size}
    return {
        "target": options.target,
        "settings": used,
        "loss": {"first": losses[0], "last": losses[-1]},
        **diagnosis.to_dict(),
    }


def _plain(value: Any) -> Any:
    """JSON has no numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(lines: list[str]) -> None:
    width = shutil.get_terminal_size().columns
    for line in lines:
        first = "   " if line.startswith("   ") else ""
        later = "   " if line.startswith((" ", *"123456789")) else ""
        kept = line.strip().replace(" %", "\N{NO-BREAK SPACE}%")  # no line begins with the sign
        filled = textwrap.fill(kept, width, initial_indent=first, subsequent_indent=later)
        print(filled.replace("\N{NO-BREAK SPACE}%", " %"))
